"""Keys, tenants and the audit trail over real HTTP, with the real gatekeeper."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from homing.api.access.authentication import ApiGatekeeper, TokenVerifier, read_issuers
from homing.api.all_routes import all_routes
from homing.core.access.scopes import Caller, Scope
from homing.core.errors import StoreUnavailable
from homing.core.ports.stores import TokenGrant
from homing.core.routing.rate_limits import RateLimit
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.tenants import Tenants
from homing.engine.system_runtime import SystemClock
from homing.stores.sqlite import SqliteStore
from homing.testing.manual_clock import ManualClock
from support.event_loops import LoopKind
from support.running_service import Reply, RunningService

MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}
ISSUER = {
    "issuer": "https://id.example.org",
    "audience": "homing",
    "algorithm": "HS256",
    "key": "correct-horse-battery-staple-0123456789",
    "tenant_claim": "org",
    "scopes": ["admin"],
}


class GuardedService:
    """A service behind its real gatekeeper, and its first admin key."""

    def __init__(self, serving: RunningService, store: SqliteStore, rate_per_second: float) -> None:
        self.serving = serving
        engine = serving.engine
        clock = SystemClock()
        serving.app.service.trail = engine.audit
        serving.app.service.gatekeeper = ApiGatekeeper(
            keys=engine.keys,
            tenants=engine.tenants,
            shared=store,
            clock=clock,
            rate_per_second=rate_per_second,
            tokens=TokenVerifier(read_issuers([ISSUER], lambda field, given: given), clock),
        )
        self.admin = serving.on_loop(lambda e: e.keys.create("default", "first", ["admin"], who="test")).text

    def __call__(self, method: str, path: str, json: Any = None, *, key: str = "") -> Reply:
        return self.serving.call(method, f"/api/v1{path}", json, key=key or self.admin)

    def make(self, tenant: str, *scopes: str, **fields: Any) -> Any:
        """Creates a key for a tenant, which is created if it does not exist."""
        self("POST", "/tenants", {"name": tenant})
        made = self(
            "POST", "/keys", {"name": "shop", "tenant": tenant, "scopes": scopes or ["send"], **fields}
        )
        assert made.status == 201, made.body
        return made.json


@pytest.fixture
def guarded(serve: Callable[..., RunningService]) -> Callable[..., GuardedService]:
    def make(rate_per_second: float = 0) -> GuardedService:
        store = SqliteStore(":memory:")
        return GuardedService(serve(store=store), store, rate_per_second)

    return make


def token(**claims: Any) -> str:
    now = SystemClock().now_ms() // 1000
    given = {"iss": ISSUER["issuer"], "aud": "homing", "sub": "ada", "iat": now, "exp": now + 60, **claims}
    return jwt.encode(given, str(ISSUER["key"]), "HS256")


def test_a_key_is_shown_once_and_authenticates_its_tenant(guarded: Callable[..., GuardedService]) -> None:
    api = guarded()
    new = api.make("acme", "send", "read")
    id, text = new["key"]["id"], new["text"]
    assert text.startswith(f"hm_{id}_")
    assert (new["key"]["tenant"], new["key"]["scopes"], new["key"]["status"]) == (
        "acme",
        ["send", "read"],
        "active",
    )
    sent = api("POST", "/notifications/send", MAIL, key=text)
    assert sent.status == 202
    assert api("GET", f"/notifications/{sent.json['notificationId']}", key=text).json["tenant"] == "acme"
    read = api("GET", f"/keys/{id}")
    assert read.json["lastUsedAt"]
    assert text.rpartition("_")[2] not in str(read.json) + str(api("GET", "/keys").json)


def test_without_the_scope_admin_a_key_cannot_use_keys_tenants_or_the_trail(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    mine, theirs = api.make("acme", "send", "read", "operate", "manage"), api.make("globex", "send")
    for method, path, body in (
        ("GET", "/keys", None),
        ("GET", f"/keys/{theirs['key']['id']}", None),
        ("GET", "/keys/nothing", None),
        ("POST", "/keys", {"name": "x", "scopes": ["admin"]}),
        ("POST", f"/keys/{theirs['key']['id']}/revoke", None),
        ("POST", f"/keys/{mine['key']['id']}/rotate", None),
        ("GET", "/tenants", None),
        ("GET", "/tenants/globex", None),
        ("GET", "/tenants/nobody", None),
        ("POST", "/tenants", {"name": "globex"}),
        ("POST", "/tenants/globex/disable", None),
        ("GET", "/audit", None),
        ("GET", "/audit?shared=true", None),
    ):
        refused = api(method, path, body, key=mine["text"])
        assert refused.status == 403, path
        assert "globex" not in refused.body.decode(), "the same answer whether it is there or not"


def test_another_tenant_s_notifications_do_not_exist_for_a_key(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    mine, theirs = api.make("acme", "send", "read")["text"], api.make("globex", "send", "read")["text"]
    id = api("POST", "/notifications/send", MAIL, key=theirs).json["notificationId"]
    nothing = "01890000-0000-7000-8000-000000000000"
    hidden, absent = (api("GET", f"/notifications/{one}", key=mine) for one in (id, nothing))
    assert (hidden.status, absent.status) == (404, 404)
    assert hidden.body.replace(id.encode(), b"") == absent.body.replace(nothing.encode(), b"")


def test_no_part_of_a_request_can_name_another_tenant(guarded: Callable[..., GuardedService]) -> None:
    """Reads every path, with the other tenant's name in headers and query, and ids written in other ways."""
    api = guarded()
    mine = api.make("acme", "send", "read", "operate", "manage")["text"]
    theirs = api.make("globex", "send", "read", "operate", "manage")["text"]
    marked = {
        **MAIL,
        "recipient": {"id": "secret-person", "email": "marked@globex.example"},
        "type": "marked",
    }
    id = api("POST", "/notifications/send", marked, key=theirs).json["notificationId"]
    assert b"marked" in api("GET", f"/notifications/{id}", key=theirs).body
    names = ("globex", "GLOBEX", "*", "", "acme,globex", "globex%00", "../globex", "default")
    headers = ("X-Tenant", "X-Tenant-Id", "X-Homing-Tenant", "Tenant", "X-Forwarded-User", "X-Original-URL")
    paths = [route.path for route in all_routes() if route.method == "GET" and Scope.READ in route.scopes]
    tried = 0
    for path in paths:
        full = re.sub(r"\{id\}", id, path)
        full = re.sub(r"\{\w+\}", "secret-person", full)
        for name, header in zip(names, headers * 2, strict=False):
            for query in ("", f"?tenant={name}", f"?tenant[]={name}&tenantId={name}"):
                reply = api.serving.call("GET", full + query, key=mine, headers={header: name or "globex"})
                assert b"marked" not in reply.body, (full, query)
                assert reply.status in (200, 400, 404, 422), (full, query, reply.status)
                tried += 1
    for other in (id.upper(), f"{id}%00", f"globex:{id}", f"..%2Fglobex%2F{id}", f"{{{id}}}"):
        assert b"marked" not in api("GET", f"/notifications/{other}", key=mine).body
    body = {**MAIL, "tenant": "globex"}
    assert api("POST", "/notifications/send", body, key=mine).status == 400
    assert tried > 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer nonsense", "Bearer hm_x_y", "hm_", "Bearer " + "x" * 9000,
     "Bearer a.b.c", "Bearer \x00"],
)  # fmt: skip
def test_every_invalid_key_is_refused_in_the_same_way(
    guarded: Callable[..., GuardedService], authorization: str, loop_kind: LoopKind
) -> None:
    api = guarded()
    service = api.serving
    if "\x00" in authorization:
        gate = service.app.service.gatekeeper
        assert loop_kind.run(gate.caller(authorization)) is None
        return
    refused = service.call("GET", "/api/v1/keys", key=None, headers={"Authorization": authorization})
    assert (refused.status, refused.json["error"]["code"]) == (401, "UNAUTHORIZED")


def test_a_revoked_key_and_a_disabled_tenant_s_key_are_refused_like_an_unknown_key(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    gone, off = api.make("acme"), api.make("globex")
    assert api("POST", f"/keys/{gone['key']['id']}/revoke").json["status"] == "revoked"
    assert api("POST", "/tenants/globex/disable").json["enabled"] is False
    answers = {
        api("POST", "/notifications/send", MAIL, key=key).body
        for key in (gone["text"], off["text"], gone["text"][:-1] + "0")
    }
    assert len(answers) == 1
    api("POST", "/tenants/globex/enable")
    assert api("POST", "/notifications/send", MAIL, key=off["text"]).status == 202
    found = api("GET", "/tenants/globex").json
    assert (found["name"], found["enabled"], found["keyCount"]) == ("globex", True, 1)


def test_a_rotated_key_works_next_to_the_new_one(guarded: Callable[..., GuardedService]) -> None:
    api = guarded()
    old = api.make("acme", "read", ratePerSecond=50)
    new = api("POST", f"/keys/{old['key']['id']}/rotate").json
    assert new["key"]["ratePerSecond"] == 50
    assert api("GET", f"/keys/{old['key']['id']}").json["replacedBy"] == new["key"]["id"]
    for key in (old["text"], new["text"]):
        assert api("GET", "/notifications", key=key).status == 200
    again = api("POST", f"/keys/{old['key']['id']}/rotate")
    assert (again.status, again.json["error"]["code"]) == (409, "COMMAND_REFUSED")
    last = api("POST", f"/keys/{new['key']['id']}/rotate", {"overlapMs": 0})
    assert api("GET", "/notifications", key=new["text"]).status == 401
    assert api("GET", "/notifications", key=last.json["text"]).status == 200


def test_lists_come_in_pages(guarded: Callable[..., GuardedService]) -> None:
    api = guarded()
    made = {api.make("acme")["key"]["id"] for _ in range(3)}
    first = api("GET", "/keys?tenant=acme&limit=2").json
    rest = api("GET", f"/keys?tenant=acme&limit=2&cursor={first['cursor']}").json
    assert {key["id"] for key in first["items"] + rest["items"]} == made
    assert rest["cursor"] is None
    names = api("GET", "/tenants?limit=1").json
    assert [one["name"] for one in names["items"]] == ["acme"]
    assert api("GET", f"/tenants?cursor={names['cursor']}").json["items"][0]["name"] == "default"


def test_invalid_input_is_refused_with_the_field_and_creates_nothing(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    for body, status, field in (
        ({"name": "x", "scopes": []}, 400, "scopes"),
        ({"name": "x", "scopes": ["root"]}, 400, "scopes"),
        ({"name": "", "scopes": ["send"]}, 400, "name"),
        ({"name": " ", "scopes": ["send"]}, 422, "name"),
        ({"name": "x", "scopes": ["send"], "expiresAt": "2000-01-01T00:00:00Z"}, 422, "expiresAt"),
        ({"name": "x", "scopes": ["send"], "ratePerSecond": -1}, 400, "ratePerSecond"),
        ({"name": "x", "scopes": ["send"], "tenant": "nobody"}, 404, None),
    ):
        refused = api("POST", "/keys", body)
        assert refused.status == status, body
        if field:
            assert refused.json["error"]["field"].startswith(field)
    assert len(api("GET", "/keys").json["items"]) == 1
    assert api("POST", "/tenants", {"name": "a b"}).status == 400
    assert api("POST", "/tenants", {"name": "default"}).status == 409
    assert api("GET", "/keys/nothing").status == 404


def test_an_admin_s_token_authenticates_its_tenant_and_is_recorded_by_its_subject(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    api.make("acme")
    assert api("GET", "/keys", key=token(org="acme")).status == 200
    assert api("GET", "/keys", key=token(org="nobody")).status == 401
    assert api("GET", "/keys", key=token(org="acme", aud="other")).status == 401
    api("POST", "/tenants", {"name": "third"}, key=token(org="acme"))
    assert api("GET", "/audit?shared=true").json["items"][0]["who"] == "jwt:ada"
    api("POST", "/tenants/acme/disable")
    assert api("GET", "/keys", key=token(org="acme")).status == 401


def test_an_action_is_in_the_audit_trail_of_the_tenant_it_affects(
    guarded: Callable[..., GuardedService],
) -> None:
    api = guarded()
    new = api.make("acme", "admin")
    api("POST", f"/keys/{new['key']['id']}/rotate", key=new["text"])
    mine = api("GET", "/audit", key=new["text"]).json["items"]
    assert [(one["action"], one["who"].partition(":")[0]) for one in mine] == [
        ("key.rotate", "key"),
        ("key.create", "key"),
    ]
    assert mine[0]["previous"] == mine[1]["hash"]
    assert mine[0]["who"] == f"key:{new['key']['id']}"
    assert new["text"].rpartition("_")[2] not in str(mine)
    shared = api("GET", "/audit?shared=true&limit=1").json
    assert [(one["action"], one["target"]) for one in shared["items"]] == [("tenant.create", "acme")]
    assert api("GET", "/audit").json["items"] == [], "nothing was done in the default tenant"
    assert api("GET", "/audit?cursor=made-up").status == 400


def test_no_operation_changes_or_deletes_the_audit_trail(guarded: Callable[..., GuardedService]) -> None:
    api = guarded()
    for method in ("DELETE", "PUT", "POST"):
        assert api(method, "/audit").status == 405
        assert api(method, "/audit/1").status == 404


def test_an_action_that_cannot_be_recorded_is_not_done(guarded: Callable[..., GuardedService]) -> None:
    api = guarded()

    class Lost:
        async def note(self, *given: Any) -> None:
            raise StoreUnavailable

    api.serving.app.service.trail = Lost()
    assert api("POST", "/tenants", {"name": "acme"}).status == 503
    assert api("POST", "/keys", {"name": "x", "scopes": ["send"]}).status == 503
    assert len(api("GET", "/keys").json["items"]) == 1
    assert api("GET", "/tenants/acme").status == 404


def test_a_key_above_its_rate_is_told_when_to_retry(guarded: Callable[..., GuardedService]) -> None:
    api = guarded(rate_per_second=0)
    slow = api.make("acme", "read", ratePerSecond=0.001)["text"]
    assert api("GET", "/notifications", key=slow).status == 200
    refused = api("GET", "/notifications", key=slow)
    assert (refused.status, refused.json["error"]["code"]) == (429, "RATE_LIMITED")
    assert 900 < int(refused.headers["retry-after"]) <= 1000
    assert api("GET", "/keys").status == 200, "others are not touched"


# Rate limits of keys, on a controlled clock ----------------------------------------------------------------


class CountingStore(SqliteStore):
    """Counts how often tokens of the rate limit are taken."""

    leases = 0

    async def take(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> TokenGrant:
        self.leases += 1
        await asyncio.sleep(0)
        return await super().take(key, limit, want, reserve)


def gate(store: SqliteStore, clock: ManualClock, rate: float = 100, burst: int = 0) -> ApiGatekeeper:
    tenants = Tenants(store, clock)
    return ApiGatekeeper(
        keys=ApiKeyManager(store, tenants, clock, random.Random(1)),
        tenants=tenants,
        shared=store,
        clock=clock,
        rate_per_second=rate,
        rate_burst=burst,
    )


def caller(rate: float | None = None, key: str = "key:1") -> Caller:
    return Caller(tenant="t", who=key, scopes=frozenset(Scope), rate_per_second=rate, rate_key=key)


async def admitted(one: ApiGatekeeper, who: Caller, requests: int) -> int:
    return sum([await one.admit(who) == 0 for _ in range(requests)])


async def test_several_processes_share_one_rate() -> None:
    clock = ManualClock()
    store = CountingStore(":memory:", clock=clock.now_ms)
    gates = [gate(store, clock) for _ in range(3)]
    assert sum([await admitted(one, caller(), 300) for one in gates]) == 200, "two seconds' worth at once"
    for _ in range(10):
        clock.advance(1_000)
        assert sum([await admitted(one, caller(), 100) for one in gates]) <= 125
    assert store.leases < 200, "not one for each of 3,900 requests"


async def test_concurrent_requests_share_a_call_for_tokens_and_none_exceeds_the_limit() -> None:
    clock = ManualClock()
    store = CountingStore(":memory:", clock=clock.now_ms)
    one = gate(store, clock, rate=1000)
    waits = await asyncio.gather(*(one.admit(caller()) for _ in range(3000)))
    assert waits.count(0) == 2000
    assert all(wait > 0 for wait in waits if wait)
    assert store.leases <= 9


async def test_a_caller_that_must_wait_is_answered_without_a_call_to_the_store() -> None:
    clock = ManualClock()
    store = CountingStore(":memory:", clock=clock.now_ms)
    one = gate(store, clock, rate=10, burst=5)
    assert await admitted(one, caller(), 100) == 5
    asked = store.leases
    assert await admitted(one, caller(), 1000) == 0
    assert store.leases == asked
    clock.advance(await one.admit(caller()))
    assert await one.admit(caller()) == 0


async def test_a_key_may_have_its_own_rate_or_none() -> None:
    clock = ManualClock()
    one = gate(CountingStore(":memory:", clock=clock.now_ms), clock, rate=1)
    assert await admitted(one, caller(rate=50, key="key:2"), 1000) == 100
    assert await admitted(one, caller(rate=0, key="key:3"), 1000) == 1000
    assert await admitted(one, caller(), 1000) == 2
    free = gate(CountingStore(":memory:", clock=clock.now_ms), clock, rate=0)
    assert await admitted(free, caller(), 1000) == 1000


async def test_if_the_store_fails_every_waiting_caller_gets_the_error() -> None:
    clock = ManualClock()

    class UnavailableStore(SqliteStore):
        async def take(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> TokenGrant:
            await asyncio.sleep(0)
            raise StoreUnavailable

    one = gate(UnavailableStore(":memory:", clock=clock.now_ms), clock)
    answers = await asyncio.gather(*(one.admit(caller()) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
