"""What the routes work with, and the one request that each is called for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from homing.core.access import Caller
from homing.engine.front import Front
from homing.engine.homing import Engine


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """How the service behaves towards its callers."""

    public_url: str = ""
    """As providers and recipients reach it; empty: as each request says."""
    body_bytes: int = 1024 * 1024
    """The most that a body may have, after decompression."""
    batch_bytes: int = 32 * 1024 * 1024
    """The same for a batch of notifications."""
    read_ms: int = 10_000
    """How long a body may take to arrive."""
    answer_ms: int = 30_000
    """How long an answer may take."""
    max_requests: int = 1_000
    """Under way at once; more are answered with 503."""


class Gatekeeper(Protocol):
    """Tells who calls."""

    async def caller(self, authorization: str) -> Caller | None:
        """From an Authorization header; None: it is nobody's."""

    async def admit(self, caller: Caller) -> int:
        """Counts one request of the caller; 0: come in, else in how many milliseconds to come again."""


class Trail(Protocol):
    """Where it is written down who did what, before it is done."""

    async def note(self, caller: Caller, action: str, target: str, detail: Mapping[str, Any]) -> None: ...


class Service(Struct, kw_only=True):
    """Everything behind the routes."""

    engine: Engine
    gatekeeper: Gatekeeper
    trail: Trail
    settings: ServiceSettings = ServiceSettings()

    def front(self, tenant: str) -> Front:
        return self.engine if tenant == self.engine.tenant else self.engine.of(tenant)


class Call(Struct, kw_only=True, gc=False):
    """One request, as a route sees it."""

    service: Service
    caller: Caller
    """Of an open route: nobody."""
    method: str
    url: str
    """As it was called, with the public scheme and host."""
    headers: Mapping[str, str]
    """Names in lower case; of one that is repeated, the last."""
    raw: bytes = b""
    """The body, decompressed."""

    @property
    def front(self) -> Front:
        """What the caller's tenant can do, and nothing of any other."""
        return self.service.front(self.caller.tenant)

    async def note(self, action: str, target: str = "", **detail: Any) -> None:
        """Writes into the audit trail what is about to be done; raises where that is not possible."""
        await self.service.trail.note(self.caller, action, target, detail)


NOBODY = Caller(tenant="", who="", scopes=frozenset())

Handler = Callable[..., Awaitable[Any]]
