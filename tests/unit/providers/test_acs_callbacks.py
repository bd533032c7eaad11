"""Event Grid: handshakes, reports in both schemas, and refusal without the key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.providers.acs.callbacks import AcsCallbacks, notification_id_of
from support.vector_files import vectors

R = ReceiptEvent
GRID: dict[str, Any] = vectors("azure_eventgrid")
REPORT: dict[str, Any] = GRID["delivery_report"][0]
NOW_MS = 1_730_000_000_000
URL = "https://h.example/api/v1/webhooks/acs?key=s3cret%2B"


def posted(body: Any, **fields: Any) -> Callback:
    given = {"url": URL, "headers": GRID["notification_headers"], "body": json.dumps(body).encode(), **fields}
    return Callback(**given)


def heard(callback: Callback, *, has_notification_ids: bool = True) -> ParsedCallback:
    return AcsCallbacks("s3cret+", has_notification_ids=has_notification_ids).handle_callback(
        callback, NOW_MS
    )


def report(**data: Any) -> dict[str, Any]:
    return {**REPORT, "data": {**REPORT["data"], **data}}


# Handshakes and the key ------------------------------------------------------------------------------


def test_the_handshake_of_event_grid_is_answered_with_its_code() -> None:
    request = GRID["validation_request"]
    found = heard(posted(request["body"], headers=request["headers"]))
    assert json.loads(found.reply) == GRID["validation_response"]["body"]
    assert (found.reply_type, found.receipts) == ("application/json", ())


def test_the_handshake_of_cloud_events_is_answered_with_headers() -> None:
    case = GRID["cloudevents_validation"]
    headers = {name.lower(): value for name, value in case["request_headers"].items()}
    found = heard(Callback(url=URL, method=case["method"], headers=headers))
    assert found.reply_headers == case["response"]["headers"]


@pytest.mark.parametrize("origin", ["", "a\r\nX: y", "ü"])
def test_a_handshake_without_a_valid_origin_is_refused(origin: str) -> None:
    with pytest.raises(CallbackRefused):
        heard(Callback(url=URL, method="OPTIONS", headers={"webhook-request-origin": origin}))


@pytest.mark.parametrize(
    "callback",
    [
        posted([REPORT], url="https://h.example/acs"),
        posted([REPORT], url="https://h.example/acs?key="),
        posted([REPORT], url="https://h.example/acs?key=other"),
        posted([REPORT], url="https://h.example/acs?KEY=s3cret%2B"),
        posted([REPORT], url="https://[/?key=s3cret%2B"),
        posted([REPORT], headers={"x-webhook-key": "other"}),
        posted([REPORT], headers={"x-webhook-key": "ключ\ud800"}),
        posted(GRID["validation_request"]["body"], url="https://h.example/acs?key=guess"),
    ],
)
def test_a_callback_with_a_wrong_key_is_refused(callback: Callback) -> None:
    with pytest.raises(CallbackRefused):
        heard(callback)


def test_the_key_may_be_a_header_and_without_a_configured_key_all_are_refused() -> None:
    by_header = posted([REPORT], url="https://h.example/acs", headers={"x-webhook-key": "s3cret+"})
    assert len(heard(by_header).receipts) == 1
    with pytest.raises(CallbackRefused, match="webhook_key"):
        AcsCallbacks("", has_notification_ids=True).handle_callback(posted([REPORT]), NOW_MS)


def test_during_a_rotation_events_with_the_new_and_the_old_key_are_accepted() -> None:
    callbacks = AcsCallbacks(["new", "s3cret+"], has_notification_ids=True)
    for key in ("new", "s3cret+"):
        event = posted([REPORT], url="https://h.example/acs", headers={"x-webhook-key": key})
        assert len(callbacks.handle_callback(event, NOW_MS).receipts) == 1


# Reports ---------------------------------------------------------------------------------------------


def test_a_delivery_report_of_the_vectors_becomes_a_receipt() -> None:
    (receipt,) = heard(posted(GRID["delivery_report"])).receipts
    assert receipt.event is R.DELIVERED
    assert receipt.provider_message_id == REPORT["data"]["messageId"]
    assert receipt.notification_id == notification_id_of(REPORT["data"]["messageId"])
    assert (receipt.event_id, receipt.at) == (REPORT["id"], 1_726_618_940_285)


def test_an_operation_named_by_the_service_is_not_a_notification_s_id() -> None:
    (receipt,) = heard(posted([REPORT]), has_notification_ids=False).receipts
    assert (receipt.notification_id, receipt.provider_message_id) == (None, REPORT["data"]["messageId"])


@pytest.mark.parametrize(("status", "meaning"), GRID["status_map"].items())
def test_each_status_of_the_vectors_has_its_meaning(status: str, meaning: str) -> None:
    (receipt,) = heard(posted([report(status=status)])).receipts
    expected = {"delivered": R.DELIVERED, "non_terminal": R.SENT}.get(meaning.split(" ")[0], R.FAILED)
    assert receipt.event is expected
    suppress = "-> suppress" in meaning
    assert (receipt.address_dead, receipt.recipient_at_fault) == (suppress, suppress)
    if expected is R.FAILED:
        assert (receipt.error_code, receipt.error) == (status, "Status Message")
        blocked = OutcomeKind.BAD_CONTENT if meaning == "blocked" else None
        assert receipt.outcome is (OutcomeKind.DEAD_ADDRESS if suppress else blocked)


@pytest.mark.parametrize("batched", [True, False])
def test_the_cloud_events_schema_gives_the_same_receipts(batched: bool) -> None:
    event = {
        "specversion": "1.0", "id": REPORT["id"], "source": REPORT["topic"], "type": REPORT["eventType"],
        "time": REPORT["eventTime"], "data": REPORT["data"],
    }  # fmt: skip
    assert heard(posted([event] if batched else event)) == heard(posted([REPORT]))


@pytest.mark.parametrize(("kind", "event"), [("view", R.OPEN), ("click", R.CLICK), ("Click", R.CLICK)])
def test_engagement_is_reported_and_implies_the_delivery(kind: str, event: ReceiptEvent) -> None:
    engaged = {
        **REPORT,
        "eventType": "Microsoft.Communication.EmailEngagementTrackingReportReceived",
        "data": {"messageId": "m-1", "engagementType": kind, "userActionTimeStamp": "2024-09-18T00:22:20Z"},
    }
    arrived, did = heard(posted([engaged])).receipts
    assert (arrived.event, did.event) == (R.DELIVERED, event)
    assert arrived.event_id != did.event_id
    assert arrived.at == did.at == 1_726_618_940_000


def test_events_of_other_types_are_ignored() -> None:
    assert heard(posted([{**REPORT, "eventType": "Microsoft.Storage.BlobCreated"}])) == ParsedCallback(
        ignored=1
    )


def test_one_bad_event_never_fails_its_batch() -> None:
    bad: list[Any] = [
        None, 5, {}, {**REPORT, "data": None}, {**REPORT, "id": ""}, report(messageId=5), report(status=None),
    ]  # fmt: skip
    found = heard(posted([REPORT, *bad, REPORT]))
    assert (len(found.receipts), found.unreadable) == (2, len(bad))


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff\xfe", b"[" * 5000])
def test_a_body_that_is_not_json_counts_as_unreadable(body: bytes) -> None:
    assert heard(replace(posted([]), body=body)) == ParsedCallback(unreadable=1)


values = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=30) | st.lists(st.integers(), max_size=2)
)


@given(
    st.dictionaries(st.sampled_from(sorted(REPORT)), values | st.just(REPORT["data"])),
    st.dictionaries(st.sampled_from(sorted(REPORT["data"])), values),
)
def test_any_event_content_leaves_the_batch_readable(event: dict[str, Any], data: dict[str, Any]) -> None:
    found = heard(posted([{**report(**data), **event}]))
    assert len(found.receipts) + found.ignored + found.unreadable == 1


@pytest.mark.parametrize("when", ["yesterday", 5, [1], "9999-12-31T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_report_with_an_invalid_date_is_kept(when: Any) -> None:
    (receipt,) = heard(posted([report(deliveryAttemptTimeStamp=when)])).receipts
    assert (receipt.event, receipt.at) == (R.DELIVERED, NOW_MS)
