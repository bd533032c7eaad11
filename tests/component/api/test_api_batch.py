"""Batches of requests, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from homing.api.intake.batch import MAX_BATCH_ITEMS
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.stores.sqlite import SqliteStore
from support.running_service import Reply, RunningService

Serve = Callable[..., RunningService]
BATCH = "/api/v1/notifications/batch"
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(store="memory:")


def lines(service: RunningService, *items: bytes, **headers: str) -> Reply:
    return service.call("POST", BATCH, body=b"\n".join(items), headers={**NDJSON, **headers})


def stored(service: RunningService) -> int:
    return int(service.call("GET", "/api/v1/queue/counts").json["pending"])


def test_an_array_is_answered_item_by_item_in_its_order(service: RunningService) -> None:
    wrong = {**MAIL, "channel": "pigeon"}
    done = service.call("POST", BATCH, [MAIL, wrong, {**MAIL, "chanel": "sms"}, 5, MAIL])
    assert (done.status, done.json["accepted"], done.json["rejected"]) == (200, 2, 3)
    results = done.json["results"]
    assert [one["index"] for one in results] == [0, 1, 2, 3, 4]
    assert [one["status"] for one in results] == ["queued", "rejected", "rejected", "rejected", "queued"]
    assert set(results[0]) == {
        "index", "status", "batchId", "notificationId", "notificationIds", "queueName"
    }  # fmt: skip
    assert (results[1]["field"], results[1]["code"]) == ("channel", "INVALID_REQUEST")
    assert (results[2]["field"], results[2]["code"]) == ("chanel", "MALFORMED_REQUEST")
    assert "did you mean channel" in results[2]["message"]
    assert results[3]["code"] == "MALFORMED_REQUEST"
    found = service.call("GET", f"/api/v1/notifications/{results[4]['notificationId']}")
    assert found.json["status"] == "pending"


def test_an_unknown_field_at_any_depth_rejects_its_item_and_is_named(service: RunningService) -> None:
    wrong = {**MAIL, "content": {"body": "hello", "htlm": "<p>hello"}}
    for done in (
        service.call("POST", BATCH, [MAIL, wrong]),
        lines(service, msgspec.json.encode(MAIL), msgspec.json.encode(wrong)),
    ):
        assert [one["status"] for one in done.json["results"]] == ["queued", "rejected"]
        rejected = done.json["results"][1]
        assert (rejected["field"], rejected["code"]) == ("content.htlm", "MALFORMED_REQUEST")
        assert rejected["message"] == "content.htlm: is not known; did you mean html?"
    assert stored(service) == 2


def test_a_line_with_an_unknown_field_and_a_broken_end_names_the_field(service: RunningService) -> None:
    done = lines(service, b'{"chanel": "sms", "content": ')
    assert (done.json["results"][0]["field"], done.json["accepted"]) == ("chanel", 0)


def test_one_invalid_item_does_not_fail_the_others(service: RunningService) -> None:
    mail = msgspec.json.encode(MAIL)
    done = lines(service, mail, b'{"recipient": ', b"", b"\xff\xfe", mail + b"\r", b"")
    assert [one["status"] for one in done.json["results"]] == ["queued", "rejected", "rejected", "queued"]
    assert done.json["results"][1]["message"].startswith("request: is not JSON")
    assert stored(service) == 2


def test_several_chunks_are_accepted_completely_and_in_order(service: RunningService) -> None:
    items = [msgspec.json.encode({**MAIL, "metadata": {"n": n}}) for n in range(1_234)]
    done = lines(service, *items)
    assert (done.json["accepted"], stored(service)) == (1_234, 1_234)
    last = done.json["results"][-1]["notificationId"]
    assert service.call("GET", f"/api/v1/notifications/{last}").json["metadata"] == {"n": 1_233}


def test_too_many_requests_are_refused_before_any_is_accepted(service: RunningService) -> None:
    mail = msgspec.json.encode(MAIL)
    for refused in (
        lines(service, *[mail] * (MAX_BATCH_ITEMS + 2)),
        service.call("POST", BATCH, [0] * 10_001),
    ):
        assert (refused.status, refused.json["error"]["code"]) == (422, "INVALID_REQUEST")
    assert stored(service) == 0


def test_an_array_of_very_many_tiny_items_is_refused_unread(service: RunningService) -> None:
    refused = service.call("POST", BATCH, [0] * 600_000)
    assert refused.status == 413
    assert "application/x-ndjson" in refused.json["error"]["message"]


@pytest.mark.parametrize("body", [b"{}", b"[", b"", b'"x"', b"[" * 100_000])
def test_a_body_that_is_not_an_array_is_malformed(service: RunningService, body: bytes) -> None:
    refused = service.call("POST", BATCH, body=body, headers={"Content-Type": "application/json"})
    assert (refused.status, refused.json["error"]["code"]) == (400, "MALFORMED_REQUEST")


def test_another_media_type_is_refused_with_the_supported_ones(service: RunningService) -> None:
    refused = service.call("POST", BATCH, body=b"a,b", headers={"Content-Type": "text/csv"})
    assert refused.status == 415
    assert "application/json or application/x-ndjson" in refused.json["error"]["message"]


def test_a_batch_repeated_under_its_key_is_stored_once(service: RunningService) -> None:
    own = {**MAIL, "idempotencyKey": "mine"}
    first = service.call("POST", BATCH, [MAIL, own, MAIL], headers={"Idempotency-Key": "night-1"}).json
    again = service.call("POST", BATCH, [MAIL, own, MAIL], headers={"Idempotency-Key": "night-1"}).json
    assert [one["notificationIds"] for one in again["results"]] == [
        one["notificationIds"] for one in first["results"]
    ]
    assert all(one["duplicate"] for one in again["results"])
    assert stored(service) == 3
    other = service.call("POST", BATCH, [{**MAIL, "bulk": True}], headers={"Idempotency-Key": "night-1"})
    assert other.json["results"][0]["code"] == "IDEMPOTENCY_CONFLICT"


def test_an_invalid_key_refuses_the_whole_batch(service: RunningService) -> None:
    for name, value in (
        ("Idempotency-Key", "k" * 250),
        ("Idempotency-Key", "\x80"),
        ("Accept-Language", "é"),
    ):
        refused = service.call("POST", BATCH, [MAIL], headers={name: value})
        assert (refused.status, refused.json["error"]["field"]) == (400, name)
    assert stored(service) == 0


def test_a_synchronous_request_is_refused_at_its_index(service: RunningService) -> None:
    done = service.call("POST", BATCH, [{**MAIL, "synchronous": True}, MAIL]).json
    assert [one["status"] for one in done["results"]] == ["rejected", "queued"]
    assert done["results"][0]["field"] == "synchronous"


class StoreWithOutage(SqliteStore):
    """Becomes unavailable after this many commits."""

    commits = 1

    async def accept(self, batch: Sequence[Submission], tx: Any = None) -> tuple[Acceptance, ...]:
        if self.commits == 0:
            raise StoreUnavailable("store-host.internal:5432 cannot be reached")
        self.commits -= 1
        return await super().accept(batch, tx=tx)


def test_if_the_store_fails_midway_each_result_is_still_correct(serve: Serve) -> None:
    service = serve(store=StoreWithOutage(":memory:"))
    done = service.call("POST", BATCH, [MAIL] * 2200)
    assert (done.status, done.json["accepted"], done.json["rejected"]) == (200, 2000, 200)
    assert {one["code"] for one in done.json["results"][2000:]} == {"STORE_UNAVAILABLE"}
    assert stored(service) == 2000
    assert b"store-host" not in done.body
    nothing = service.call("POST", BATCH, [MAIL])
    assert (nothing.status, nothing.json["error"]["code"]) == (503, "STORE_UNAVAILABLE")
    assert nothing.headers["retry-after"] == "1"
