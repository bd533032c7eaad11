"""All routes of the service, in the order of its description."""

from __future__ import annotations

from functools import cache

from homing.api import (
    audit,
    batch,
    callbacks,
    keys,
    notifications,
    policies,
    providers,
    queue,
    recipients,
    suppressions,
    templates,
    tenants,
)
from homing.api.routing import Route

SUBJECTS = (
    notifications,
    batch,
    queue,
    policies,
    providers,
    templates,
    recipients,
    suppressions,
    tenants,
    keys,
    audit,
    callbacks,
)


@cache
def all_routes() -> tuple[Route, ...]:
    return tuple(route for subject in SUBJECTS for route in subject.routes.all)
