"""Measures how fast requests are accepted. Each request is on disk before its caller gets the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from homing.benching.report import Figure
from homing.benching.scratch_store import ScratchStore, open_scratch_store
from homing.benching.workload import (
    TEXT,
    BenchContext,
    BenchPlan,
    accept_all,
    build_request,
    build_requests,
    check_store,
)
from homing.library import Homing

CALLERS = 64

ONE_CALLER, MANY_CALLERS = "one caller, one by one", f"{CALLERS} callers, one by one"

SEND_MANY, SEND_MANY_TEMPLATE = "send_many, content ready", "send_many, a template each"

_URL = "https://example.org/hook"

_TEMPLATE = {
    "email.subject.txt": "Order {{ number }} is on its way, {{ name }}",
    "email.txt": "Hello {{ name }},\n\n{% for item in items %}{{ item }}\n{% endfor %}\n" + TEXT,
}


AcceptMethod = Callable[[Homing, BenchPlan], Awaitable[int]]


class AcceptRound(Struct, frozen=True, kw_only=True):
    """Result of one round."""

    per_second: float
    cpu_us: float
    """CPU time of this process per request, in µs. Of all figures, it is the least affected by other load."""


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return plan.rounds * len(ACCEPT_METHODS)


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures the four ways to submit requests in Python."""
    found = await stage.run_alternating(
        "accept", {name: _one_round(stage, way) for name, way in ACCEPT_METHODS.items()}
    )
    against = {MANY_CALLERS: ONE_CALLER, SEND_MANY_TEMPLATE: SEND_MANY}
    for name, rounds in found.items():
        yield Figure(
            part="accept",
            name=name,
            store=stage.store,
            unit="/s",
            rounds=tuple(one.per_second for one in rounds),
            beside=against.get(name, ""),
        )
    for name, rounds in found.items():
        yield Figure(
            part="accept",
            name=f"{name}: CPU time per request",
            store=stage.store,
            unit="µs",
            rounds=tuple(one.cpu_us for one in rounds),
        )


def _one_round(stage: BenchContext, way: AcceptMethod) -> Callable[[], Awaitable[AcceptRound]]:
    async def one_round() -> AcceptRound:
        async with open_scratch_store(stage.server) as place:
            return await measure_accept_round(place, way, stage.plan)

    return one_round


async def measure_accept_round(place: ScratchStore, way: AcceptMethod, plan: BenchPlan) -> AcceptRound:
    """Runs one round and checks that the store has every accepted request."""
    async with Homing(loaded_settings=place.settings(**_with_templates(place))) as homing:
        # Warm-up: opens connections, prepares statements and compiles the template.
        before = await accept_all(homing, build_requests(100, _URL)) + await accept_all(homing, _templated(1))
        began, cpu_s = time.perf_counter(), time.process_time()
        count = await way(homing, plan)
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        await check_store(homing, place, pending=before + count)
    return AcceptRound(per_second=count / took_s, cpu_us=1e6 * cpu_s / count)


async def accept_one_by_one(homing: Homing, plan: BenchPlan) -> int:
    """Submits requests one after the other and returns their number."""
    for number in range(plan.singles):
        await homing.submit(build_request(number, _URL))
    return plan.singles


async def accept_concurrently(homing: Homing, plan: BenchPlan) -> int:
    """Submits requests from several callers, each waiting for its answer. Returns the number of requests."""
    left = iter(range(plan.concurrent))

    async def caller() -> None:
        for number in left:
            await homing.submit(build_request(number, _URL))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return plan.concurrent


async def accept_many(homing: Homing, plan: BenchPlan) -> int:
    """Submits requests with `send_many` and returns their number."""
    return await accept_all(homing, build_requests(plan.many, _URL))


async def accept_many_templated(homing: Homing, plan: BenchPlan) -> int:
    """Submits requests with `send_many`, each rendered from a template. Returns the number of requests."""
    return await accept_all(homing, _templated(plan.many))


ACCEPT_METHODS: Mapping[str, AcceptMethod] = {
    ONE_CALLER: accept_one_by_one,
    MANY_CALLERS: accept_concurrently,
    SEND_MANY: accept_many,
    SEND_MANY_TEMPLATE: accept_many_templated,
}


def _templated(count: int) -> Iterator[Mapping[str, Any]]:
    for number in range(count):
        yield {
            "recipient": {"email": f"ada-{number}@example.org"},
            "channel": "email",
            "template_key": "order_shipped",
            "data": {"name": "Ada", "number": number, "items": ["a lamp", "two chairs"]},
        }


def _with_templates(place: ScratchStore) -> dict[str, Any]:
    """Writes a template folder and returns settings for it and for an email provider."""
    folder = place.folder / "templates"
    texts = folder / "order_shipped" / "en-US"
    texts.mkdir(parents=True, exist_ok=True)
    for name, text in _TEMPLATE.items():
        (texts / name).write_text(text, encoding="utf-8")
    mail = {"kind": "file", "path": str(place.folder / "mails.jsonl"), "channels": ["email"]}
    return {"templates": {"folder": str(folder)}, "providers": {"mail": mail}}
