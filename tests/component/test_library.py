"""Homing as a library: the async class, the synchronous one, and the public names."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import homing
from homing import (
    CommandName,
    CommandRefused,
    ConfigError,
    Content,
    Delivery,
    Homing,
    InvalidRequest,
    NotFound,
    Outcome,
    OutcomeKind,
    Recipient,
    Rejection,
    SendRequest,
    SendResult,
    Status,
    SyncHoming,
    sync_library,
)
from homing.core.notifications import Filter
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.audit import AuditTrail
from homing.engine.access.tenants import Tenants
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks
from homing.engine.operations.jobs import Jobs
from homing.engine.operations.policies import Policies
from homing.engine.operations.recipients import Recipients
from homing.engine.operations.templates import Templates
from homing.engine.tenant_api import TenantApi
from homing.sync_library import (
    SyncAudit,
    SyncJobs,
    SyncKeys,
    SyncPart,
    SyncPolicies,
    SyncRecipients,
    SyncTemplates,
    SyncTenantApi,
    SyncTenants,
    SyncUnsubscribeLinks,
)
from homing.testing.fault_server import FaultServer
from support.event_loops import LoopKind

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FAST: list[dict[str, Any]] = [{"name": "fast", "base_ms": 5, "factor": 1.0, "cap_ms": 0, "jitter": "none"}]

BODY = Content(body="x")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def quiet(delivery: Delivery) -> None:
    """Accepts everything silently."""


@pytest.fixture
def sync() -> Iterator[SyncHoming]:
    with SyncHoming("memory:", providers={"mail": quiet}) as opened:
        yield opened


# Public names ------------------------------------------------------------------------------------------


def test_every_public_name_exists() -> None:
    for name in homing.__all__:
        assert getattr(homing, name) is not None
    assert sorted(homing.__all__) == list(homing.__all__) == dir(homing)
    with pytest.raises(AttributeError, match="has no attribute 'Pigeon'"):
        _ = homing.Pigeon


def test_importing_homing_loads_very_little() -> None:
    code = "import sys, homing; print(sorted(m for m in sys.modules if m.startswith('homing')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['homing']"


# The async class ---------------------------------------------------------------------------------------


async def test_the_first_example_works(capsys: pytest.CaptureFixture[str]) -> None:
    async with Homing("memory:", worker=True) as engine:
        sent = await engine.send("ada@example.org", channel="email", subject="Hi", body="Hello Ada")
        done = await engine.wait(sent.id)
    assert done.status is Status.SENT
    assert capsys.readouterr().out == "[email] to ada@example.org: Hi\n"


async def test_a_function_is_a_provider_and_is_retried_if_it_raises() -> None:
    asked: list[int] = []

    async def flaky(delivery: Delivery) -> Outcome | str:
        asked.append(delivery.attempt)
        if len(asked) < 3:
            raise ConnectionError("not yet")
        return "m-1"

    async with Homing("memory:", providers={"mine": flaky}, worker=True, rules=FAST) as engine:
        sent = await engine.send("ada@example.org", channel="email", body="Hello")
        done = await engine.wait(sent.id, timeout_ms=60_000)
    assert (done.status, asked) == (Status.SENT, [1, 2, 3])
    assert done.provider_message_ids == (None, None, "m-1")


def test_a_provider_that_is_neither_object_nor_function_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"providers\.mail: is a dict; give an object with send"):
        Homing("memory:", providers={"mail": {"kind": "file"}})  # type: ignore[dict-item]


async def test_events_reach_a_function_of_the_program() -> None:
    heard: list[str] = []
    refuse = Outcome(OutcomeKind.BAD_CONTENT)
    async with Homing(
        "memory:",
        providers={"mail": lambda delivery: refuse},
        worker=True,
        on_event=lambda event: heard.append(event.name),
        events=["NotificationFailed"],
    ) as engine:
        await engine.wait((await engine.send("a@example.org", channel="email", body="x")).id)
    assert heard == ["NotificationFailed"]


async def test_a_worker_is_started_only_on_request() -> None:
    async with Homing("memory:", providers={"mail": quiet}) as engine:
        sent = await engine.send("a@example.org", channel="email", body="x")
        await asyncio.sleep(0.02)
        assert (await engine.get(sent.id)).status is Status.PENDING
        assert (await engine.process()).succeeded == 1


async def test_a_misspelt_setting_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="did you mean preset"):
        Homing("memory:", prest="simple")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bdy", "did you mean body?"),
        ("idempotencykey", "did you mean idempotency_key?"),
        ("x", "subject, title, body"),
    ],
)
async def test_a_misspelt_argument_of_send_is_refused_with_the_right_one(name: str, hint: str) -> None:
    wrong: dict[str, Any] = {name: "Hello"}
    async with Homing("memory:") as homing:
        with pytest.raises(InvalidRequest, match=f"{name}: is not known; .*") as caught:
            await homing.send("ada@example.org", channel="email", **wrong)
        assert hint in caught.value.message
        assert (await homing.list()).items == ()
        kept = await homing.send(
            "ada@example.org", channel="email", body="x", idempotencyKey="both spellings"
        )
    assert kept.status == "queued"


async def test_the_settings_file_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('tenant = "acme"\nstore = "memory:"\n', encoding="utf-8")
    assert Homing(config_file=file).tenant == "acme"


async def test_environment_variables_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMING_TENANT", "acme")
    monkeypatch.setenv("HOMING_STORE", "memory:")
    assert Homing().tenant == "acme"


# The synchronous class ---------------------------------------------------------------------------------


def test_the_synchronous_class_sends_reads_and_commands(sync: SyncHoming) -> None:
    sent = sync.send("a@example.org", channel="email", body="x")
    assert sync.get(sent.id).status is Status.PENDING
    assert [n.id for n in sync.list(Filter(statuses=(Status.PENDING,)), limit=5).items] == [sent.id]
    assert sync.cancel(sent.id, who="ada", why="typo") is True
    assert sync.retry(sent.id, who="ada").status is Status.PENDING
    done = sync.process()
    assert (done.processed, done.succeeded) == (1, 1)
    assert sync.explain(sent.id).verdict == "sent by mail at attempt 1"
    assert sync.call(lambda engine: engine.history(sent.id)) == sync.history(sent.id)


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    """Returns the signature of each public method."""
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: inspect.signature(method) for name, method in found.items() if callable(method)}


OWN_SIGNATURES = {"send_many", "submit_many", "of"}
"""Methods that are written out: they take only synchronous iterables, or return another class."""


@pytest.mark.parametrize(
    ("kind", "sync_kind", "only_async", "only_sync"),
    [
        (Homing, SyncHoming, set(), {"call"}),
        (TenantApi, SyncTenantApi, set(), set()),
        (Recipients, SyncRecipients, set(), set()),
        (Templates, SyncTemplates, set(), set()),
        (Policies, SyncPolicies, set(), set()),
        (Tenants, SyncTenants, set(), set()),
        (ApiKeyManager, SyncKeys, {"close"}, set()),
        (AuditTrail, SyncAudit, set(), set()),
        (Jobs, SyncJobs, {"close"}, set()),
        (UnsubscribeLinks, SyncUnsubscribeLinks, set(), set()),
    ],
)
def test_the_synchronous_classes_have_every_method_under_the_same_name(
    kind: type, sync_kind: type, only_async: set[str], only_sync: set[str]
) -> None:
    expected, found = public_methods(kind), public_methods(sync_kind)
    assert set(found) - only_sync == set(expected) - only_async
    for name in set(found) - only_sync - OWN_SIGNATURES:
        assert list(found[name].parameters) == list(expected[name].parameters), name


def test_the_classes_show_real_signatures_and_docstrings() -> None:
    assert inspect.signature(SyncHoming) == inspect.signature(Homing)
    assert inspect.signature(SyncHoming.send) == inspect.signature(Homing.send)
    for kind in (Homing, SyncHoming):
        for name, signature in public_methods(kind).items():
            assert inspect.getdoc(getattr(kind, name)), name
            catch_all = [one.name for one in signature.parameters.values() if one.kind is one.VAR_POSITIONAL]
            assert not catch_all, name
    for name in ("get", "cancel", "submit", "providers", "readiness", "wait"):
        assert inspect.iscoroutinefunction(getattr(Homing, name)), name
        assert not inspect.iscoroutinefunction(getattr(SyncHoming, name)), name


def test_the_synchronous_class_has_the_parts_of_the_engine() -> None:
    parts = {"policies", "recipients", "templates", "tenants", "keys", "audit", "jobs", "unsubscribe_links"}
    with SyncHoming("memory:", providers={"mail": quiet}) as sync:
        for name in parts:
            assert isinstance(getattr(sync, name), SyncPart), name
    engine = Homing("memory:", providers={"mail": quiet})
    used = {Policies, Recipients, Templates, Tenants, ApiKeyManager, AuditTrail, Jobs, UnsubscribeLinks}
    public = {name for name in dir(engine) if not name.startswith("_")}
    assert {name for name in public if type(getattr(engine, name)) in used} == parts


def test_the_synchronous_class_waits_streams_and_serves_other_tenants(sync: SyncHoming) -> None:
    acme = sync.of("acme")
    sent = acme.submit(SendRequest(recipient=Recipient(email="a@example.org"), channel="email", content=BODY))
    assert (sync.tenant, acme.tenant) == ("default", "acme")
    assert acme.queue_counts()["pending"] == 1
    assert sync.queue_counts()["pending"] == 0
    progress = list(acme.bulk(CommandName.CANCEL, Filter(), who="ada"))
    assert [(one.matched, one.done) for one in progress] == [(1, 1)]
    assert acme.get(sent.id).status is Status.CANCELLED
    sync.start_worker()
    first = sync.send("a@example.org", channel="email", body="x")
    assert sync.wait(first.id).status is Status.SENT
    sync.stop_worker()
    assert sync.calculate_delay(2, timedelta(minutes=1)) == timedelta(minutes=2)
    sync.recipients.put({"id": "ada", "email": "ada@example.org"}, who="ops")
    assert sync.recipients.get("ada").email == "ada@example.org"
    assert sync.recipients.of("acme").list() == ()


def test_a_callback_that_would_wait_for_its_own_thread_gets_an_error() -> None:
    problems: list[str] = []

    async def provider(delivery: Delivery) -> None:
        for call in (
            opened.queue_counts,
            lambda: opened.send("b@example.org", channel="email", body="x"),
        ):
            with pytest.raises(RuntimeError) as refused:
                call()
            problems.append(str(refused.value))

    with SyncHoming("memory:", providers={"mail": provider}) as opened:
        opened.send("a@example.org", channel="email", body="x")
        assert opened.process().succeeded == 1
    assert len(problems) == 2
    assert all("event loop" in problem for problem in problems)


def test_a_plain_provider_function_may_call_it() -> None:
    def provider(delivery: Delivery) -> str:
        return opened.get(delivery.notification_id).status.value

    with SyncHoming("memory:", providers={"mail": provider}) as opened:
        sent = opened.send("a@example.org", channel="email", body="x")
        assert opened.process().succeeded == 1
        assert opened.get(sent.id).provider_message_ids == ("sending",)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_provider_that_would_end_the_process_ends_only_its_attempt(error: BaseException, kind: str) -> None:
    async def on_the_loop(delivery: Delivery) -> None:
        raise error

    def in_a_thread(delivery: Delivery) -> None:
        raise error

    provider = on_the_loop if kind == "async" else in_a_thread
    with SyncHoming("memory:", providers={"mail": provider}) as opened:
        sent = opened.send("a@example.org", channel="email", body="x")
        opened.process()
        (attempt,) = opened.history(sent.id).attempts
        assert (attempt.outcome, attempt.error_code) == (OutcomeKind.AMBIGUOUS, "provider_error")
        assert type(error).__name__ in (attempt.error or "")


def test_a_callback_that_raises_system_exit_does_not_end_the_event_loop(sync: SyncHoming) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def schedule(engine: Homing) -> None:
        asyncio.get_running_loop().call_soon(leave)

    sync.call(schedule)
    assert sync.queue_counts()["pending"] == 0


def test_a_thread_that_has_ended_is_an_error_and_close_returns() -> None:
    opened = SyncHoming("memory:", providers={"mail": quiet})
    opened.open()
    thread = opened._thread
    thread._stopping = True
    thread._loop.call_soon_threadsafe(thread._loop.stop)
    thread._thread.join()
    with pytest.raises(RuntimeError, match="has ended"):
        opened.queue_counts()
    opened.close()
    with opened:
        assert opened.queue_counts()["pending"] == 0


def test_a_call_that_waits_while_the_thread_ends_is_an_error() -> None:
    opened = SyncHoming("memory:", providers={"mail": quiet})
    opened.open()
    thread = opened._thread

    async def end_the_thread(engine: Homing) -> None:
        thread._stopping = True
        thread._loop.stop()
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="has ended"):
        opened.call(end_the_thread)
    opened.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_gets_an_error_and_may_open_it_again(tmp_path: Path) -> None:
    with SyncHoming(tmp_path / "homing.db", providers={"mail": quiet}) as opened:
        opened.send("a@example.org", channel="email", body="x")
        child = os.fork()
        if child == 0:  # it leaves without running anything of the test's process
            code = 1
            try:
                with pytest.raises(RuntimeError, match="before this process was forked"):
                    opened.queue_counts()
                opened.close()
                opened.open()
                opened.send("b@example.org", channel="email", body="x")
                opened.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert opened.queue_counts()["pending"] == 2


def test_closing_ends_the_calls_of_other_threads() -> None:
    with ThreadPoolExecutor() as threads:
        with SyncHoming("memory:", providers={"mail": quiet}) as sync:
            sent = sync.send("a@example.org", channel="email", body="x")
            waiting = threads.submit(sync.wait, sent.id, timeout_ms=3_600_000)
            begun = threading.Event()
            sync.call(lambda _: _set(begun))
            assert begun.wait(10)
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(10)


async def _set(event: threading.Event) -> None:
    event.set()


def test_a_stream_that_is_left_early_is_closed(sync: SyncHoming) -> None:
    for number in range(150):
        sync.send(f"p{number}@example.org", channel="email", body="x")
    stream = sync.bulk(CommandName.CANCEL, Filter(), who="ada")
    assert next(stream).done == 100
    stream.close()  # type: ignore[attr-defined]
    assert sync.queue_counts()["cancelled"] == 100


def test_the_synchronous_class_raises_the_same_errors(sync: SyncHoming) -> None:
    with pytest.raises(InvalidRequest, match="channel"):
        sync.send("a@example.org", channel="fax", body="x")
    with pytest.raises(NotFound):
        sync.get("nothing")
    sent = sync.send("a@example.org", channel="email", body="x")
    with pytest.raises(CommandRefused):
        sync.acknowledge(sent.id, who="ada")


def test_many_threads_send_at_once(sync: SyncHoming) -> None:
    def work(number: int) -> str:
        key = f"key-{number % 50}"
        return sync.send(f"p{number % 50}@example.org", channel="email", body="x", idempotency_key=key).id

    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(work, range(200)))
    assert len(set(ids)) == 50
    assert sync.process(100).succeeded == 50


def test_many_are_streamed_with_their_indexes(sync: SyncHoming) -> None:
    read = 0

    def requests() -> Iterator[dict[str, Any]]:
        nonlocal read
        for number in range(1100):
            read += 1
            to = "nobody" if number in (3, 501, 1099) else f"p{number}@example.org"
            yield {"recipient": to, "channel": "email", "content": {"body": "x"}}

    stream = sync.send_many(requests())
    first = next(stream)
    assert read == 1_000
    answers = [first, *stream]
    assert len(answers) == 1100
    rejected = [(n, a.index) for n, a in enumerate(answers) if isinstance(a, Rejection)]
    assert rejected == [(3, 3), (501, 501), (1099, 1099)]
    assert isinstance(first, SendResult)


def test_requests_before_an_error_of_their_source_are_accepted(sync: SyncHoming) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        for number in range(1003):
            yield {"recipient": f"p{number}@example.org", "channel": "email", "content": {"body": "x"}}
        raise OSError("the file ends here")

    stream = sync.send_many(requests())
    assert [type(next(stream)) for _ in range(1003)] == [SendResult] * 1003
    with pytest.raises(OSError, match="ends here"):
        next(stream)


def test_the_synchronous_class_can_run_a_worker_in_the_background() -> None:
    landed = threading.Event()
    with SyncHoming("memory:", providers={"mail": lambda delivery: landed.set()}, worker=True) as opened:
        opened.send("a@example.org", channel="email", body="x")
        assert landed.wait(60)


def test_closing_twice_is_allowed_and_nothing_works_afterwards() -> None:
    opened = SyncHoming("memory:", providers={"mail": quiet})
    opened.open()
    opened.close()
    opened.close()
    with pytest.raises(RuntimeError, match="not open"):
        opened.send("a@example.org", channel="email", body="x")


def test_using_it_before_it_is_open_is_an_error() -> None:
    never = SyncHoming("memory:", providers={"mail": quiet})
    with pytest.raises(RuntimeError, match="with"):
        never.get("x")


@pytest.fixture
def _loop_of_the_test(loop_kind: LoopKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `SyncHoming` run on the loop that the test's id names."""
    monkeypatch.setattr(asyncio, "new_event_loop", loop_kind.new)


@pytest.mark.usefixtures("_loop_of_the_test")
def test_a_call_from_its_own_event_loop_is_an_error_instead_of_a_deadlock() -> None:
    from_provider: list[str] = []
    from_sink: list[str] = []

    def message(call: Callable[[], object]) -> str:
        with pytest.raises(RuntimeError) as raised:
            call()
        return str(raised.value)

    async def provider(delivery: Delivery) -> None:
        id = delivery.notification_id
        calls: list[Callable[[], object]] = [
            lambda: opened.send("b@example.org", channel="email", body="x"),
            lambda: opened.send("b@example.org", channel="email", body="x", connection=object()),
            lambda: next(opened.submit_many([SendRequest()])),
            lambda: next(opened.bulk(CommandName.CANCEL, Filter(), who="ops")),
            lambda: opened.of("acme").get(id),
            lambda: opened.tenants.list(),
            lambda: opened.snapshot(),
            lambda: opened.call(lambda engine: engine.get(id)),
            opened.close,
        ]
        from_provider.extend(message(call) for call in calls)

    def sink(event: object) -> None:
        from_sink.append(message(opened.queue_counts))

    opened = SyncHoming("memory:", providers={"mail": provider}, on_event=sink, events=["StatusChanged"])
    with warnings.catch_warnings(), opened:
        warnings.simplefilter("error")  # each refused coroutine is closed
        sent = opened.send("a@example.org", channel="email", body="x")
        opened.process()
        assert opened.get(sent.id).status is Status.SENT
        gc.collect()
    assert len(from_provider) == 9
    assert {*from_provider} == {*from_sink}
    assert from_sink[0] == (
        "SyncHoming cannot wait on the thread of its own event loop, on which async providers, sinks and "
        "callbacks run; call it on another thread, such as with `await asyncio.to_thread(homing.get, id)`"
    )


@pytest.mark.usefixtures("_loop_of_the_test")
def test_a_provider_may_call_it_on_another_thread() -> None:
    seen: list[Status] = []

    async def provider(delivery: Delivery) -> None:
        seen.append((await asyncio.to_thread(opened.get, delivery.notification_id)).status)

    with SyncHoming("memory:", providers={"mail": provider}) as opened:
        sent = opened.send("a@example.org", channel="email", body="x")
        opened.process()
        assert (seen, opened.get(sent.id).status) == ([Status.SENDING], Status.SENT)


def test_a_failed_open_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError), SyncHoming("memory:", prest="simple"):
        pass
    assert set(threading.enumerate()) <= before


def test_an_instance_that_was_never_opened_causes_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SyncHoming("memory:")
        gc.collect()
    assert [str(w.message) for w in caught if w.category is ResourceWarning] == []


def test_it_can_be_opened_again() -> None:
    opened = SyncHoming("again.db", providers={"mail": quiet})
    with opened:
        sent = opened.send("a@example.org", channel="email", body="x")
    with opened:
        assert opened.get(sent.id).status is Status.PENDING


def test_the_synchronous_class_sends_over_http(loop_kind: LoopKind) -> None:
    """On the event loop of its own thread, and it closes its connections."""
    started, stop = threading.Event(), threading.Event()
    port: list[int] = []

    async def serve() -> None:
        async with FaultServer() as server:
            port.append(server.port)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: loop_kind.run(serve()))
    thread.start()
    started.wait()
    try:
        Path("homing.toml").write_text(
            f'[providers.webhook]\nsecret = "{SECRET}"\nbase_url = "http://127.0.0.1:{port[0]}"\n'
        )
        with SyncHoming("memory:") as homing:
            sent = homing.send(
                {"url": "https://example.org/x"}, channel="webhook", content={"data": {"a": 1}}
            )
            homing.process()
            found = homing.get(sent.id)
            assert found.status == "delivered", found.last_error
    finally:
        stop.set()
        thread.join()


def test_an_engine_made_from_settings_delivers() -> None:
    Path("homing.toml").write_text(
        'store = "memory:"\n[providers.out]\nkind = "file"\npath = "out.jsonl"\n', encoding="utf-8"
    )
    with SyncHoming(worker=True) as homing:
        sent = homing.send("a@example.org", channel="email", body="x")
        done = homing.call(lambda engine: engine.wait(sent.id))
    assert done.provider_names == ("out",)
    assert Path("out.jsonl").read_text(encoding="utf-8").count("\n") == 1


def test_optional_libraries_are_not_imported_unless_configured() -> None:
    code = (
        "import sys, asyncio; from homing import Homing\n"
        "async def main():\n    async with Homing('memory:', worker=True): pass\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('prometheus_client')])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told == "[]\n"


def test_a_result_that_arrives_with_the_end_of_a_wait_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    class LateFuture(Future[str]):
        def done(self) -> bool:
            if not super().done():  # the thread of the loop sets it just after the wait has ended
                self.set_result("sent")
            return super().done()

    monkeypatch.setattr(sync_library, "_CHECK_THREAD_S", 0.01)
    thread = sync_library._EngineThread(lambda: Homing(":memory:"))
    assert thread.result(LateFuture()) == "sent"


async def test_a_plain_function_works_again_after_close_and_open(tmp_path: Path) -> None:
    sent: list[str] = []

    def mail(delivery: Delivery) -> None:
        sent.append(delivery.address)

    engine = Homing(tmp_path / "homing.db", providers={"mail": mail})
    for number in range(2):
        async with engine:
            await engine.send(f"p{number}@example.org", channel="email", subject="Hello", body="Hello")
            await asyncio.wait_for(engine.process(), 60)
    assert sent == ["p0@example.org", "p1@example.org"]
