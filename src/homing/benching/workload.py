"""The workload (numbered webhooks of about 350 bytes), the sizes of a run, and the measurement context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from homing.benching import InvalidMeasurement
from homing.benching.http_sink import HttpSink
from homing.benching.scratch_store import ScratchStore, is_mongo, is_postgres
from homing.core.notifications import Content, Recipient
from homing.core.send_request import SendRequest
from homing.engine.intake.accept import SendResult
from homing.library import Homing

TEXT = "Your order is on its way and should be with you on Thursday. " * 4


def build_request(number: int, url: str, *, send_at: datetime | None = None) -> SendRequest:
    """Builds a webhook request with content, so that no template is rendered."""
    return SendRequest(
        recipient=Recipient(url=f"{url}/{number}"),
        channel="webhook",
        type="order_shipped",
        content=Content(data={"n": number, "text": TEXT}),
        send_at=send_at,
    )


def build_requests(count: int, url: str) -> Iterator[SendRequest]:
    """Yields `count` requests, numbered from 0."""
    return (build_request(number, url) for number in range(count))


def build_payload(number: int) -> str:
    """Returns the payload for the bare queue: like the webhook provider's, but with a fixed timestamp."""
    body: dict[str, Any] = {
        "type": "order_shipped",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"n": number, "text": TEXT},
    }
    return msgspec.json.encode(body).decode()


async def accept_all(homing: Homing, wanted: Iterable[SendRequest | Mapping[str, Any]]) -> int:
    """Submits the requests with `send_many` and returns their number.

    Raises `InvalidMeasurement` if a request is rejected.
    """
    accepted = 0
    async for result in homing.send_many(wanted):
        if not isinstance(result, SendResult):
            raise InvalidMeasurement(f"a valid request was rejected: {result}")
        accepted += 1
    return accepted


async def check_store(homing: Homing, place: ScratchStore, **expected: int) -> None:
    """Checks that the store has the expected count per status, and one row per notification.

    Raises `InvalidMeasurement` otherwise.
    """
    counts = {status: count for status, count in (await homing.queue_counts()).items() if count}
    if counts != {status: count for status, count in expected.items() if count}:
        raise InvalidMeasurement(f"expected {expected}, but the store counts {counts}")
    if (rows := await place.rows()) != sum(expected.values()):
        raise InvalidMeasurement(f"expected {expected}, but the store has {rows:,} rows")


_T = TypeVar("_T")

OnText = Callable[[str], None]


class BenchPlan(Struct, frozen=True, kw_only=True):
    """The sizes of a run."""

    form: str
    rounds: int
    """Number of rounds. Compared measurements alternate within each round."""
    singles: int
    """Requests per round from one caller."""
    concurrent: int
    """Requests per round from 64 callers, or over 64 HTTP connections."""
    many: int
    """Requests per round through `send_many`, or in batches over HTTP."""
    deliveries: int
    """Notifications delivered per round."""
    due: int
    """Scheduled notifications per round, to measure lateness."""
    due_within_s: float
    """Time span in seconds over which the scheduled notifications become due."""
    lead_s: float
    """Time in seconds before the first scheduled notification is due, so that all are accepted by then."""
    backlog: int
    """Notifications that wait in the store during the second lateness measurement."""
    callbacks: int
    """Callbacks per round."""
    idle_s: float
    """Duration of the idle measurement, in seconds."""
    starts: int
    """Number of times that a worker is started, to measure its startup time."""
    costs: tuple[int, ...]
    """Store sizes for which the cost per notification is compared. Empty to skip the comparison."""


QUICK = BenchPlan(
    form="quick",
    rounds=2,
    singles=200,
    concurrent=2_000,
    many=5_000,
    deliveries=4_000,
    due=500,
    due_within_s=5,
    lead_s=3,
    backlog=20_000,
    callbacks=1_000,
    idle_s=4,
    starts=3,
    costs=(),
)

LONG = BenchPlan(
    form="long",
    rounds=5,
    singles=1_000,
    concurrent=10_000,
    many=50_000,
    deliveries=20_000,
    due=2_000,
    due_within_s=20,
    lead_s=3,
    backlog=1_000_000,
    callbacks=10_000,
    idle_s=30,
    starts=5,
    costs=(10_000, 1_000_000),
)


class BenchContext(Struct, frozen=True, kw_only=True):
    """Context of one measurement: the store server, the plan, the sink and progress callbacks."""

    server: str
    plan: BenchPlan
    sink: HttpSink
    step: OnText
    """Called before each step, with its name."""
    note: OnText
    """Called with a remark about each measurement that is skipped."""

    @property
    def postgres(self) -> bool:
        return is_postgres(self.server)

    @property
    def store(self) -> str:
        if is_mongo(self.server):
            return "MongoDB"
        return "PostgreSQL" if self.postgres else "SQLite"

    async def run_alternating(
        self, part: str, contestants: Mapping[str, Callable[[], Awaitable[_T]]], rounds: int | None = None
    ) -> dict[str, tuple[_T, ...]]:
        """Runs all contestants once per round, so that other load on the machine affects them equally."""
        found: dict[str, list[_T]] = {name: [] for name in contestants}
        for number in range(rounds or self.plan.rounds):
            for name, contestant in contestants.items():
                self.step(f"{part}: {name}, round {number + 1}")
                found[name].append(await contestant())
        return {name: tuple(values) for name, values in found.items()}
