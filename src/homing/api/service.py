"""The objects that handlers use: the service with its engine and settings, and the current call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct, field

from homing.api.http.bodies import ApiError
from homing.api.settings import ServiceSettings
from homing.core.access.scopes import Caller
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.engine.engine import Engine
from homing.engine.tenant_api import TenantApi

_MAX_FRONTS = 1_000


class Gatekeeper(Protocol):
    """Authenticates callers and enforces their rate limits."""

    async def caller(self, authorization: str) -> Caller | None:
        """Returns the caller of an Authorization header, or None if the credentials are not valid."""

    async def admit(self, caller: Caller) -> int:
        """Counts one request. Returns 0 if it is within the rate limit, else the milliseconds to wait."""


class AuditRecorder(Protocol):
    """Records who does what in the audit trail."""

    async def note(self, caller: Caller, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """Writes an entry. Called before the action is executed."""


class Service(Struct, kw_only=True):
    """The engine and everything else that handlers need, the same for all requests."""

    engine: Engine
    gatekeeper: Gatekeeper
    trail: AuditRecorder
    settings: ServiceSettings = ServiceSettings()
    simulate: Callable[[Rehearsal], Awaitable[RehearsalReport]] | None = None
    """Runs a simulation without blocking other requests. None if simulations are not available."""
    working: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of simulations and renderings that run now, by kind and tenant. Tenant `*` stands for all."""
    metrics: Callable[[], Awaitable[tuple[bytes, str]]] | None = None
    """Returns the metrics for Prometheus and their content type. None if metrics are not enabled."""
    fronts: dict[str, TenantApi] = field(default_factory=dict)
    """The engine's operations by tenant, cached."""

    def simulating(self, tenant: str) -> AbstractContextManager[None]:
        """Counts a simulation of a tenant, as `one_of` does. The API and the dashboard share the limit."""
        return self.one_of("simulations", tenant, per_tenant=1, of_all=2)

    def rendering(self, tenant: str) -> AbstractContextManager[None]:
        """Counts a preview or check of templates of a tenant. The API and the dashboard share the limit."""
        return self.one_of("renderings", tenant, per_tenant=2, of_all=8)

    @contextmanager
    def one_of(self, kind: str, tenant: str, *, per_tenant: int, of_all: int) -> Iterator[None]:
        """Counts a simulation or rendering while the `with` block runs.

        Raises `OVERLOADED` if as many of this tenant, or of all tenants, run already. Nothing may be awaited
        before the block, so that concurrent requests see each other.
        """
        mine, all_ = (kind, tenant), (kind, "*")
        if self.working[mine] >= per_tenant or self.working[all_] >= of_all:
            raise ApiError("OVERLOADED", f"too many {kind} are running; try again in a few seconds")
        self.working[mine] += 1
        self.working[all_] += 1
        try:
            yield
        finally:
            self.working[all_] -= 1
            self.working[mine] -= 1
            if not self.working[mine]:
                del self.working[mine]

    def tenant_api(self, tenant: str) -> TenantApi:
        """Returns the engine's operations for one tenant."""
        if tenant == self.engine.tenant:
            return self.engine
        found = self.fronts.get(tenant)
        if found is None:
            if len(self.fronts) >= _MAX_FRONTS:
                self.fronts.clear()
            found = self.fronts[tenant] = self.engine.of(tenant)
        return found


class ApiCall(Struct, kw_only=True, gc=False):
    """One request, as passed to a handler."""

    service: Service
    caller: Caller
    """The authenticated caller. `ANONYMOUS` if the route needs no key."""
    method: str
    scope: Mapping[str, Any]
    """The ASGI scope."""
    headers: Mapping[str, str]
    """Header values by lowercase name. If a header is repeated, its last value."""
    raw: bytes = b""
    """The body, decompressed."""

    @property
    def url(self) -> str:
        """URL that the caller used, with the public scheme and host. Providers sign this URL."""
        query = self.scope["query_string"].decode("latin-1")
        base = self.service.settings.public_url.rstrip("/")
        base = base or f"{self.scope.get('scheme', 'http')}://{self.headers.get('host', '')}"
        return f"{base}{raw_path(self.scope)}{f'?{query}' if query else ''}"

    @property
    def tenant_api(self) -> TenantApi:
        """The engine's operations for the caller's tenant."""
        return self.service.tenant_api(self.caller.tenant)

    async def note(self, action: str, target: str = "", **detail: Any) -> None:
        """Records an action in the audit trail before it happens. Raises if the entry cannot be written."""
        await self.service.trail.note(self.caller, action, target, detail)


def raw_path(scope: Mapping[str, Any]) -> str:
    """Returns the path of a request with its percent-encoding."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


ANONYMOUS = Caller(tenant="", who="", scopes=frozenset())


Handler = Callable[..., Awaitable[Any]]
