"""Providers that need no account: console, file, Python function, and the scripted one."""

from __future__ import annotations

import asyncio
import io
import resource
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from homing import Channel, Content, Delivery, Outcome, OutcomeKind, Priority, Recipient
from homing.providers.common.thread_pool import ThreadPool
from homing.providers.local.console import ConsoleProvider
from homing.providers.local.file import FileProvider
from homing.providers.local.function import FunctionProvider
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import Silent

K = OutcomeKind


def a_delivery(**fields: Any) -> Delivery:
    given: dict[str, Any] = {
        "notification_id": "n-1",
        "tenant": "acme",
        "channel": Channel.EMAIL,
        "type": "order",
        "priority": Priority.HIGH,
        "recipient": Recipient(email="ada@example.org"),
        "address": "ada@example.org",
        "content": Content(subject="Order 7", body="On its way"),
        "idempotency_key": "n-1",
        "attempt": 2,
        "timeout_ms": 60_000,
        "metadata": {"entry_id": 7},
        **fields,
    }
    return Delivery(**given)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


# Console -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Content(subject="S", title="T", body="B"), "S"),
        (Content(title="T", body="B"), "T"),
        (Content(text="X", body="B"), "X"),
        (Content(body="two\n  lines\x0bof\ttext"), "two lines of text"),
        (Content(data={"a": 1}), ""),
    ],
)
async def test_the_console_prints_one_readable_line(content: Content, said: str) -> None:
    stream = io.StringIO()
    outcome = await ConsoleProvider(stream).send(a_delivery(content=content))
    assert stream.getvalue() == f"[email] to ada@example.org: {said}\n"
    assert outcome == Outcome(K.ACCEPTED, provider_message_id="console-n-1")


async def test_the_console_prints_to_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    provider = ConsoleProvider()
    await provider.send(a_delivery())
    assert capsys.readouterr().out == "[email] to ada@example.org: Order 7\n"
    assert await provider.check()
    await provider.close()


async def test_a_closed_stream_is_a_transient_failure() -> None:
    stream = io.StringIO()
    stream.close()
    outcome = await ConsoleProvider(stream).send(a_delivery())
    assert (outcome.kind, outcome.error_code) == (K.TRANSIENT, "console")


# File --------------------------------------------------------------------------------------------------


async def test_the_file_gets_one_json_line_per_message(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    provider = FileProvider(path)
    for number in range(2):
        outcome = await provider.send(a_delivery(notification_id=f"n-{number}"))
        assert outcome == Outcome(K.ACCEPTED, provider_message_id=f"file-n-{number}")
    assert lines_of(path) == [
        {
            "notificationId": f"n-{number}",
            "tenant": "acme",
            "channel": "email",
            "type": "order",
            "to": "ada@example.org",
            "attempt": 2,
            "content": {"subject": "Order 7", "body": "On its way"},
            "metadata": {"entry_id": 7},
        }
        for number in range(2)
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await provider.close()


async def test_concurrent_writes_keep_lines_whole(tmp_path: Path) -> None:
    provider = FileProvider(tmp_path / "out.jsonl")
    content = Content(body="x" * 20_000)
    await asyncio.gather(
        *(provider.send(a_delivery(notification_id=f"n-{n}", content=content)) for n in range(40))
    )
    assert {line["notificationId"] for line in lines_of(tmp_path / "out.jsonl")} == {
        f"n-{n}" for n in range(40)
    }


async def test_a_missing_folder_is_a_transient_failure(tmp_path: Path) -> None:
    provider = FileProvider(tmp_path / "missing" / "out.jsonl")
    outcome = await provider.send(a_delivery())
    assert (outcome.kind, outcome.error_code, outcome.error) == (
        K.TRANSIENT,
        "file",
        "No such file or directory",
    )
    assert not await provider.check()
    with pytest.raises(OSError, match=f"^the folder {tmp_path / 'missing'} does not exist$"):
        await provider.diagnose()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
async def test_a_full_disk_is_a_transient_failure() -> None:
    outcome = await FileProvider("/dev/full").send(a_delivery())
    assert (outcome.kind, outcome.error) == (K.TRANSIENT, "No space left on device")


async def test_a_line_that_did_not_fit_is_not_accepted_and_leaves_no_partial_line(tmp_path: Path) -> None:
    path, content = tmp_path / "out.jsonl", Content(body="x" * 700_000)
    provider = FileProvider(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        outcomes = [await provider.send(a_delivery(content=content)) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [outcome.kind for outcome in outcomes] == [K.ACCEPTED, K.TRANSIENT]
    await provider.send(a_delivery())
    assert len(lines_of(path)) == 2


async def test_the_file_provider_is_healthy_if_its_folder_is(tmp_path: Path) -> None:
    assert await FileProvider(str(tmp_path / "out.jsonl")).check()


# Function ----------------------------------------------------------------------------------------------


async def answering(answer: Any) -> Any:
    return answer


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, Outcome(K.ACCEPTED)),
        ("m-1", Outcome(K.ACCEPTED, provider_message_id="m-1")),
        (Outcome(K.THROTTLED, retry_after_ms=5), Outcome(K.THROTTLED, retry_after_ms=5)),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_function_returns_nothing_an_id_or_an_outcome(
    answer: Any, outcome: Outcome, kind: str
) -> None:
    provider = FunctionProvider((lambda d: answer) if kind == "plain" else lambda d: answering(answer))
    assert await provider.send(a_delivery()) == outcome
    assert await provider.check()
    await provider.close()


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("error", "text"), [(LookupError("no such mailbox"), "no such mailbox"), (Silent(), "Silent")]
)
async def test_a_function_that_raises_counts_as_not_sent(kind: str, error: Exception, text: str) -> None:
    def plain(delivery: Delivery) -> None:
        raise error

    async def slow(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        raise error

    outcome = await FunctionProvider(plain if kind == "plain" else slow).send(a_delivery())
    assert outcome == Outcome(K.TRANSIENT, error_code=type(error).__name__, error=text)


def _generated(answer: object) -> Iterator[object]:
    yield answer


async def _streamed(answer: object) -> AsyncIterator[object]:
    yield answer


@pytest.mark.parametrize(
    ("answer", "type_"),
    [
        (False, "bool"),
        (True, "bool"),
        (0, "int"),
        (200, "int"),
        (b"m-1", "bytes"),
        ({"id": "ada@example.org"}, "dict"),
        (("m-1",), "tuple"),
        (SimpleNamespace(status_code=202), "SimpleNamespace"),
        (_generated("m-1"), "generator"),
        (_streamed("m-1"), "async_generator"),
        (K.ACCEPTED, "OutcomeKind"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_any_other_result_of_a_function_is_a_fault_that_says_what_to_return(
    answer: object, type_: str, kind: str
) -> None:
    def plain(delivery: Delivery) -> Any:
        return answer

    async def slow(delivery: Delivery) -> Any:
        return answer

    outcome = await FunctionProvider(plain if kind == "plain" else slow).send(a_delivery())
    assert (outcome.kind, outcome.error_code) == (K.PROVIDER_FAULT, "invalid_result")
    assert outcome.error == (
        f"the function returned a value of type {type_}; it must return None or a message id (str) if the "
        "message was accepted, or else an Outcome, or raise"
    )


class _Callable:
    """An object with an async `__call__`."""

    async def __call__(self, delivery: Delivery) -> str:
        return threading.current_thread().name


class _PlainCallable:
    def __call__(self, delivery: Delivery) -> str:
        return threading.current_thread().name


async def _thread_name(greeting: str, delivery: Delivery) -> str:
    return threading.current_thread().name


def _plain_thread_name(greeting: str, delivery: Delivery) -> str:
    return threading.current_thread().name


@pytest.mark.parametrize("function", [_Callable(), partial(_thread_name, "hello"), _Callable().__call__])
async def test_an_async_function_runs_on_the_event_loop(function: Any) -> None:
    provider = FunctionProvider(function)
    assert (await provider.send(a_delivery())).provider_message_id == threading.current_thread().name


@pytest.mark.parametrize(
    "function",
    [_PlainCallable(), partial(_plain_thread_name, "hello"), lambda d: threading.current_thread().name],
)
async def test_a_plain_function_runs_in_a_thread(function: Any) -> None:
    provider = FunctionProvider(function)
    name = (await provider.send(a_delivery())).provider_message_id
    assert name != threading.current_thread().name
    await provider.close()


async def test_what_a_plain_function_returns_is_awaited_on_the_event_loop() -> None:
    called: list[str] = []

    def make(delivery: Delivery) -> Any:
        called.append(threading.current_thread().name)
        return _thread_name("hello", delivery)

    provider = FunctionProvider(make)
    assert (await provider.send(a_delivery())).provider_message_id == threading.current_thread().name
    assert called != [threading.current_thread().name]


async def test_a_plain_function_sees_the_context_of_its_attempt() -> None:
    trace: ContextVar[str] = ContextVar("trace")
    trace.set("t-1")
    assert (await FunctionProvider(lambda d: trace.get()).send(a_delivery())).provider_message_id == "t-1"


async def test_a_plain_function_may_raise_what_a_future_refuses() -> None:
    def stop(delivery: Delivery) -> None:
        next(iter(()))

    outcome = await FunctionProvider(stop).send(a_delivery())
    assert (outcome.kind, outcome.error_code) == (K.TRANSIENT, "RuntimeError")


async def test_a_cancelled_attempt_ends_when_its_plain_function_returns() -> None:
    begun, end = threading.Event(), threading.Event()

    def block(delivery: Delivery) -> None:
        begun.set()
        end.wait(60)

    task = asyncio.create_task(FunctionProvider(block).send(a_delivery()))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()  # the thread still runs, so the attempt keeps its slot
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_closing_ends_an_attempt_whose_plain_function_never_returns() -> None:
    begun, end = threading.Event(), threading.Event()

    def block(delivery: Delivery) -> None:
        begun.set()
        end.wait(60)

    pool = ThreadPool[Any]("pool", 1)
    provider = FunctionProvider(block)
    provider.use_threads(pool)
    task = asyncio.create_task(provider.send(a_delivery()))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await pool.close(within_ms=0)
    with pytest.raises(asyncio.CancelledError):
        await task
    end.set()


async def test_a_function_gets_the_whole_delivery() -> None:
    seen: list[Delivery] = []
    await FunctionProvider(seen.append).send(a_delivery())
    assert seen == [a_delivery()]


async def test_cancelling_an_attempt_cancels_its_function() -> None:
    async def forever(delivery: Delivery) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(FunctionProvider(forever).send(a_delivery()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Scripted ----------------------------------------------------------------------------------------------


async def test_the_script_is_played_and_then_the_default_answer() -> None:
    script: list[Any] = [
        K.TRANSIENT,
        Outcome(K.ACCEPTED, provider_message_id="own"),
        lambda d: Outcome(K.OPTED_OUT),
    ]
    provider = ScriptedProvider("p", script, usual=K.ACCEPTED)
    outcomes = [await provider.send(a_delivery(attempt=n)) for n in range(4)]
    assert outcomes == [
        Outcome(K.TRANSIENT, error_code="transient", error="p returned transient"),
        Outcome(K.ACCEPTED, provider_message_id="own"),
        Outcome(K.OPTED_OUT, error_code="opted_out", error="p returned opted_out"),
        Outcome(K.ACCEPTED, provider_message_id="p-4"),
    ]
    assert [delivery.attempt for delivery in provider.sent] == [0, 1, 2, 3]


async def test_an_error_of_the_script_is_kept() -> None:
    own = Outcome(K.TRANSIENT, error_code="503", error="down for lunch")
    assert await ScriptedProvider(usual=own).send(a_delivery()) == own


async def test_its_health_can_be_set() -> None:
    provider = ScriptedProvider()
    assert await provider.check()
    provider.up = False
    assert not await provider.check()
    await provider.close()


async def test_a_hanging_step_never_answers() -> None:
    provider = ScriptedProvider(script=[HANG], latency_ms=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(provider.send(a_delivery()), 0.02)
    assert (await provider.send(a_delivery())).kind is K.ACCEPTED
