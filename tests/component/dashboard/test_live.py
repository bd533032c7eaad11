"""Live updates: one tick for all tabs, and streams that end with their session and with the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from homing.core.errors import NotFound, StoreUnavailable
from homing.dashboard import live as module
from homing.dashboard.live import FORM_TOKEN_PLACE, LiveFeed


class Source:
    """A view whose text a test changes."""

    def __init__(self, text: str = "one") -> None:
        self.text = text
        self.calls = 0

    async def render(self) -> str:
        self.calls += 1
        return self.text


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)


async def first(stream: AsyncIterator[str]) -> str:
    async with asyncio.timeout(60):
        return await anext(stream)


async def test_all_tabs_of_a_view_share_one_rendering_with_their_own_form_tokens() -> None:
    feed, source = LiveFeed(), Source(f"<input value={FORM_TOKEN_PLACE}>\n<b>")
    tabs = [feed.watch("now", "acme", source.render, yes, f"token{number}") for number in range(20)]
    events = await asyncio.gather(*(first(tab) for tab in tabs))
    assert events[7] == "id: 0\ndata: <input value=token7>\ndata: <b>\n\n"
    calls, seconds = source.calls, [asyncio.create_task(first(tab)) for tab in tabs]
    source.text = "two"
    assert set(await asyncio.gather(*seconds)) == {"id: 1\ndata: two\n\n"}
    assert feed.streams == 20
    assert source.calls - calls < 20, "not one rendering per tab"
    for tab in tabs:
        await tab.aclose()  # type: ignore[attr-defined]
    assert feed.streams == 0


async def test_nothing_is_rendered_while_no_tab_is_open() -> None:
    feed, source = LiveFeed(), Source()
    tab = feed.watch("now", "acme", source.render, yes, "")
    await first(tab)
    await tab.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    calls = source.calls
    await asyncio.sleep(0.05)
    assert source.calls == calls
    assert await first(feed.watch("now", "acme", source.render, yes, "")) == "id: 0\ndata: one\n\n"


async def test_a_stream_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_S", 0.0)
    feed, source = LiveFeed(), Source()
    async with asyncio.timeout(60):
        assert [event async for event in feed.watch("now", "acme", source.render, no, "")][1:] == []


async def test_a_stream_ends_when_the_process_stops() -> None:
    feed, source, stopping = LiveFeed(), Source(), False
    feed.stopping = lambda: stopping
    stream = feed.watch("now", "acme", source.render, yes, "")
    await first(stream)
    stopping = True
    async with asyncio.timeout(60):
        assert [event async for event in stream] == []


async def test_a_view_that_cannot_be_rendered_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def gone() -> str:
        raise NotFound("it was purged")

    async def broken() -> str:
        raise RuntimeError("secret")

    feed, source = LiveFeed(), Source()
    waiting = [
        asyncio.create_task(first(feed.watch(key, "acme", render, yes, "")))
        for key, render in (("gone", gone), ("broken", broken))
    ]
    assert "one" in await first(feed.watch("now", "acme", source.render, yes, ""))
    assert "RuntimeError" in caplog.text
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_tab_learns_that_its_figures_are_out_of_date_and_when_they_are_current_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    monkeypatch.setattr(module, "_RENDER_S", 0.01)
    answers = True

    async def render() -> str:
        if not answers and hangs:
            await asyncio.sleep(3_600)
        if not answers:
            raise StoreUnavailable("no connection")
        return "one"

    feed = LiveFeed()
    tab = feed.watch("now", "acme", render, yes, "")
    assert await first(tab) == "id: 0\ndata: one\n\n"
    answers = False
    assert await first(tab) == module.STALE
    opened_meanwhile = feed.watch("now", "acme", render, yes, "")
    assert await first(opened_meanwhile) == "id: 0\ndata: one\n\n"
    assert await first(opened_meanwhile) == module.STALE
    assert caplog.text.count("TimeoutError" if hangs else "StoreUnavailable") == 1, "a line when it begins"
    answers = True
    assert await first(tab) == module.CURRENT, "although the figures are the same"


async def test_the_number_of_streams_and_views_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VIEWS", 1)
    monkeypatch.setattr(module, "MAX_STREAMS", 2)
    feed, source = LiveFeed(), Source()
    assert not feed.is_full("now", "acme")
    await first(feed.watch("now", "acme", source.render, yes, ""))
    assert feed.is_full("another view", "rival")
    assert not feed.is_full("now", "acme")
    await first(feed.watch("now", "acme", source.render, yes, ""))
    assert feed.is_full("now", "rival")


async def test_the_tabs_of_one_tenant_never_stop_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, source = LiveFeed(), Source()

    async def open_all(most: int, view: str) -> int:
        opened = list[AsyncIterator[str]]()
        while len(opened) < most and not feed.is_full(view.format(len(opened)), "acme"):
            opened.append(feed.watch(view.format(len(opened)), "acme", source.render, yes, ""))
            await first(opened[-1])
        assert not feed.is_full("own", "rival")
        for stream in opened:
            await stream.aclose()  # type: ignore[attr-defined]
        return len(opened)

    monkeypatch.setattr(module, "MAX_VIEWS", 4)
    assert await open_all(4, "view {}") == 3
    monkeypatch.setattr(module, "MAX_STREAMS", 8)
    assert await open_all(8, "one view") == 6
    assert await open_all(8, "one view") == 6, "closed streams do not count"


def test_the_pause_after_an_update_grows_with_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 2.0)
    assert [module.pause_s(took_s) for took_s in (0.0, 0.04, 0.1, 60.0)] == [2.0, 2.0, 5.0, 10.0]


async def test_a_new_view_is_rendered_although_the_updates_of_others_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "pause_s", lambda took_s: 3_600.0)
    feed, source = LiveFeed(), Source()
    tab = feed.watch("now", "acme", source.render, yes, "")
    await first(tab)
    await asyncio.sleep(0.05)  # the long pause has begun
    other = feed.watch("waiting", "acme", source.render, yes, "")
    assert await first(other) == "id: 0\ndata: one\n\n"
    for stream in (tab, other):
        await stream.aclose()  # type: ignore[attr-defined]
