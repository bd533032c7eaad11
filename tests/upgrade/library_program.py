"""A program that uses the public API of the library, with whichever build is first on the import path.

    PYTHONPATH=older/src python tests/upgrade/library_program.py homing.db

Each line of its input is a call, as the JSON array [name, argument], and each line of its output is the
result, as JSON. It uses only what an older build has as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import homing
from homing import Homing

RULES = [{"name": "quick", "max_attempts": 2, "base_ms": "1ms", "cap_ms": "1ms", "jitter": "none"}]


class Program:
    """The calls of the program."""

    def __init__(self, store: str) -> None:
        self.events: list[tuple[str, str | None]] = []
        self.reachable = True
        self.engine = Homing(
            store,
            providers={"pigeon": self._deliver},
            rules=RULES,
            on_event=self._hear,
            config_file="/dev/null",
        )

    async def build(self, _: Any) -> str:
        """Returns the path of the package."""
        return str(homing.__file__)

    async def reach(self, reachable: bool) -> None:
        """Sets whether the provider can be reached."""
        self.reachable = reachable

    async def send(self, address: str) -> str | None:
        return (await self.engine.send(address, channel="email", subject="Hi", body="Hello")).id

    async def process(self, ids: list[str]) -> None:
        """Processes whatever is due until all these notifications have ended."""
        while any(await asyncio.gather(*map(self._is_waiting, ids))):
            await self.engine.process()
            await asyncio.sleep(0.01)

    async def status(self, id: str) -> tuple[str, int, str | None]:
        found = await self.engine.get(id)
        return found.status.value, found.attempt_count, found.last_error

    async def attempts(self, id: str) -> list[str]:
        return [attempt.outcome.value for attempt in (await self.engine.history(id)).attempts]

    async def retry(self, id: str) -> None:
        await self.engine.retry(id)

    async def resend(self, id: str) -> str:
        return await self.engine.resend(id)

    async def acknowledge(self, id: str) -> None:
        await self.engine.acknowledge(id, who="ada")

    async def cancel(self, id: str) -> bool:
        return await self.engine.cancel(id)

    async def publish(self, _: Any) -> None:
        """Publishes events that are waiting."""
        await self.engine.process()

    async def heard(self, _: Any) -> list[tuple[str, str | None]]:
        """Returns (id, id of the notification) of the events that this program has published."""
        return self.events

    async def _is_waiting(self, id: str) -> bool:
        return (await self.engine.get(id)).status.value in ("pending", "sending", "retrying")

    def _deliver(self, _: Any) -> None:
        if not self.reachable:
            raise ConnectionRefusedError("the loft is closed")

    def _hear(self, event: Any) -> None:
        self.events.append((event.id, event.notification_id))


async def main(store: str) -> None:
    program = Program(store)
    async with program.engine:
        print("null", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, argument = json.loads(line)
            print(json.dumps(await getattr(program, name)(argument)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
