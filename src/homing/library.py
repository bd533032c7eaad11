"""Homing in your own program: `Homing` for async code, `SyncHoming` for Flask, Django and scripts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self, TypeVar

from msgspec.structs import replace

from homing import compose
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.lifecycle.events import EVENT_NAMES
from homing.core.notifications import Content, Filter, Notification, Page, Recipient
from homing.core.ports.bridges import Bridge
from homing.core.ports.observers import Observer
from homing.core.ports.plug_ins import Directory, EventCallback, Renderer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend, CallerConnection
from homing.core.request_decoding import read_request
from homing.core.send_request import SendRequest
from homing.core.times import moment, span_ms
from homing.engine.delivery.worker import Processed
from homing.engine.engine import Engine
from homing.engine.intake.accept import Rejection, SendInput, SendResult
from homing.settings import Settings, load_settings

_T = TypeVar("_T")

To = str | Recipient | Mapping[str, Any]
"""Recipient of a message: an address on the channel, or a recipient."""


class Homing(Engine):
    """The engine, built from settings.

    `store` is the path of a SQLite file (created if it does not exist), `postgresql://HOST/DATABASE` or
    `memory:`. `providers` maps ids to objects with `send`, or to functions of a `Delivery`, in the order in
    which they are tried. With `worker=True`, a worker delivers for as long as the `async with` block lasts.
    `on_event` is called with each event whose name is in `events`. `timers` wake the workers of other
    processes; a timer serves all priorities unless it is an `AssignedTimer`. `bridges` bring requests in once
    `bridges.start` is called. Every other setting of `homing.toml` can be passed by its name. If
    `loaded_settings` is given, no other settings are used.
    """

    def __init__(
        self,
        store: str | Path | Backend | None = None,
        *,
        providers: Mapping[str, compose.ProviderArgument] | None = None,
        worker: bool = False,
        config_file: str | Path | None = None,
        on_event: EventCallback | None = None,
        events: Iterable[str] = EVENT_NAMES,
        directory: Directory | None = None,
        renderer: Renderer | None = None,
        clock: Clock | None = None,
        random_source: RandomSource | None = None,
        observers: Sequence[Observer] = (),
        timers: Mapping[str, compose.TimerArgument] | None = None,
        bridges: Mapping[str, Bridge] | None = None,
        loaded_settings: Settings | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(worker, bool):
            raise ConfigError("worker", "must be True or False; set the options of the worker in homing.toml")
        backend = None if store is None or isinstance(store, (str, Path)) else store
        if isinstance(store, (str, Path)):
            settings["store"] = str(store)
        loaded = loaded_settings or load_settings(config_file, env=os.environ, flags=settings)
        sinks: dict[str, compose.SubscribedSink] = {}
        if on_event is not None:
            sinks["callback"] = compose.build_callback_sink(on_event, events)
        super().__init__(
            compose.build_parts(
                loaded,
                backend=backend,
                providers=providers,
                sinks=sinks,
                directory=directory,
                renderer=renderer,
                clock=clock,
                random_source=random_source,
                observers=observers,
                timers=timers,
                bridges=bridges,
            ),
            compose.build_engine_settings(loaded, own_renderer=renderer is not None),
        )
        self._with_worker = worker

    async def open(self) -> None:
        """Connects to the store, and starts the worker if `worker=True` was passed."""
        await super().open()
        if self._with_worker:
            self.start_worker()

    async def send(
        self,
        recipient: To | Sequence[To],
        *,
        channel: str | None = None,
        channels: Sequence[str] = (),
        content: Content | Mapping[str, Any] | None = None,
        subject: str | None = None,
        title: str | None = None,
        body: str | None = None,
        html: str | None = None,
        send_at: datetime | timedelta | None = None,
        expires_at: datetime | timedelta | None = None,
        if_unavailable: Literal["raise", "spool"] = "raise",
        connection: Any = None,
        **fields: Any,
    ) -> SendResult:
        """Accepts a notification. When this returns, the notification is stored.

        It will be attempted until it is sent or its policy ends it.

        `subject`, `title`, `body` and `html` are short forms for fields of `content`. `send_at` and
        `expires_at` are times, or durations from now. With `if_unavailable="spool"`, the request is written
        to the spool instead while the store is unavailable. `connection` is a database connection in whose
        transaction the notification is stored. All other arguments are fields of `SendRequest`.
        """
        if subject or title or body or html:
            if content is not None:
                raise InvalidRequest("content", "and its short forms are both given; give only one of them")
            content = {"subject": subject, "title": title, "body": body, "html": html}
        raw = {
            **fields,
            "channel": channel,
            "channels": channels,
            "content": content,
            "send_at": self._moment(send_at, "sendAt"),
            "expires_at": self._moment(expires_at, "expiresAt"),
        }
        several = isinstance(recipient, Sequence) and not isinstance(recipient, str)
        raw["recipients" if several else "recipient"] = recipient
        durations = any(isinstance(at, timedelta) for at in (send_at, expires_at))
        return await self.submit(
            read_request(raw),
            if_unavailable=if_unavailable,
            connection=connection,
            asked=f"{send_at!s} {expires_at!s}" if durations else "",
        )

    def send_many(
        self, requests: Iterable[SendInput] | AsyncIterable[SendInput], *, connection: Any = None
    ) -> AsyncIterator[SendResult | Rejection]:
        """Accepts any number of requests, or mappings with their fields, in bounded memory.

        Yields the result or rejection of each request, in order.
        """
        return self.submit_many(requests, connection=connection)

    def _moment(self, at: datetime | timedelta | None, where: str) -> datetime | None:
        if not isinstance(at, timedelta):
            return at
        return moment(self._clock.now_ms() + span_ms(at, where))


class SyncHoming:
    """Homing for code that is not async. It runs one event loop on a thread of its own.

    Usage: `with SyncHoming("homing.db") as homing: homing.send(...)`. Other methods of `Homing` are available
    through `call`, such as `homing.call(lambda engine: engine.explain(id))`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._make: Callable[[], Homing] = lambda: Homing(*args, **kwargs)
        self._engine: Homing | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Starts the event loop and opens the engine. Has no effect if the engine is already open."""
        if self._engine is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="homing", daemon=True)
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Closes the engine and stops the event loop. Has no effect if the engine is not open."""
        if self._engine is not None:
            self._run(self._engine.close())
            self._engine = None
            self._stop()

    def call(self, what: Callable[[Homing], Coroutine[Any, Any, _T]]) -> _T:
        """Calls `what` with the engine, runs the coroutine that it returns, and returns the result."""
        return self._run(what(self._opened()))

    def send(self, recipient: To | Sequence[To], *, connection: Any = None, **fields: Any) -> SendResult:
        """Works like `Homing.send`. `connection` is used only on the calling thread."""
        return self._joined(
            connection, lambda engine, joined: engine.send(recipient, connection=joined, **fields)
        )

    def send_many(
        self, requests: Iterable[SendRequest | Mapping[str, Any]], *, connection: Any = None
    ) -> Iterator[SendResult | Rejection]:
        """Works like `Homing.send_many`, in chunks of 1,000 requests."""
        chunk: list[SendRequest | Mapping[str, Any]] = []
        first = 0
        for request in requests:
            chunk.append(request)
            if len(chunk) == 1_000:
                yield from self._send_chunk(chunk, first, connection)
                first, chunk = first + len(chunk), []
        yield from self._send_chunk(chunk, first, connection)

    def get(self, id: str) -> Notification:
        """Works like `Homing.get`."""
        return self.call(lambda engine: engine.get(id))

    def list(self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Works like `Homing.list`."""
        return self.call(lambda engine: engine.list(filter, limit=limit, cursor=cursor))

    def cancel(self, id: str, *, who: str = "api", why: str = "") -> bool:
        """Works like `Homing.cancel`."""
        return self.call(lambda engine: engine.cancel(id, who=who, why=why))

    def retry(self, id: str, **options: Any) -> Notification:
        """Works like `Homing.retry`."""
        return self.call(lambda engine: engine.retry(id, **options))

    def process(self, limit: int = 50) -> Processed:
        """Works like `Homing.process`."""
        return self.call(lambda engine: engine.process(limit))

    def _send_chunk(
        self, chunk: Sequence[SendRequest | Mapping[str, Any]], first: int, connection: Any
    ) -> Iterator[SendResult | Rejection]:
        async def collect(engine: Homing, joined: Any) -> list[SendResult | Rejection]:
            return [_shifted(result, first) async for result in engine.send_many(chunk, connection=joined)]

        yield from self._joined(connection, collect)

    def _joined(self, connection: Any, what: Callable[[Homing, Any], Coroutine[Any, Any, _T]]) -> _T:
        """Runs a coroutine that may use the caller's connection, which is used only on the caller's
        thread."""
        if connection is None:
            return self.call(lambda engine: what(engine, None))
        thread_calls = _CallingThread()
        joined = CallerConnection(connection, thread_calls.run)
        return thread_calls.serve(self._begin(what(self._opened(), joined)))

    async def _open(self) -> None:
        engine = self._make()
        await engine.open()
        self._engine = engine

    def _opened(self) -> Homing:
        if self._engine is None:
            raise RuntimeError("SyncHoming is not open; use it in a `with` block, or call open() first")
        return self._engine

    def _begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._begin(work).result()

    def _stop(self) -> None:
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

    def serve(self, work: Future[_T]) -> _T:
        """Runs the requested functions until the coroutine is done, and returns its result."""
        work.add_done_callback(lambda _: self._calls.put(None))
        while (requested := self._calls.get()) is not None:
            call, answer = requested
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
        return work.result()


def _shifted(result: SendResult | Rejection, by: int) -> SendResult | Rejection:
    return replace(result, index=result.index + by) if isinstance(result, Rejection) else result
