"""Runs bridges: receives their messages, accepts them, and acknowledges them after the commit.

Each bridge has a task of its own, so a bridge that fails or hangs disturbs no other. While the store is
unavailable, a bridge receives nothing, and after ten seconds it gives its messages back to their source.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256

from msgspec.structs import replace

from homing.core.errors import (
    ConfigError,
    HomingError,
    IdempotencyConflict,
    InvalidRequest,
    StoreError,
    StoreRejected,
)
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.ports.bridges import Bridge, BridgeMessage, BridgeState, HandledMessage, SupportsBacklog
from homing.core.ports.runtime import Clock
from homing.core.request_decoding import read_request
from homing.core.send_request import SendRequest
from homing.engine.intake.recipient_lookup import DirectoryFailed, names_recipient, prepare_each
from homing.engine.intake.requests import (
    NO_PRIOR_ATTEMPTS,
    Intake,
    PreparedRequest,
    PriorAttempts,
    RepeatedRequest,
)
from homing.engine.isolation import may_concern_item, write_in_parts
from homing.engine.plug_in_calls import call_within, contain

log = logging.getLogger("homing.bridges")

_BATCH = 500
"""Maximum number of messages that are received, stored in one transaction and acknowledged together."""

_CALL_TIMEOUT_S = 30
"""Longest time for `open`, `acknowledge` and `close`."""

_CHECK_INTERVAL_S, _CHECK_TIMEOUT_S = 10, 5

_HOLD_MS = 10_000
"""Longest time that received messages wait for the store before they are given back to their source."""

_STORE_PAUSE_MS, _MAX_STORE_PAUSE_MS = 50, 1_000

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 500, 2_000
"""First and longest pause before a bridge that has failed is opened again."""

_STOP_TIMEOUT_S = 30
"""Time for storing and acknowledging what has been received when the process stops."""

_YIELD_EVERY = 100
"""Number of messages to prepare before yielding to the event loop."""

_NO_STORE = "waits for the store"

_FAILED = "failed"
"""Beginning of the status of a bridge that has failed."""

_NOT_STARTED = "not started"

_KEY = re.compile(r"[\x20-\x7e]{1,255}")

AcceptSubmissions = Callable[[Sequence[Submission]], Awaitable[tuple[Acceptance, ...]]]


class Bridges:
    """The bridges of one process. They run from `start` to `stop`."""

    def __init__(
        self,
        bridges: Mapping[str, Bridge],
        *,
        intake: Intake,
        accept: AcceptSubmissions,
        probe_store: Callable[[], Awaitable[object]],
        clock: Clock,
        tenant: str,
    ) -> None:
        """Creates the bridges. `probe_store` raises `StoreError` while the store is unavailable."""
        self._acceptor = _MessageAcceptor(intake, accept, tenant)
        self._runners = {
            name: _BridgeRunner(name, bridge, self._acceptor, probe_store, clock)
            for name, bridge in bridges.items()
        }

    def start(self, *names: str) -> None:
        """Starts these bridges, or all of them if no name is given. Does nothing for those that run.

        Raises `ConfigError` if a name is unknown.
        """
        for name in names:
            if name not in self._runners:
                known = ", ".join(self._runners) or "none"
                raise ConfigError("bridges", f"there is no bridge {name!r}; the settings have {known}")
        for name in names or self._runners:
            self._runners[name].start()

    async def wait(self) -> None:
        """Waits until all started bridges have been stopped."""
        await asyncio.gather(*(runner.wait() for runner in self._runners.values()))

    async def stop(self) -> None:
        """Stops receiving, stores and acknowledges what was received, and closes the bridges."""
        await asyncio.gather(*(runner.stop() for runner in self._runners.values()))

    def states(self) -> dict[str, BridgeState]:
        """Returns the states of the bridges that were started."""
        return {name: runner.state for name, runner in self._runners.items() if runner.started}


_PreparedMessage = tuple[BridgeMessage, PreparedRequest | HomingError]
"""A message with its submission, its earlier result, or the error for which it is rejected."""


class _MessageAcceptor:
    """Turns messages into submissions and stores them."""

    def __init__(self, intake: Intake, accept: AcceptSubmissions, tenant: str) -> None:
        self._intake = intake
        self._accept = accept
        self._tenant = tenant

    async def accept(self, bridge: str, messages: Sequence[BridgeMessage]) -> list[HandledMessage]:
        """Stores messages in one transaction, and returns their results in the same order.

        Raises `StoreError` if nothing is known to be stored. Messages that the store refuses for good, or
        that cause another error, are rejected, so that they do not block those behind them.
        """
        prepared = await self._prepare_all(bridge, messages)

        async def refuse(one: _PreparedMessage, error: Exception) -> list[HandledMessage]:
            return [_rejected(one[0], _rejection(bridge, error))]

        write = partial(self._accept_together, bridge)
        parts = await write_in_parts(prepared, write, refuse, may_concern_item)
        return [handled for part in parts for handled in part]

    async def _accept_together(
        self, bridge: str, prepared: Sequence[_PreparedMessage]
    ) -> list[HandledMessage]:
        batch = [one for _, one in prepared if isinstance(one, Submission)]
        answers = iter(await self._accept(batch) if batch else ())
        handled = []
        for message, one in prepared:
            if isinstance(one, HomingError):
                handled.append(_rejected(message, one))
            else:
                answer = one.answer if isinstance(one, RepeatedRequest) else next(answers)
                handled.append(_accepted(message, answer))
        return handled

    async def _prepare_all(self, bridge: str, messages: Sequence[BridgeMessage]) -> list[_PreparedMessage]:
        """Prepares messages, and returns them in the same order.

        A message is rejected if the recipient directory fails for it, but not for another message. Raises
        `DirectoryFailed` if no other one shows that the directory works.
        """
        number = 0

        async def prepare(message: BridgeMessage) -> PreparedRequest | HomingError:
            nonlocal number
            number += 1
            if not number % _YIELD_EVERY:
                await asyncio.sleep(0)
            return await self._prepare_isolated(bridge, message)

        found = await prepare_each(messages, prepare, _was_directory_asked)
        return [
            (message, _directory_rejection(bridge, one) if isinstance(one, DirectoryFailed) else one)
            for message, one in zip(messages, found, strict=True)
        ]

    async def _prepare_isolated(self, bridge: str, message: BridgeMessage) -> PreparedRequest | HomingError:
        """Prepares a message, or returns why it is rejected."""
        try:
            return await self._prepare(bridge, message)
        except Exception as error:
            if not may_concern_item(error):
                raise
            return _rejection(bridge, error)

    async def _prepare(self, bridge: str, message: BridgeMessage) -> PreparedRequest | InvalidRequest:
        earlier = NO_PRIOR_ATTEMPTS
        if message.attempts or message.max_attempts is not None or message.last_error is not None:
            earlier = PriorAttempts(
                attempts=message.attempts, max_attempts=message.max_attempts, last_error=message.last_error
            )
        try:
            request = _read(message.request)
            if request.idempotency_key is None:
                request = replace(request, idempotency_key=_idempotency_key(bridge, message.key))
            # `asked`: a message that arrives again is the same one, even if its times are computed again.
            found = await self._intake.prepare(
                message.tenant or self._tenant, request, asked="message", earlier=earlier
            )
        except InvalidRequest as error:
            return error
        if isinstance(found, Submission) and found.lease_to is not None:
            return InvalidRequest("synchronous", "is not possible through a bridge; use the API")
        return found


class _BridgeRunner:
    """Runs one bridge, and opens it again if it fails."""

    def __init__(
        self,
        name: str,
        bridge: Bridge,
        acceptor: _MessageAcceptor,
        probe_store: Callable[[], Awaitable[object]],
        clock: Clock,
    ) -> None:
        self._name = name
        self._bridge = bridge
        self._acceptor = acceptor
        self._probe_store = probe_store
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._receiving: asyncio.Future[Sequence[BridgeMessage]] | None = None
        self._stopping = asyncio.Event()
        self._pause_ms = _FIRST_PAUSE_MS
        self._measured_ms = -1000 * _CHECK_INTERVAL_S
        """Monotonic time of the last question for the backlog."""
        self._backlog_hangs = False
        """True if the backlog was not known in time since the bridge was opened. It is not asked for then."""
        self.state = BridgeState(status=_NOT_STARTED)

    @property
    def started(self) -> bool:
        """True once the bridge was started, also after it was stopped."""
        return self.state.status != _NOT_STARTED

    def start(self) -> None:
        if self._task is None:
            self._stopping.clear()
            self._report("is starting")
            self._task = asyncio.create_task(self._run(), name=f"homing-bridge-{self._name}")

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        if (task := self._task) is None:
            return
        self._stopping.set()
        if self._receiving is not None:
            self._receiving.cancel()
        await asyncio.wait([task], timeout=_STOP_TIMEOUT_S)
        if not task.done():
            log.warning("bridge %s did not stop in time; its messages will arrive again", self._name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._wait_for_store()
                await self._consume()
                continue
            except StoreError as error:
                log.warning("bridge %s waits for the store, which is unavailable: %s", self._name, error)
                self._report(_NO_STORE)
            except asyncio.CancelledError:  # by `stop`, or raised by a library that the bridge uses
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                self._failed("CancelledError")
            except HomingError as error:  # its message is for operators
                self._failed(error.message)
            except Exception as error:  # a bridge may raise anything, or hang
                self._failed(type(error).__name__)
            await self._sleep(self._pause_ms)
            self._pause_ms = min(_MAX_PAUSE_MS, 2 * self._pause_ms)
        self._report("is stopped")

    async def _consume(self) -> None:
        """Opens the bridge and handles its messages until the bridge is stopped. Always closes it."""
        try:
            await call_within(self._bridge.open, 1000 * _CALL_TIMEOUT_S)
            self._report("ok")
            self._backlog_hangs = False
            while messages := await self._receive():
                handled = await self._accept(messages)
                await call_within(partial(self._bridge.acknowledge, handled), 1000 * _CALL_TIMEOUT_S)
                self._count(handled)
                if self._clock.monotonic_ms() - self._measured_ms >= 1000 * _CHECK_INTERVAL_S:
                    await self._measure()
        finally:
            await self._close()

    async def _receive(self) -> Sequence[BridgeMessage]:
        """Returns the next messages, or none if the bridge is being stopped."""
        while not self._stopping.is_set():
            self._receiving = asyncio.ensure_future(contain(partial(self._bridge.receive, _BATCH)))
            try:
                while not (await asyncio.wait([self._receiving], timeout=_CHECK_INTERVAL_S))[0]:
                    await call_within(self._bridge.check, 1000 * _CHECK_TIMEOUT_S)
                    self._pause_ms = _FIRST_PAUSE_MS
                    await self._measure()
                if self._receiving.cancelled() and not self._stopping.is_set():
                    raise ConnectionError("receive was cancelled")
                if not self._receiving.cancelled() and (messages := self._receiving.result()):
                    return messages
            finally:
                self._receiving.cancel()
                await asyncio.gather(self._receiving, return_exceptions=True)
                self._receiving = None
            await asyncio.sleep(0)
        return ()

    async def _measure(self) -> None:
        """Asks the bridge how many messages wait at their source. A failure has no other consequence."""
        self._measured_ms = self._clock.monotonic_ms()
        if not isinstance(self._bridge, SupportsBacklog) or self._backlog_hangs:
            return
        waiting = None
        try:
            waiting = int(await call_within(self._bridge.backlog, 1000 * _CHECK_TIMEOUT_S))
        except Exception as error:  # a bridge may raise anything, or hang
            took_ms = self._clock.monotonic_ms() - self._measured_ms
            self._backlog_hangs = took_ms >= 1000 * _CHECK_TIMEOUT_S
            log.debug("the backlog of bridge %s is not known: %s", self._name, type(error).__name__)
        self.state = replace(self.state, waiting=waiting)

    async def _accept(self, messages: Sequence[BridgeMessage]) -> list[HandledMessage]:
        """Stores messages. Tries again while the store is unavailable, and raises `StoreError` in the end."""
        until_ms, pause_ms = self._clock.monotonic_ms() + _HOLD_MS, _STORE_PAUSE_MS
        while True:
            try:
                handled = await self._acceptor.accept(self._name, messages)
                self._report("ok")
                return handled
            except StoreError:
                self._report(_NO_STORE)
                if self._stopping.is_set() or self._clock.monotonic_ms() >= until_ms:
                    raise
            await self._sleep(pause_ms)
            pause_ms = min(2 * pause_ms, _MAX_STORE_PAUSE_MS)

    async def _wait_for_store(self) -> None:
        """Waits until the store answers, so that a bridge takes no messages that it cannot store."""
        while not self._stopping.is_set():
            try:
                await self._probe_store()
                return
            except StoreError:
                self._report(_NO_STORE)
            await self._sleep(_MAX_STORE_PAUSE_MS)

    async def _close(self) -> None:
        try:
            await call_within(self._bridge.close, 1000 * _CALL_TIMEOUT_S)
        except Exception as error:  # a bridge may raise anything, or hang
            log.warning("bridge %s could not be closed: %s", self._name, type(error).__name__)

    async def _sleep(self, duration_ms: int) -> None:
        """Sleeps for `duration_ms`, or until the bridge is stopped."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        slept = asyncio.ensure_future(self._clock.sleep_ms(duration_ms))
        try:
            await asyncio.wait([stopped, slept], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (stopped, slept):
                one.cancel()
            await asyncio.gather(stopped, slept, return_exceptions=True)

    def _count(self, handled: Iterable[HandledMessage]) -> None:
        state, accepted, duplicates, rejected = self.state, 0, 0, 0
        for one in handled:
            if one.rejection is not None:
                rejected += 1
                log.warning("a message of bridge %s was rejected: %s", self._name, one.code)
            elif one.duplicate:
                duplicates += 1
            else:
                accepted += 1
        self._pause_ms = _FIRST_PAUSE_MS
        self.state = replace(
            state,
            accepted=state.accepted + accepted,
            duplicates=state.duplicates + duplicates,
            rejected=state.rejected + rejected,
        )

    def _failed(self, why: str) -> None:
        status = f"{_FAILED} ({why}) and is opened again"
        # One line per outage, and not one per try.
        level = logging.DEBUG if status == self.state.status else logging.WARNING
        log.log(level, "bridge %s failed and is opened again: %s", self._name, why)
        failures = self.state.failures + 1
        self.state = replace(self.state, status=status, failures=failures, waiting=None)

    def _report(self, status: str) -> None:
        before = self.state.status
        if status != before:
            self.state = replace(self.state, status=status)
        if status == "ok" and (before == _NO_STORE or before.startswith(_FAILED)):
            log.info("bridge %s works again", self._name)


def _read(given: SendRequest | Mapping[str, object] | InvalidRequest) -> SendRequest:
    if isinstance(given, InvalidRequest):
        raise given
    return given if isinstance(given, SendRequest) else read_request(given)


def _idempotency_key(bridge: str, key: str) -> str:
    """Returns the key of a message as an idempotency key, hashed if it is too long or not plain text."""
    own = f"{bridge}:{key}"
    return (
        own
        if _KEY.fullmatch(own)
        else f"{bridge}:sha256:{sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()}"
    )


def _accepted(message: BridgeMessage, answer: Acceptance) -> HandledMessage:
    if answer.conflict:
        return HandledMessage(
            message=message,
            rejection="idempotencyKey: already belongs to a different request",
            code=IdempotencyConflict.code,
        )
    return HandledMessage(
        message=message, ids=answer.ids, duplicate=len(answer.duplicates) == len(answer.ids)
    )


def _was_directory_asked(message: BridgeMessage, one: PreparedRequest | HomingError) -> bool:
    """Returns True if the recipient directory was asked when this message was prepared."""
    return isinstance(one, Submission) and names_recipient(_read(message.request))


def _directory_rejection(bridge: str, error: DirectoryFailed) -> HomingError:
    why = f"the recipient directory {error.problem} for this message"
    log.warning("a message of bridge %s is rejected: %s", bridge, why)
    return HomingError(why)


def _rejection(bridge: str, error: Exception) -> HomingError:
    """Logs why a message is rejected, and returns what its sender may know of that."""
    if isinstance(error, StoreRejected):
        log.warning("the store refused a message of bridge %s, which is rejected: %s", bridge, error)
        return StoreRejected()
    log.error("a message of bridge %s cannot be accepted and is rejected", bridge, exc_info=error)
    return HomingError(f"the message could not be processed ({type(error).__name__})")


def _rejected(message: BridgeMessage, error: HomingError) -> HandledMessage:
    return HandledMessage(message=message, rejection=error.message, code=error.code)
