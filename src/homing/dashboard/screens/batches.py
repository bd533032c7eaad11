"""Batches: the notifications that one request was fanned out into, with their counts by status."""

from __future__ import annotations

from starlette.responses import Response

from homing.core.notifications import Filter
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_SHOWN = 100


@screens.get("batches")
async def show_batches(visit: Visit) -> Response:
    """Shows one batch if the address names it, and the newest batches otherwise."""
    wanted = visit.query.get("id", "").strip()[:100]
    if wanted:
        found = await visit.api.batch(wanted)
        return visit.go(f"batches/{found.batch_id}")
    newest = await visit.api.batches()
    several = tuple(one for one in newest if one.total > 1)
    return visit.page("batches.html", batches=(several or newest)[:_SHOWN], only_several=bool(several))


@screens.get("batches/{id}")
async def show_batch(visit: Visit, id: str) -> Response:
    """Shows the notifications of a batch."""
    return visit.page("batch.html", id=id, part=await _part(visit, id))


@screens.live("batch")
async def read_batch(visit: Visit) -> str:
    """Returns the part of the screen that changes."""
    return await _part(visit, visit.query.get("id", ""))


async def _part(visit: Visit, id: str) -> str:
    batch = await visit.api.batch(id)
    page = await visit.api.list(Filter(batch_id=id), limit=_SHOWN)
    return visit.html("batch_part.html", batch=batch, page=page)
