"""The application: what all routes have in common, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from homing.api.http.app import App
from homing.api.http.bodies import ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.api.settings import ServiceSettings
from homing.core.access.scopes import Scope
from homing.core.errors import StoreUnavailable
from support.running_service import RunningService

Serve = Callable[..., RunningService]
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(ServiceSettings(body_bytes=10_000), store="memory:")


def test_an_accepted_request_returns_an_id_under_which_it_can_be_read(service: RunningService) -> None:
    sent = service.call("POST", "/api/v1/notifications/send", MAIL)
    assert sent.status == 202
    assert sent.json["status"] == "queued"
    found = service.call("GET", f"/api/v1/notifications/{sent.json['notificationId']}")
    assert found.json["recipient"] == {"email": "ada@example.org"}


def test_without_a_key_every_request_is_refused(service: RunningService) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", MAIL, key=None)
    assert (refused.status, refused.json["error"]["code"]) == (401, "UNAUTHORIZED")
    assert refused.headers["www-authenticate"] == "Bearer"


def test_a_key_without_the_scope_is_refused_with_the_needed_scope(service: RunningService) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", MAIL, key="default:read")
    assert refused.status == 403
    assert "scope send" in refused.json["error"]["message"]


def test_another_tenant_finds_nothing(service: RunningService) -> None:
    id = service.call("POST", "/api/v1/notifications/send", MAIL, key="acme").json["notificationId"]
    refused = service.call("GET", f"/api/v1/notifications/{id}", key="other")
    assert (refused.status, refused.json["error"]["code"]) == (404, "NOT_FOUND")


def test_a_wrong_type_and_an_unknown_field_are_named(service: RunningService) -> None:
    wrong = service.call("POST", "/api/v1/notifications/send", {**MAIL, "bulk": "yes"})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "bulk")
    unknown = service.call("POST", "/api/v1/notifications/send", {**MAIL, "chanel": "sms"})
    assert (unknown.status, unknown.json["error"]["field"]) == (400, "chanel")
    assert "did you mean channel" in unknown.json["error"]["message"]


def test_a_well_formed_but_unacceptable_request_has_another_status_than_a_malformed_one(
    service: RunningService,
) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", {**MAIL, "channel": "pigeon"})
    assert (refused.status, refused.json["error"]["code"]) == (422, "INVALID_REQUEST")
    assert refused.json["error"]["field"] == "channel"


def test_the_size_of_a_body_is_limited_after_decompression(service: RunningService) -> None:
    bomb = zlib.compress(b" " * 1_000_000)
    refused = service.call(
        "POST",
        "/api/v1/notifications/send",
        body=bomb,
        headers={"Content-Type": "application/json", "Content-Encoding": "deflate"},
    )
    assert (refused.status, refused.json["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_an_unknown_path_and_an_unknown_method_have_different_statuses(service: RunningService) -> None:
    assert service.call("GET", "/api/v1/nothing").status == 404
    refused = service.call("DELETE", "/api/v1/notifications/send")
    assert refused.status == 405
    assert refused.headers["allow"] == "POST"


def test_head_is_answered_like_get_without_the_body(service: RunningService) -> None:
    got, head = service.call("GET", "/api/v1/notifications"), service.call("HEAD", "/api/v1/notifications")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


def test_a_request_keeps_its_own_id_unless_it_is_unfit_for_a_log(
    service: RunningService,
) -> None:
    def answered_with(id: str) -> str:
        return service.call("GET", "/healthz", headers={"X-Request-Id": id}).headers["x-request-id"]

    assert answered_with("order-1815_a") == "order-1815_a"
    for unfit in ("short", "with blanks in it", "ada@example.org", "x" * 65):
        assert answered_with(unfit) != unfit
    given = {service.call("GET", "/healthz").headers["x-request-id"] for _ in range(3)}
    assert len(given) == 3


def test_each_request_is_logged_without_its_content(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "homing.requests"):
        service.call("POST", "/api/v1/notifications/send", MAIL, headers={"X-Request-Id": "tell-me-of-it"})
        service.call("GET", "/api/v1/recipients/ada@example.org?who=ada@example.org")
        service.call("GET", "/ada@example.org")
        service.call("GET", "/healthz")  # by the time of this response, the others have been logged
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("POST /api/v1/notifications/send 202 ")
    assert lines[0].endswith(" tell-me-of-it")
    assert lines[1].startswith("GET /api/v1/recipients/{")
    assert lines[2].startswith("- - 404 ")
    assert "ada" not in "".join(str(record.__dict__) for record in caplog.records)


def test_an_excessively_nested_body_is_refused(service: RunningService) -> None:
    deep = b'{"metadata": ' + b'{"a":' * 100_000
    headers = {"Content-Type": "application/json"}
    refused = service.call("POST", "/api/v1/notifications/send", body=deep[:9_000], headers=headers)
    assert (refused.status, refused.json["error"]["code"]) == (400, "MALFORMED_REQUEST")


def test_a_deeply_nested_body_with_a_number_in_the_wrong_place_is_refused(service: RunningService) -> None:
    deep = b'{"metadata": ' + b'{"a":' * 600 + b"1" + b"}" * 600 + b', "type": 1.0}'
    headers = {"Content-Type": "application/json"}
    refused = service.call("POST", "/api/v1/notifications/send", body=deep, headers=headers)
    assert (refused.status, refused.json["error"]["code"]) == (400, "MALFORMED_REQUEST")


# Routes of a test ----------------------------------------------------------------------------------


class DirectRequest:
    """Returns an application's response to one request, without a server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    async def __call__(self, path: str) -> DirectRequest:
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await asyncio.create_task(self._app(scope, self._receive, self._send))
        return self

    async def _receive(self) -> Any:
        return {"type": "http.request", "body": b""}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


def an_app(service: RunningService, routes: Routes, **settings: Any) -> App:
    made = replace(service.app.service, settings=ServiceSettings(**settings))
    return App(made, routes.all, random_source=random.Random(1))


async def test_a_request_that_takes_too_long_is_aborted(service: RunningService) -> None:
    routes = Routes("Test", prefix="")
    broken_off = asyncio.Event()

    @routes.get("/forever")
    async def forever(call: ApiCall) -> None:
        """Never ends."""
        try:
            await asyncio.Event().wait()
        finally:
            broken_off.set()

    asked = await DirectRequest(an_app(service, routes, read_ms=1, answer_ms=1))("/forever")
    assert (asked.status, asked.code) == (503, "TIMEOUT")
    assert broken_off.is_set()


async def test_a_key_that_the_store_does_not_check_in_time_is_no_fault_of_the_caller(
    service: RunningService,
) -> None:
    """The whole request has arrived, so 408 would be wrong."""

    class HangingGatekeeper:
        async def caller(self, header: str) -> None:
            await asyncio.Event().wait()

    routes = Routes("Test", prefix="")

    @routes.get("/guarded", scope=Scope.READ)
    async def guarded(call: ApiCall) -> None:
        """Is not reached."""

    app = an_app(service, routes, read_ms=1, answer_ms=1)
    app.service = replace(app.service, gatekeeper=HangingGatekeeper())
    asked = await DirectRequest(app)("/guarded")
    assert (asked.status, asked.code) == (503, "TIMEOUT")
    assert asked.headers[b"retry-after"] == b"1"


async def test_an_unexpected_error_is_answered_without_its_text_and_logged_with_the_response_s_id(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    routes = Routes("Test", prefix="")

    @routes.get("/broken")
    async def broken(call: ApiCall) -> None:
        """Fails."""
        raise ValueError("the password is swordfish")

    asked = await DirectRequest(an_app(service, routes))("/broken")
    assert (asked.status, asked.code) == (500, "INTERNAL_ERROR")
    assert b"swordfish" not in asked.body
    assert asked.headers[b"x-request-id"].decode() in caplog.text


async def test_the_address_of_the_store_appears_only_in_the_log(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests with guessed keys get this response too while the store is unavailable."""
    routes = Routes("Test", prefix="")

    @routes.get("/away")
    async def away(call: ApiCall) -> None:
        """Cannot be done."""
        raise StoreUnavailable("store-host.internal:5432/homing cannot be reached right now. Try again.")

    asked = await DirectRequest(an_app(service, routes))("/away")
    assert (asked.status, asked.code) == (503, "STORE_UNAVAILABLE")
    assert b"store-host" not in asked.body
    assert "store-host.internal" in caplog.text
    assert asked.headers[b"x-request-id"].decode() in caplog.text


async def test_a_value_that_cannot_be_encoded_as_json_is_an_unexpected_error_too(
    service: RunningService,
) -> None:
    routes = Routes("Test", prefix="")

    @routes.get("/odd")
    async def odd(call: ApiCall) -> object:
        """Not JSON."""
        return object()

    assert (await DirectRequest(an_app(service, routes))("/odd")).code == "INTERNAL_ERROR"


async def test_no_value_can_add_a_header(service: RunningService) -> None:
    routes = Routes("Test", prefix="")

    @routes.get("/header")
    async def header(call: ApiCall) -> ApiResponse[None]:
        """Reflects what it should not."""
        return ApiResponse(None, headers={"Location": "/a\r\nSet-Cookie: b=c\x00\u2028é"})

    asked = await DirectRequest(an_app(service, routes))("/header")
    assert asked.headers[b"location"] == b"/a??Set-Cookie: b=c???"


async def test_the_number_of_cached_tenants_is_limited(service: RunningService) -> None:
    behind = service.app.service
    assert behind.tenant_api("acme") is behind.tenant_api("acme")
    for number in range(1_500):
        assert behind.tenant_api(f"tenant-{number}").tenant == f"tenant-{number}"
    assert len(behind.fronts) <= 1_000
