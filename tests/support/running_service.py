"""The service over real HTTP for tests: an engine, its application and a server, on their own thread."""

from __future__ import annotations

import asyncio
import http.client
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest

from homing import Homing
from homing.api.all_routes import all_routes
from homing.api.http.app import App
from homing.api.service import Service
from homing.api.settings import ServiceSettings
from homing.core.access.scopes import Caller, Scope
from homing.http_server.asgi import RequestObserver
from homing.http_server.server import HttpServer, open_listener
from homing.http_server.settings import ServerSettings
from support.event_loops import LoopKind

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """A response of the service."""

    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class AnyKey:
    """A gatekeeper for tests that are not about keys: the key is `TENANT` or `TENANT:SCOPE,SCOPE`."""

    async def caller(self, authorization: str) -> Caller | None:
        kind, _, key = authorization.partition(" ")
        if kind != "Bearer" or not key:
            return None
        tenant, _, scopes = key.partition(":")
        has = frozenset(map(Scope, scopes.split(","))) if scopes else frozenset(Scope)
        return Caller(tenant=tenant, who=f"key:{tenant}", scopes=has, rate_key=tenant)

    async def admit(self, caller: Caller) -> int:
        return 0


class RecordedTrail:
    """An audit trail that a test can read."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str, Mapping[str, Any]]] = []

    async def note(self, caller: Caller, action: str, target: str, detail: Mapping[str, Any]) -> None:
        self.notes.append((caller.who, action, target, detail))


class RunningService:
    """A running service. `call` makes one request, `on_loop` runs code on the engine's loop."""

    def __init__(
        self,
        loop_kind: LoopKind,
        settings: ServiceSettings | None = None,
        *,
        watchers: Sequence[RequestObserver] = (),
        **homing: Any,
    ) -> None:
        self._settings = settings or ServiceSettings()
        self._watchers = watchers
        self._homing = homing
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: loop_kind.run(self._serve()), daemon=True)
        self.trail = RecordedTrail()
        self.port = 0

    def __enter__(self) -> RunningService:
        self._thread.start()
        assert self._ready.wait(20), "the service did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the service did not stop"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: str | None = "default",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Makes one request and returns the response."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {key}")
        if json is not None:
            body = msgspec.json.encode(json)
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, named, answer.read())
        finally:
            connection.close()

    def on_loop(self, work: Callable[[Homing], Any]) -> Any:
        """Runs a coroutine of the engine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work(self.engine), self._loop).result(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Homing(**self._homing) as self.engine:
            service = Service(
                engine=self.engine, gatekeeper=AnyKey(), trail=self.trail, settings=self._settings
            )
            self.app = App(service, all_routes(), random_source=random.Random(1), watchers=self._watchers)
            self._server = HttpServer(self.app, ServerSettings())
            at = open_listener("127.0.0.1", 0)
            self.port = at.getsockname()[1]
            self._ready.set()
            await self._server.serve([at])


@pytest.fixture
def serve(loop_kind: LoopKind) -> Iterator[Callable[..., RunningService]]:
    """Starts services that are stopped after the test: `serve(store=…, providers=…, worker=True)`."""
    with ExitStack() as running:
        yield lambda settings=None, **homing: running.enter_context(
            RunningService(loop_kind, settings, **homing)
        )
