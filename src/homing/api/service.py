"""What the routes work with, and the one request that each is called for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct, field

from homing.core.access import Caller
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.engine.front import Front
from homing.engine.homing import Engine

_MOST_FRONTS = 1_000


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
    buffer_bytes: int = 256 * 1024 * 1024
    """What all bodies under way may have together; more is answered with 503."""


class Gatekeeper(Protocol):
    """Tells who calls."""

    async def caller(self, authorization: str) -> Caller | None:
        """From an Authorization header; None: it is nobody's."""

    async def admit(self, caller: Caller) -> int:
        """Counts one request of the caller; 0: come in, else in how many milliseconds to come again."""


class Trail(Protocol):
    """Where it is written down who did what, before it is done."""

    async def note(self, caller: Caller, action: str, target: str, detail: Mapping[str, Any]) -> None: ...


class Watcher(Protocol):
    """Looks at requests as they come and go. Both calls must be quick, and change nothing."""

    def began(self, headers: Sequence[tuple[bytes, bytes]]) -> Any:
        """One has come; what is returned is given back at its end. In the context that it is answered in."""

    def ended(self, began: Any, operation: str, method: str, status: int, took_s: float) -> None:
        """It was answered. `operation`: as the OpenAPI names it; empty: there is none at that address."""


class Service(Struct, kw_only=True):
    """Everything behind the routes."""

    engine: Engine
    gatekeeper: Gatekeeper
    trail: Trail
    settings: ServiceSettings = ServiceSettings()
    simulate: Callable[[Rehearsal], Awaitable[RehearsalReport]] | None = None
    """Rehearses an outage, beside everything else that goes on here."""
    simulating: int = 0
    """How many rehearsals are under way."""

    metrics: Callable[[], Awaitable[tuple[bytes, str]]] | None = None
    """The page for Prometheus, and its content type; None: nothing is counted."""
    fronts: dict[str, Front] = field(default_factory=dict)
    """Made before; the engine makes more."""

    def front(self, tenant: str) -> Front:
        """What a tenant can do."""
        if tenant == self.engine.tenant:
            return self.engine
        found = self.fronts.get(tenant)
        if found is None:
            if len(self.fronts) >= _MOST_FRONTS:
                self.fronts.clear()
            found = self.fronts[tenant] = self.engine.of(tenant)
        return found


class Call(Struct, kw_only=True, gc=False):
    """One request, as a route sees it."""

    service: Service
    caller: Caller
    """Of an open route: nobody."""
    method: str
    scope: Mapping[str, Any]
    """As the server read it."""
    headers: Mapping[str, str]
    """Names in lower case; of one that is repeated, the last."""
    raw: bytes = b""
    """The body, decompressed."""

    @property
    def url(self) -> str:
        """As the caller knows it, with the public scheme and host: signatures of providers are over that."""
        query = self.scope["query_string"].decode("latin-1")
        base = self.service.settings.public_url.rstrip("/")
        base = base or f"{self.scope.get('scheme', 'http')}://{self.headers.get('host', '')}"
        return f"{base}{sent_path(self.scope)}{f'?{query}' if query else ''}"

    @property
    def front(self) -> Front:
        """What the caller's tenant can do, and nothing of any other."""
        return self.service.front(self.caller.tenant)

    async def note(self, action: str, target: str = "", **detail: Any) -> None:
        """Writes into the audit trail what is about to be done; raises where that is not possible."""
        await self.service.trail.note(self.caller, action, target, detail)


def sent_path(scope: Mapping[str, Any]) -> str:
    """The path as it was sent, nothing decoded."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


NOBODY = Caller(tenant="", who="", scopes=frozenset())

Handler = Callable[..., Awaitable[Any]]
