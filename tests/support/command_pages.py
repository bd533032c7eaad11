"""Checks a command for all notifications that match a filter, in a store whose pages have two rows."""

from __future__ import annotations

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Filter
from homing.core.ports.stores import Backend
from homing.testing.builders import a_claim_request, a_notification, a_submission, an_id, sent

CANCEL = Command(name=CommandName.CANCEL, who="ada")


async def check_command_pages(store: Backend) -> None:
    """Fails unless the command reaches the oldest matching rows of all pages, and no more than the limit."""
    ids = [an_id() for _ in range(7)]
    await store.accept([a_submission(a_notification(id=id)) for id in ids])
    claims = {claim.id: claim for claim in (await store.claim(a_claim_request())).claims}
    await store.settle([sent(claims[id]) for id in ids[:3]])  # they fill a page, and cannot be cancelled
    left = ids[3:]
    first = await store.amend("default", Filter(), CANCEL, limit=3)
    assert {*first.applied, *first.requested} == set(left[:3])
    second = await store.amend("default", Filter(), CANCEL, limit=10)
    assert left[3] in {*second.applied, *second.requested}
