"""The inbox: what providers without a vendor would have sent, readable in the browser."""

from __future__ import annotations

from starlette.responses import Response

from homing.core.lifecycle.states import SUCCESSFUL
from homing.core.notifications import Channel
from homing.dashboard.visits import Screens, Visit

screens = Screens()

_LOCAL_KINDS = ("console", "file", "ConsoleProvider", "FileProvider")
"""Kinds of providers whose messages reach no one."""

_LIMIT = 50


@screens.get("inbox")
async def show_inbox(visit: Visit) -> Response:
    """Shows the newest messages of local providers, and one of them."""
    chosen = None
    if id := visit.query.get("id"):
        chosen = await visit.api.get(id)
    return visit.page("inbox.html", part=await read_inbox(visit), n=chosen, id=id or "")


@screens.live("inbox")
async def read_inbox(visit: Visit) -> str:
    """Returns the list, which grows while messages arrive."""
    providers = await visit.engine.providers()
    local = [one.id for one in providers if one.kind in _LOCAL_KINDS or visit.tools.demo is not None]
    channel = visit.query.get("channel", "")
    fields = {"channel": channel} if channel in tuple(Channel) else {}
    successful = [one.value for one in SUCCESSFUL]
    pages = [
        await visit.api.find("", {"provider": provider, "statuses": successful, **fields}, limit=_LIMIT)
        for provider in local[:5]
    ]
    found = [n for page in pages for n in page.items]
    found.sort(key=lambda n: n.created_at, reverse=True)
    return visit.html(
        "inbox_part.html",
        items=found[:_LIMIT],
        local=local,
        complete=len(found) >= _LIMIT or all(page.complete for page in pages),
        chosen=visit.query.get("id", ""),
        channel=channel,
        channels=list(Channel),
    )
