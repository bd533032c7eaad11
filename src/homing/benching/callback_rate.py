"""Measures how fast signed status callbacks, as sent by Twilio, are processed, one per call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from homing.benching import InvalidMeasurement
from homing.benching.delivery_rate import SETTLED_WITHIN_S
from homing.benching.report import Figure
from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import WorkerProcesses, run_homing_worker
from homing.benching.workload import TEXT, BenchContext, BenchPlan, accept_all, check_store
from homing.core.lifecycle.receipts import Callback
from homing.library import Homing
from homing.providers.twilio.callbacks import compute_signature

CALLERS = 64

_TOKEN = "a-test-token"  # noqa: S105 (test token: the benchmark signs its own callbacks)

_URL = "https://notify.example.org/callbacks/twilio"

NAME = f"status callbacks of Twilio, {CALLERS} at once"


def count_steps(plan: BenchPlan, postgres: bool) -> int:
    """Returns the number of steps, for the progress bar."""
    return plan.rounds


async def measure(stage: BenchContext) -> AsyncIterator[Figure]:
    """Measures callbacks that are verified, parsed and stored before the call returns."""
    found = await stage.run_alternating("callbacks", {NAME: lambda: measure_callback_rate(stage)})
    yield Figure(part="callbacks", name=NAME, store=stage.store, unit="/s", rounds=found[NAME])


async def measure_callback_rate(stage: BenchContext) -> float:
    """Sends text messages through the Twilio provider, then times a delivery callback for each."""
    count = stage.plan.callbacks
    stage.sink.reset()
    async with open_scratch_store(stage.server) as place:
        settings = place.settings(providers={"twilio": _twilio(stage.sink.port)})
        async with Homing(loaded_settings=settings) as homing:
            accepted = await accept_all(homing, (_text(number) for number in range(count)))
            with WorkerProcesses(run_homing_worker, settings, 1) as workers:
                workers.begin()
                await workers.finish(count, SETTLED_WITHIN_S)
            await check_store(homing, place, sent=accepted)
            took_s = await _post_callbacks(homing, [_delivered(number) for number in range(count)])
            await check_store(homing, place, delivered=accepted)
    return count / took_s


async def _post_callbacks(homing: Homing, callbacks: list[Callback]) -> float:
    left = iter(callbacks)

    async def caller() -> None:
        for callback in left:
            result = await homing.handle_callback("twilio", callback)
            if result.applied != 1:
                raise InvalidMeasurement(f"a callback was not applied: {result}")

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return time.perf_counter() - began


def _twilio(port: int) -> dict[str, Any]:
    """Returns the settings of a Twilio provider that sends to the sink, which assigns the message ids."""
    return {
        "account_sid": "AC" + "0" * 32,
        "auth_token": _TOKEN,
        "sender": "+15550000",
        "base_url": f"http://127.0.0.1:{port}",
        "max_in_flight": 256,
    }


def _text(number: int) -> dict[str, Any]:
    return {
        "recipient": {"phone": f"+1555{number:07}"},
        "channel": "sms",
        "type": "order_shipped",
        "content": {"text": TEXT[:150]},
    }


def _delivered(number: int) -> Callback:
    params = [
        ("AccountSid", "AC" + "0" * 32),
        ("MessageSid", f"SM{number:032x}"),
        ("MessageStatus", "delivered"),
        ("To", f"+1555{number:07}"),
        ("From", "+15550000"),
        ("ApiVersion", "2010-04-01"),
    ]
    return Callback(
        url=_URL,
        headers={
            "content-type": "application/x-www-form-urlencoded",
            "x-twilio-signature": compute_signature(_TOKEN, _URL, params),
        },
        body=urlencode(params).encode(),
    )
