"""Every route of the service, in the order in which the OpenAPI document lists them."""

from __future__ import annotations

from functools import cache

from homing.api import (
    admin,
    audit,
    batch,
    callbacks,
    dead_letters,
    jobs,
    keys,
    meta,
    notifications,
    policies,
    providers,
    queue,
    recipients,
    suppressions,
    templates,
    tenants,
    unsubscribe,
)
from homing.api.routing import Route

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
