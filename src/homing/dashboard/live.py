"""Updates of open pages by server-sent events: one tick per process, whatever the number of open tabs.

Tabs that show the same part with the same rights share one view, which is rendered once per tick. While no
tab is open, nothing is read. If a view cannot be rendered, its tabs learn that what they show is out of date.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from homing.core.errors import HomingError

log = logging.getLogger("homing.dashboard")

TICK_S = 2.0
"""Seconds between two updates of a view, unless updates take long."""

_LONGEST_TICK_S = 10.0
"""Maximum number of seconds between two updates."""

_PAUSE_FACTOR = 50
"""The pause after an update is at least this many times as long as the update: a busy store is read less."""

MAX_STREAMS = 200
"""Maximum number of open streams per process."""

MAX_VIEWS = 50
"""Maximum number of different views per process."""

_TENANT_SHARE = 0.75
"""Share of the streams and views that one tenant may have, so that its tabs never stop those of others."""

_CHECK_S = 15.0
"""Seconds between two checks that the session of a stream is still valid. A comment keeps the stream open."""

_RENDER_S = 10.0
"""Maximum time of the update of one view, so that a store that hangs does not look as if nothing changed."""

STALE = "event: stale\ndata: -\n\n"
"""Event after which the figures that a tab shows are out of date, because they cannot be read."""

CURRENT = "event: current\ndata: -\n\n"
"""Event after which they are up to date again."""

FORM_TOKEN_PLACE = "form-token-of-this-session"  # noqa: S105 (no secret)
"""Text in a shared view that each stream replaces by the token of its own session."""

RenderView = Callable[[], Awaitable[str]]


class LiveFeed:
    """Renders the views that tabs are watching, and tells the tabs."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.stopping = stopping
        """Returns True when the process stops, so that streams end."""
        self.streams = 0
        """Number of open streams."""
        self.rendered = 0
        """Number of times that a view was rendered."""
        self._streams_of = Counter[str]()
        """Tenant → number of its open streams."""
        self._views: dict[object, _View] = {}
        self._opened = asyncio.Event()
        """Set when a view is opened that was not rendered yet."""
        self._task: asyncio.Task[None] | None = None

    def is_full(self, key: object, tenant: str) -> bool:
        """Returns True if the tenant cannot open a further stream of this view."""
        if self.streams >= MAX_STREAMS or self._streams_of[tenant] >= _TENANT_SHARE * MAX_STREAMS:
            return True
        own = sum(view.tenant == tenant for view in self._views.values())
        return key not in self._views and (len(self._views) >= MAX_VIEWS or own >= _TENANT_SHARE * MAX_VIEWS)

    async def watch(
        self,
        key: object,
        tenant: str,
        render: RenderView,
        is_valid: Callable[[], Awaitable[bool]],
        form_token: str,
    ) -> AsyncIterator[str]:
        """Yields events for one tab of a tenant until its session ends or the process stops.

        `key` identifies the view: tabs with the same key get the result of one call of `render`, in which
        `FORM_TOKEN_PLACE` stands for the form token of each tab's session.
        """
        view = self._views.setdefault(key, _View(render, tenant))
        if not view.tabs:
            self._opened.set()
        view.tabs += 1
        self.streams += 1
        self._streams_of[tenant] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tick(), name="homing-dashboard-tick")
        seen, stale, loop = -1, False, asyncio.get_running_loop()
        checked = loop.time()
        try:
            while not self.stopping():
                if view.number != seen:
                    seen = view.number
                    yield _event(view.html.replace(FORM_TOKEN_PLACE, form_token), seen)
                if view.is_stale != stale:
                    stale = view.is_stale
                    yield STALE if stale else CURRENT
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await view.changed.wait()
                if loop.time() - checked >= _CHECK_S:
                    checked = loop.time()
                    if not await is_valid():
                        return
                    yield ": \n\n"
        finally:
            view.tabs -= 1
            self.streams -= 1
            self._streams_of[tenant] -= 1
            if not view.tabs:
                self._views.pop(key, None)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while self._views and not self.stopping():
            self._opened.clear()
            began_s = loop.time()
            for view in list(self._views.values()):
                await self._update(view)
            longer_s = pause_s(loop.time() - began_s) - TICK_S
            await asyncio.sleep(TICK_S)
            if longer_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(longer_s):
                        await self._opened.wait()

    async def _update(self, view: _View) -> None:
        try:
            async with asyncio.timeout(_RENDER_S):
                html = await view.render()
        except Exception as error:
            if not view.is_stale:
                expected = isinstance(error, HomingError | TimeoutError)
                log.log(
                    logging.WARNING if expected else logging.ERROR,
                    "a live view is out of date, because it cannot be rendered: %s",
                    type(error).__name__,
                    exc_info=None if expected else error,
                )
            view.fail()
            return
        self.rendered += 1
        view.show(html)


def pause_s(took_s: float) -> float:
    """Returns the pause after an update of all views that took this long, in seconds."""
    return min(_LONGEST_TICK_S, max(TICK_S, _PAUSE_FACTOR * took_s))


class _View:
    """The HTML of one view, and the event that wakes its tabs."""

    def __init__(self, render: RenderView, tenant: str) -> None:
        self.render = render
        self.tenant = tenant
        self.html = ""
        self.number = -1
        self.is_stale = False
        """True if the last update failed."""
        self.tabs = 0
        self.changed = asyncio.Event()

    def show(self, html: str) -> None:
        """Stores the HTML, and wakes the tabs if it has changed or was out of date."""
        if html == self.html and not self.is_stale:
            return
        self.number += html != self.html
        self.html, self.is_stale = html, False
        self._wake()

    def fail(self) -> None:
        """Notes that the HTML is out of date."""
        if not self.is_stale:
            self.is_stale = True
            self._wake()

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def _event(html: str, number: int) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"id: {number}\n{lines}\n"
