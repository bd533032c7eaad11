"""Every screen of the dashboard."""

from __future__ import annotations

from homing.dashboard.screens import (
    administration,
    batches,
    dead_letters,
    find,
    inbox,
    now,
    policies,
    providers,
    recipients,
    system,
    templates,
    waiting,
)
from homing.dashboard.visits import Screens


def all_screens() -> tuple[Screens, ...]:
    """Returns the tables of routes of all modules."""
    return tuple(
        module.screens
        for module in (
            now,
            dead_letters,
            find,
            providers,
            waiting,
            inbox,
            policies,
            templates,
            recipients,
            administration,
            system,
            batches,
        )
    )
