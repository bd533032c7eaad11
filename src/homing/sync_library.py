"""`SyncHoming`: Homing for code that is not async, such as Flask, Django and scripts.

One thread runs the event loop and the engine. Each method of `Homing` is available here under the same name
and with the same arguments. Its coroutine runs on the loop, and the caller waits for the result.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import update_wrapper
from itertools import islice
from queue import Empty, SimpleQueue
from traceback import format_tb
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from homing.core.ports.stores import CallerConnection
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.audit import AuditTrail
from homing.engine.access.tenants import Tenants
from homing.engine.intake.accept import Rejection, SendInput, SendResult
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks
from homing.engine.operations.jobs import Jobs
from homing.engine.operations.policies import Policies
from homing.engine.operations.recipients import Recipients
from homing.engine.operations.split_overrides import SplitOverrides
from homing.engine.operations.templates import Templates
from homing.engine.tenant_api import TenantApi
from homing.library import Homing

log = logging.getLogger("homing")

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Part = TypeVar("_Part")
_Part_co = TypeVar("_Part_co", covariant=True)
_Tenant = TypeVar("_Tenant", bound=TenantApi)

_CHECK_THREAD_S = 1.0
"""How often a waiting caller checks that the thread of the event loop still runs."""

_END_TASKS_S = 5.0
"""Time that `close` gives to tasks that it has cancelled."""

_THREAD_ENDED = "the thread of SyncHoming's event loop has ended; close() it and open() it again"

_inherited: list[tuple[Homing, asyncio.AbstractEventLoop]] = []
"""Engines that were opened before this process was forked. Kept, because deleting them would close them."""

_CHUNK = 1_000
"""Number of requests that `send_many` passes to the event loop at a time."""


class SyncPart(Generic[_Part_co]):
    """Methods of an object of the engine, for code that is not async."""

    def __init__(self, thread: _EngineThread, part: Callable[[Homing], _Part_co]) -> None:
        self._thread = thread
        self._part = part

    def _wait_for(self, what: Callable[[_Part_co], Coroutine[Any, Any, _T]]) -> _T:
        return self._thread.result(self._thread.begin(what(self._part(self._thread.engine))))

    def _wait_with_connection(
        self, connection: Any, what: Callable[[_Part_co, Any], Coroutine[Any, Any, _T]]
    ) -> _T:
        """Runs a coroutine that may use the caller's connection, which is used only on the caller's
        thread."""
        calls = _CallingThread()
        joined = None if connection is None else CallerConnection(connection, calls.run)
        work = self._thread.begin(what(self._part(self._thread.engine), joined))
        if joined is not None:
            calls.serve_until_done(work, self._thread.check_alive)
        return self._thread.result(work)


def _waits(
    method: Callable[Concatenate[_Part, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SyncPart[_Part], _P], _T]:
    """Converts an async method to one that waits for the result."""

    def call(self: SyncPart[_Part], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._wait_for(lambda part: method(part, *args, **kwargs))

    return update_wrapper(call, method)


def _runs(
    method: Callable[Concatenate[_Part, _P], _T],
) -> Callable[Concatenate[SyncPart[_Part], _P], _T]:
    """Converts a method that is not async to one that runs on the thread of the event loop."""

    def call(self: SyncPart[_Part], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async def run(part: _Part) -> _T:
            return method(part, *args, **kwargs)

        return self._wait_for(run)

    return update_wrapper(call, method)


def _iterates(
    method: Callable[Concatenate[_Part, _P], AsyncIterator[_T]],
) -> Callable[Concatenate[SyncPart[_Part], _P], Iterator[_T]]:
    """Converts a method for `async for` to one for `for`. Each step runs when the caller asks for it."""

    def call(self: SyncPart[_Part], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        stream: list[AsyncIterator[_T]] = []

        async def step(part: _Part) -> tuple[_T, ...]:
            if not stream:
                stream.append(method(part, *args, **kwargs))
            try:
                return (await anext(stream[0]),)
            except StopAsyncIteration:
                return ()

        async def end(_: _Part) -> None:
            close = getattr(stream[0], "aclose", None)
            if close is not None:
                await close()

        try:
            while found := self._wait_for(step):
                yield found[0]
        finally:
            if stream and self._thread.is_open:
                self._wait_for(end)

    return update_wrapper(call, method)


def _joins(
    method: Callable[Concatenate[_Part, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SyncPart[_Part], _P], _T]:
    """Converts an async method that has a `connection`, which is then used only on the calling thread."""

    def call(self: SyncPart[_Part], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        def begin(part: _Part, connection: Any) -> Coroutine[Any, Any, _T]:
            kwargs["connection"] = connection
            return method(part, *args, **kwargs)

        return self._wait_with_connection(kwargs.get("connection"), begin)

    return update_wrapper(call, method)


def _with_parameters_of(
    method: Callable[Concatenate[_Part, _P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Gives a method that passes on all its arguments the signature of the method that gets them."""
    return lambda passing_on: update_wrapper(passing_on, method)


class SyncRecipients(SyncPart[Recipients]):
    """`Homing.recipients` for code that is not async."""

    delete = _waits(Recipients.delete)
    delete_device = _waits(Recipients.delete_device)
    forget_preference = _waits(Recipients.forget_preference)
    get = _waits(Recipients.get)
    lift = _waits(Recipients.lift)
    list = _waits(Recipients.list)
    prefer = _waits(Recipients.prefer)
    preferences = _waits(Recipients.preferences)
    put = _waits(Recipients.put)
    put_device = _waits(Recipients.put_device)
    suppress = _waits(Recipients.suppress)
    suppressions = _waits(Recipients.suppressions)

    def of(self, tenant: str) -> SyncRecipients:
        """Returns the recipients of another tenant."""
        return SyncRecipients(self._thread, lambda engine: self._part(engine).of(tenant))


class SyncTemplates(SyncPart[Templates]):
    """`Homing.templates` for code that is not async."""

    check = _waits(Templates.check)
    delete = _waits(Templates.delete)
    get = _waits(Templates.get)
    list = _waits(Templates.list)
    preview = _waits(Templates.preview)
    put = _waits(Templates.put)
    restore = _waits(Templates.restore)
    version = _waits(Templates.version)
    versions = _waits(Templates.versions)


class SyncPolicies(SyncPart[Policies]):
    """`Homing.policies` for code that is not async."""

    changes = _waits(Policies.changes)
    check = _waits(Policies.check)
    recent_book = _runs(Policies.recent_book)
    refresh = _waits(Policies.refresh)
    remove = _waits(Policies.remove)
    set = _waits(Policies.set)
    try_refresh = _waits(Policies.try_refresh)


class SyncSplits(SyncPart[SplitOverrides]):
    """`Homing.splits` for code that is not async."""

    check = _runs(SplitOverrides.check)
    in_force = _waits(SplitOverrides.in_force)
    list = _waits(SplitOverrides.list)
    refresh = _waits(SplitOverrides.refresh)
    reset = _waits(SplitOverrides.reset)
    set = _waits(SplitOverrides.set)


class SyncTenants(SyncPart[Tenants]):
    """`Homing.tenants` for code that is not async."""

    create = _waits(Tenants.create)
    disable = _waits(Tenants.disable)
    enable = _waits(Tenants.enable)
    enabled = _waits(Tenants.enabled)
    ensure = _waits(Tenants.ensure)
    get = _waits(Tenants.get)
    list = _waits(Tenants.list)


class SyncKeys(SyncPart[ApiKeyManager]):
    """`Homing.keys` for code that is not async."""

    create = _waits(ApiKeyManager.create)
    find_caller = _waits(ApiKeyManager.find_caller)
    get = _waits(ApiKeyManager.get)
    is_empty = _waits(ApiKeyManager.is_empty)
    list = _waits(ApiKeyManager.list)
    revoke = _waits(ApiKeyManager.revoke)
    rotate = _waits(ApiKeyManager.rotate)
    verify = _waits(ApiKeyManager.verify)


class SyncAudit(SyncPart[AuditTrail]):
    """`Homing.audit` for code that is not async."""

    chains = _waits(AuditTrail.chains)
    list = _waits(AuditTrail.list)
    note = _waits(AuditTrail.note)
    verify = _iterates(AuditTrail.verify)


class SyncJobs(SyncPart[Jobs]):
    """`Homing.jobs` for code that is not async."""

    get = _waits(Jobs.get)
    list = _waits(Jobs.list)
    resume = _waits(Jobs.resume)
    start = _waits(Jobs.start)
    start_or_resume = _waits(Jobs.start_or_resume)
    stop = _waits(Jobs.stop)
    to_continue = _waits(Jobs.to_continue)


class SyncUnsubscribeLinks(SyncPart[UnsubscribeLinks]):
    """`Homing.unsubscribe_links` for code that is not async."""

    changes = _waits(UnsubscribeLinks.changes)
    link = _waits(UnsubscribeLinks.link)
    subscription = _waits(UnsubscribeLinks.subscription)
    unsubscribe = _waits(UnsubscribeLinks.unsubscribe)


class SyncTenantApi(SyncPart[_Tenant]):
    """The operations of one tenant for code that is not async."""

    @property
    def tenant(self) -> str:
        """Name of the tenant."""
        return self._part(self._thread.engine).tenant

    @property
    def policies(self) -> SyncPolicies:
        """Works like `Homing.policies`."""
        return SyncPolicies(self._thread, lambda engine: self._part(engine).policies)

    @property
    def recipients(self) -> SyncRecipients:
        """Works like `Homing.recipients`."""
        return SyncRecipients(self._thread, lambda engine: self._part(engine).recipients)

    @property
    def templates(self) -> SyncTemplates:
        """Works like `Homing.templates`."""
        return SyncTemplates(self._thread, lambda engine: self._part(engine).templates)

    def of(self, tenant: str) -> SyncTenantApi[TenantApi]:
        """Returns the operations of another tenant, with the same store and providers."""
        return SyncTenantApi(self._thread, lambda engine: engine.of(tenant))

    submit = _joins(TenantApi.submit)

    def submit_many(
        self, requests: Iterable[SendInput], *, connection: Any = None
    ) -> Iterator[SendResult | Rejection]:
        """Works like `Homing.submit_many`, in chunks of 1,000 requests."""
        left, first = iter(requests), 0
        while True:
            chunk: list[SendInput] = []
            error: Exception | None = None
            try:
                chunk.extend(islice(left, _CHUNK))
            except Exception as raised:  # the list has the requests before the error
                error = raised
            yield from self._submit_chunk(chunk, first, connection)
            first += len(chunk)
            if error is not None:
                raise error
            if len(chunk) < _CHUNK:
                return

    acknowledge = _waits(TenantApi.acknowledge)
    bulk = _iterates(TenantApi.bulk)
    calculate_delay = _runs(TenantApi.calculate_delay)
    cancel = _waits(TenantApi.cancel)
    dead_letter_groups = _waits(TenantApi.dead_letter_groups)
    dry_run = _waits(TenantApi.dry_run)
    error_groups = _waits(TenantApi.error_groups)
    explain = _waits(TenantApi.explain)
    batch = _waits(TenantApi.batch)
    batches = _waits(TenantApi.batches)
    find = _waits(TenantApi.find)
    find_all = _iterates(TenantApi.find_all)
    find_hold = _waits(TenantApi.find_hold)
    get = _waits(TenantApi.get)
    health = _waits(TenantApi.health)
    health_metrics = _waits(TenantApi.health_metrics)
    history = _waits(TenantApi.history)
    is_ready = _runs(TenantApi.is_ready)
    move_to_dead_letter = _waits(TenantApi.move_to_dead_letter)
    next_retry_time = _runs(TenantApi.next_retry_time)
    overview = _waits(TenantApi.overview)
    provider_overview = _waits(TenantApi.provider_overview)
    purge = _waits(TenantApi.purge)
    queue_counts = _waits(TenantApi.queue_counts)
    reschedule = _waits(TenantApi.reschedule)
    resend = _waits(TenantApi.resend)
    resolve = _waits(TenantApi.resolve)
    retry = _waits(TenantApi.retry)
    retry_info = _waits(TenantApi.retry_info)
    retry_statistics = _waits(TenantApi.retry_statistics)
    roll_ups = _waits(TenantApi.roll_ups)
    select_pending = _waits(TenantApi.select_pending)
    should_retry = _runs(TenantApi.should_retry)
    success_by_attempt = _waits(TenantApi.success_by_attempt)
    waiting = _waits(TenantApi.waiting)
    waiting_histogram = _waits(TenantApi.waiting_histogram)
    why_stopped = _waits(TenantApi.why_stopped)

    def _submit_chunk(
        self, chunk: Sequence[SendInput], first: int, connection: Any
    ) -> Iterator[SendResult | Rejection]:
        async def collect(api: TenantApi, joined: Any) -> Sequence[SendResult | Rejection]:
            return [_shifted(result, first) async for result in api.submit_many(chunk, connection=joined)]

        yield from self._wait_with_connection(connection, collect)

    list = _waits(TenantApi.list)


class SyncHoming(SyncTenantApi[Homing]):
    """Homing for code that is not async. It runs one event loop on a thread of its own.

    Usage: `with SyncHoming("homing.db") as homing: homing.send(...)`. The arguments are those of `Homing`,
    and every method of `Homing` is available under the same name. A `connection` is used only on the calling
    thread.
    """

    @_with_parameters_of(Homing.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(_EngineThread(lambda: Homing(*args, **kwargs)), lambda engine: engine)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, *, create: bool = True) -> None:
        """Starts the event loop and opens the engine. Has no effect if the engine is already open.

        If `create` is False, a store without a schema is refused instead of given one.
        """
        self._thread.open(create=create)

    def close(self) -> None:
        """Closes the engine and stops the event loop. Has no effect if the engine is not open."""
        self._thread.close()

    def call(self, what: Callable[[Homing], Coroutine[Any, Any, _T]]) -> _T:
        """Calls `what` with the engine, runs the coroutine that it returns, and returns the result."""
        return self._wait_for(what)

    send = _joins(Homing.send)

    def send_many(
        self, requests: Iterable[SendInput], *, connection: Any = None
    ) -> Iterator[SendResult | Rejection]:
        """Works like `Homing.send_many`, in chunks of 1,000 requests."""
        return self.submit_many(requests, connection=connection)

    @property
    def audit(self) -> SyncAudit:
        """Works like `Homing.audit`."""
        return SyncAudit(self._thread, lambda engine: engine.audit)

    @property
    def jobs(self) -> SyncJobs:
        """Works like `Homing.jobs`."""
        return SyncJobs(self._thread, lambda engine: engine.jobs)

    @property
    def keys(self) -> SyncKeys:
        """Works like `Homing.keys`."""
        return SyncKeys(self._thread, lambda engine: engine.keys)

    @property
    def splits(self) -> SyncSplits:
        """Works like `Homing.splits`."""
        return SyncSplits(self._thread, lambda engine: engine.splits)

    @property
    def tenants(self) -> SyncTenants:
        """Works like `Homing.tenants`."""
        return SyncTenants(self._thread, lambda engine: engine.tenants)

    @property
    def unsubscribe_links(self) -> SyncUnsubscribeLinks:
        """Works like `Homing.unsubscribe_links`."""
        return SyncUnsubscribeLinks(self._thread, lambda engine: engine.unsubscribe_links)

    check_providers = _waits(Homing.check_providers)
    force_breaker = _waits(Homing.force_breaker)
    handle_callback = _waits(Homing.handle_callback)
    process = _waits(Homing.process)
    open_alerts = _waits(Homing.open_alerts)
    providers = _waits(Homing.providers)
    queue_depths = _waits(Homing.queue_depths)
    queue_overview = _waits(Homing.queue_overview)
    readiness = _waits(Homing.readiness)
    reload = _waits(Homing.reload)
    release_sink_events = _waits(Homing.release_sink_events)
    remove_sink = _waits(Homing.remove_sink)
    replace_providers = _waits(Homing.replace_providers)
    run_worker = _waits(Homing.run_worker)
    sink_backlogs = _waits(Homing.sink_backlogs)
    sinks = _waits(Homing.sinks)
    snapshot = _runs(Homing.snapshot)
    start_worker = _runs(Homing.start_worker)
    stop_worker = _waits(Homing.stop_worker)
    suspected_clock_step = _waits(Homing.suspected_clock_step)
    system = _waits(Homing.system)
    try_provider = _waits(Homing.try_provider)
    unattended_ms = _waits(Homing.unattended_ms)
    wait = _waits(Homing.wait)
    workers = _waits(Homing.workers)


class _EngineThread:
    """Owns the engine, its event loop and the thread that runs the loop."""

    def __init__(self, make: Callable[[], Homing]) -> None:
        self._make = make
        self._engine: Homing | None = None
        self._pid = 0
        """Process that opened the engine. After a fork, the thread does not exist in the child."""
        self._stopping = False

    @property
    def is_open(self) -> bool:
        """True from `open` until `close`, in the process that called `open`."""
        return self._engine is not None and self._pid == os.getpid()

    @property
    def engine(self) -> Homing:
        """The open engine. Raises `RuntimeError` if it is not open, or was opened before a fork."""
        if self._engine is None:
            raise RuntimeError("SyncHoming is not open; use it in a `with` block, or call open() first")
        if self._pid != os.getpid():
            raise RuntimeError(
                "SyncHoming was opened before this process was forked, and its thread runs only in the "
                "parent process; call open() in the child process"
            )
        return self._engine

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Starts a coroutine on the event loop, for a caller on another thread who waits for the result.

        Raises `RuntimeError` on the thread of the loop, because waiting there would stop the loop forever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "SyncHoming cannot wait on the thread of its own event loop, on which async providers, sinks "
                "and callbacks run; call it on another thread, such as with "
                "`await asyncio.to_thread(homing.get, id)`"
            )
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError(_THREAD_ENDED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def result(self, work: Future[_T]) -> _T:
        """Waits for a coroutine and returns its result.

        Raises `RuntimeError` if `close` cancelled it, or if the thread of the event loop has ended.
        """
        while True:
            try:
                return work.result(timeout=_CHECK_THREAD_S)
            except CancelledError:
                raise RuntimeError("SyncHoming was closed before the call ended") from None
            except TimeoutError:
                if not work.done():
                    self.check_alive()
                    continue
                return work.result()  # which raises if the coroutine itself raised it

    def check_alive(self) -> None:
        """Raises `RuntimeError` if the thread of the event loop has ended, so that no call can end."""
        if not self._thread.is_alive():
            raise RuntimeError(_THREAD_ENDED)

    def open(self, *, create: bool) -> None:
        """Starts the event loop and opens the engine, unless it is open in this process."""
        if self.is_open:
            return
        self._forget_parent()
        self._pid, self._stopping = os.getpid(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="homing", daemon=True)
        self._thread.start()
        try:
            self._engine = self.result(self.begin(self._opened(create)))
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Closes the engine and stops the event loop, if it is open in this process.

        After a fork, the engine belongs to the parent process, and the child only forgets it.
        """
        if self._engine is None or not self.is_open:
            self._forget_parent()
            return
        closing = self.begin(self._closed(self._engine)) if self._thread.is_alive() else None
        self._engine = None
        try:
            if closing is not None:
                self.result(closing)
        finally:
            self._stop()

    def _forget_parent(self) -> None:
        """Forgets an engine of the parent process, without closing its connections, which the parent uses."""
        if self._engine is not None:
            _inherited.append((self._engine, self._loop))
            self._engine = None

    def _run(self) -> None:
        """Runs the event loop until `close`, even if a callback raises `SystemExit`, which ends a loop."""
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as error:  # its text may name a recipient, so it is not logged
                kind, where = type(error).__name__, "".join(format_tb(error.__traceback__))
                log.error("code on the event loop raised %s; the loop goes on\n%s", kind, where)

    async def _opened(self, create: bool) -> Homing:
        engine = self._make()
        await engine.open(create=create)
        return engine

    async def _closed(self, engine: Homing) -> None:
        try:
            await engine.close()
        finally:  # other threads may still wait for their calls
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:  # a provider may ignore its cancellation
                await asyncio.wait(left, timeout=_END_TASKS_S)

    def _stop(self) -> None:
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _CallingThread:
    """Runs functions on the calling thread while that thread waits for a coroutine."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()

    async def run(self, call: Callable[[], _T]) -> _T:
        """Runs a function on the waiting thread and returns its result. Called from the event loop."""
        answer: Future[_T] = Future()
        self._calls.put((call, answer))
        return await asyncio.wrap_future(answer)

    def serve_until_done(self, work: Future[Any], check_alive: Callable[[], None]) -> None:
        """Runs the requested functions until the coroutine is done.

        Calls `check_alive` now and then, which raises if the coroutine can never end.
        """
        work.add_done_callback(lambda _: self._calls.put(None))
        while True:
            try:
                requested = self._calls.get(timeout=_CHECK_THREAD_S)
            except Empty:
                check_alive()
                continue
            if requested is None:
                return
            call, answer = requested
            if not answer.set_running_or_notify_cancel():  # `close` cancelled the coroutine
                continue
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)


def _shifted(result: SendResult | Rejection, by: int) -> SendResult | Rejection:
    return replace(result, index=result.index + by) if isinstance(result, Rejection) else result
