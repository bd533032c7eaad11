"""`homing demo`: what a newcomer sees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from homing import compose
from homing.cli.demo.fake_providers import SETTINGS, DemoProvider, build_demo_engine
from homing.cli.demo.live_story import LiveStory
from homing.core.routing.breaker import Phase
from support.cli_driver import Cli


@pytest.mark.slow
def test_the_demo_shows_an_outage_a_dead_letter_and_a_killed_worker_and_loses_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    shown = cli.ok("demo", "--terminal", "--keep", TMPDIR=str(tmp_path))
    order = (
        "Notifications are accepted, stored, and delivered",
        "✓ pigeon sent #1",
        "Pigeon has an outage",
        "503 service unavailable – goes to hawk at once",
        "pigeon's breaker opens",
        "✓ hawk sent",
        "Pigeon comes back",
        "pigeon's breaker is half open: one trial is sent",
        "pigeon's breaker closes",
        "A failure that no retry can fix",
        "– dead letter (BAD_RECIPIENT)",
        "1 × BAD_RECIPIENT: 550 no such mailbox: g•••@example.org",
        "an operator resends",
        "delivered as #32",
        "A worker is killed in the middle of its work",
        "kill -9",
        "lost with their worker: #33",
        "Totals after",
        "nothing is lost",
        "What to type next",
    )
    place = 0
    for part in order:
        found = shown.out.find(part, place)
        assert found >= 0, f"{part!r} does not come after {shown.out[place:][:80]!r}\n{shown.out}"
        place = found
    assert "longer than usual" not in shown.out

    (folder,) = tmp_path.glob("homing-demo-*")
    left = Cli(folder)
    counts = left.ok("stats", "--json").json["queueCounts"]
    assert {status: count for status, count in counts.items() if count} == {"sent": 39, "failed": 1}


@pytest.mark.slow
async def test_the_button_that_kills_a_worker_loses_its_attempts_and_blames_no_provider(
    tmp_path: Path,
) -> None:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    pigeon, hawk = DemoProvider("pigeon"), DemoProvider("hawk")
    backend = compose.build_store(str(tmp_path / "homing.db"))
    async with build_demo_engine(tmp_path, backend, pigeon, hawk) as homing, asyncio.timeout(60):
        homing.start_worker()
        story = LiveStory(homing, tmp_path, pigeon, hawk)
        await story.events["kill-a-worker"]()
        while (await homing.queue_counts())["sent"] < 12:  # noqa: ASYNC110 (polls the store)
            await asyncio.sleep(0.1)
        page = await homing.list()
        histories = [await homing.history(one.id) for one in page.items]
        outcomes = {attempt.outcome.value for one in histories for attempt in one.attempts}
        assert outcomes == {"lost", "accepted"}
        assert {one.breaker.phase for one in await homing.providers()} == {Phase.CLOSED}
        await homing.stop_worker()
