"""Every route of the service, in the order in which the OpenAPI document lists them."""

from __future__ import annotations

from functools import cache

from homing.api.access import audit, keys, tenants
from homing.api.description import meta
from homing.api.http.routing import Route
from homing.api.intake import batch, notifications, unsubscribe
from homing.api.operations import (
    admin,
    dead_letters,
    jobs,
    policies,
    providers,
    queue,
    recipients,
    suppressions,
    templates,
)
from homing.api.receipts import callbacks

SUBJECTS = (
    notifications,
    batch,
    queue,
    dead_letters,
    jobs,
    admin,
    policies,
    providers,
    templates,
    recipients,
    suppressions,
    tenants,
    keys,
    audit,
    callbacks,
    unsubscribe,
    meta,
)


@cache
def all_routes() -> tuple[Route, ...]:
    """Returns every route, subject by subject."""
    return tuple(route for subject in SUBJECTS for route in subject.routes.all)
