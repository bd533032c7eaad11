"""SNS: signatures, requests, and the meaning of every response."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import boto3  # type: ignore[import-untyped]
import pytest
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from homing import Channel, Content, Priority
from homing.core.errors import ConfigError
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.http_messages import HttpResponse
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import Unsendable
from homing.providers.sns.answers import classify, parse_xml_leaves
from homing.providers.sns.credentials import AwsStaticCredentials
from homing.providers.sns.message import MessageAttribute, build_publish_form
from homing.providers.sns.provider import SnsProvider
from homing.providers.sns.signature import SigV4Signer
from support.sms_deliveries import ENDPOINT, KINDS, NOW_MS, a_delivery, a_push, an_sns
from support.vector_files import vectors

SIGV4 = vectors("aws_sigv4")
WIRE = vectors("sns_wire")
SECRET = SIGV4["secret_access_key"]
FORM = "application/x-www-form-urlencoded; charset=utf-8"


# Signatures ---------------------------------------------------------------------------------------------


def signed(case: dict[str, Any], signer: SigV4Signer | None = None, now_ms: int = NOW_MS) -> dict[str, str]:
    keys = AwsStaticCredentials(SIGV4["access_key_id"], SECRET, case["session_token"] or "")
    signer = signer or SigV4Signer(keys, case["service"], case["region"])
    scheme = "http" if case["host"].startswith("127.") else "https"
    url = f"{scheme}://{case['host']}{case['path']}"
    kind = ("Content-Type", case["headers_sent"]["Content-Type"])
    return dict(signer.sign(case["method"], url, case["body"].encode(), (kind,), now_ms))


@pytest.mark.parametrize("case", SIGV4["cases"], ids=lambda case: case["id"])
def test_every_signature_of_the_contract_matches(case: dict[str, Any]) -> None:
    assert signed(case) == case["headers_sent"]


def test_the_derived_key_is_cached_only_for_its_day() -> None:
    case = SIGV4["cases"][0]
    signer = SigV4Signer(AwsStaticCredentials(SIGV4["access_key_id"], SECRET), "sns", case["region"])
    day_ms = 86_400_000
    for now_ms in (NOW_MS, NOW_MS + day_ms, NOW_MS + day_ms + 1_000, NOW_MS):
        assert signed(case, signer, now_ms) == signed(case, None, now_ms)
    assert signed(case, signer) == case["headers_sent"]


def sdk_request(calls: list[AWSRequest], **call: Any) -> AWSRequest:
    """Returns boto3's request for this call, with the same clock."""
    session = boto3.Session(
        aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    client = session.client("sns", config=Config(retries={"max_attempts": 0}))

    def keep(request: AWSRequest, **_: Any) -> Any:
        calls.append(request)
        raise StopIteration

    client.meta.events.register("before-send.sns.Publish", keep)
    with pytest.raises(StopIteration):
        client.publish(**call)
    return calls[-1]


def test_body_and_signature_are_those_of_boto3() -> None:
    provider = an_sns(sender_id="ACME")
    text = "Your code is 1234 & ~ü\n+€ 100% 👍"
    theirs = sdk_request(
        [],
        PhoneNumber="+15558675310",
        Message=text,
        MessageAttributes={
            "AWS.SNS.SMS.SenderID": {"DataType": "String", "StringValue": "ACME"},
            "AWS.SNS.SMS.SMSType": {"DataType": "String", "StringValue": "Transactional"},
        },
    )
    stamp = theirs.headers["X-Amz-Date"].decode()
    at_ms = _epoch_ms(stamp)
    ours = provider.build(a_delivery(content=Content(text=text)), at_ms)
    assert (ours.url, ours.body.decode()) == (theirs.url, theirs.body)
    sent = dict(ours.headers)
    for name in ("Authorization", "X-Amz-Date", "Content-Type"):
        value = theirs.headers[name]
        assert sent[name] == (value.decode() if isinstance(value, bytes) else value)


def _epoch_ms(stamp: str) -> int:
    return int(datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


# Requests -----------------------------------------------------------------------------------------------


def form(provider: SnsProvider, delivery: Delivery) -> dict[str, str]:
    return dict(parse_qsl(provider.build(delivery, NOW_MS).body.decode(), strict_parsing=True))


def attributes(fields: dict[str, str]) -> dict[str, tuple[str, str]]:
    found = {}
    for number in range(1, 20):
        entry = f"MessageAttributes.entry.{number}"
        if f"{entry}.Name" in fields:
            kind, value = fields[f"{entry}.Value.DataType"], fields[f"{entry}.Value.StringValue"]
            found[fields[f"{entry}.Name"]] = (kind, value)
    return found


@pytest.mark.parametrize("case", WIRE["requests"], ids=lambda case: case["id"])
def test_every_request_of_the_contract_matches(case: dict[str, Any]) -> None:
    call = dict(case["call"])
    given: tuple[MessageAttribute, ...] = tuple(
        (name, value["DataType"], value["StringValue"])
        for name, value in call.pop("MessageAttributes", {}).items()
    )
    assert build_publish_form(call, given).decode() == case["body"]


def test_an_sms_equals_that_of_the_contract() -> None:
    case = WIRE["requests"][0]
    content = Content(text=case["call"]["Message"])
    request = an_sns(sender_id="ACME").build(a_delivery(content=content), NOW_MS)
    assert request.body.decode() == case["body"]
    assert request.url == "https://sns.us-east-1.amazonaws.com/"
    assert dict(request.headers) == SIGV4["cases"][0]["headers_sent"]


def test_a_push_contains_the_platform_s_document_as_text() -> None:
    fields = form(an_sns(), a_push())
    assert (fields["TargetArn"], fields["MessageStructure"]) == (ENDPOINT, "json")
    message = json.loads(fields["Message"])
    assert message["default"] == "B"
    assert json.loads(message["GCM"]) == {"notification": {"title": "T", "body": "B"}, "data": {"k": "v"}}


def test_the_data_of_an_android_push_is_text_and_urgent_ones_have_high_priority() -> None:
    content = Content(body="B", data={"n": 7, "deep": {"a": [1]}, "image": "https://example.org/i.png"})
    fields = form(an_sns(), a_push(content=content, priority=Priority.CRITICAL))
    assert json.loads(json.loads(fields["Message"])["GCM"]) == {
        "notification": {"body": "B", "image": "https://example.org/i.png"},
        "data": {"n": "7", "deep": '{"a":[1]}'},
        "priority": "high",
    }


@pytest.mark.parametrize("platform", ["APNS", "APNS_SANDBOX"])
def test_a_push_to_apple_has_its_data_next_to_aps(platform: str) -> None:
    apple = a_push(address=ENDPOINT.replace("GCM", platform))
    message = json.loads(form(an_sns(), apple)["Message"])
    assert json.loads(message[platform]) == {
        "k": "v",
        "aps": {"alert": {"title": "T", "body": "B"}, "sound": "default"},
    }
    silent = a_push(address=apple.address, content=Content(data={"aps": "ours wins", "k": 1}))
    message = json.loads(form(an_sns(), silent)["Message"])
    assert json.loads(message[platform]) == {"k": 1, "aps": {"content-available": 1}}


def test_an_image_is_left_for_the_apple_app_to_fetch() -> None:
    content = Content(body="B", data={"image": "https://example.org/i.png"})
    apple = a_push(address=ENDPOINT.replace("GCM", "APNS"), content=content)
    assert json.loads(json.loads(form(an_sns(), apple)["Message"])["APNS"]) == {
        "image": "https://example.org/i.png",
        "aps": {"alert": {"body": "B"}, "sound": "default", "mutable-content": 1},
    }


def test_a_push_with_only_data_is_silent() -> None:
    message = json.loads(form(an_sns(), a_push(content=Content(data={"k": "v"})))["Message"])
    assert message == {"default": '{"k":"v"}', "GCM": '{"data":{"k":"v"}}'}


def test_an_unknown_platform_shows_the_default_text() -> None:
    fields = form(an_sns(), a_push(address=ENDPOINT.replace("GCM", "ADM")))
    assert json.loads(fields["Message"]) == {"default": "B"}


def test_an_expiry_sets_the_time_to_live_unless_disabled() -> None:
    push = a_push(expires_at=NOW_MS + 90_000)
    assert attributes(form(an_sns(), push)) == {"AWS.SNS.MOBILE.GCM.TTL": ("String", "90")}
    assert attributes(form(an_sns(push_ttl=False), push)) == {}
    assert attributes(form(an_sns(), a_push())) == {}


def test_settings_become_message_attributes() -> None:
    provider = an_sns(
        sms_type="Promotional",
        max_price=0.5,
        origination_number="+15550001",
        push_attributes={"AWS.SNS.MOBILE.APNS.PUSH_TYPE": "alert"},
    )
    assert attributes(form(provider, a_delivery())) == {
        "AWS.SNS.SMS.SMSType": ("String", "Promotional"),
        "AWS.SNS.SMS.MaxPrice": ("Number", "0.5"),
        "AWS.MM.SMS.OriginationNumber": ("String", "+15550001"),
    }
    assert attributes(form(provider, a_push())) == {"AWS.SNS.MOBILE.APNS.PUSH_TYPE": ("String", "alert")}


@pytest.mark.parametrize(
    ("delivery", "kind", "code"),
    [
        (a_delivery(content=Content(text="x" * 1601)), OutcomeKind.BAD_CONTENT, "too_long"),
        (a_delivery(content=Content(title="no text")), OutcomeKind.BAD_CONTENT, "empty"),
        (a_push(content=Content()), OutcomeKind.BAD_CONTENT, "empty"),
        (a_push(content=Content(body="x" * 262_144)), OutcomeKind.BAD_CONTENT, "too_large"),
        (a_push(address="a-device-token"), OutcomeKind.BAD_RECIPIENT, "address"),
        (a_push(address=ENDPOINT + " x"), OutcomeKind.BAD_RECIPIENT, "address"),
        (a_delivery(channel=Channel.EMAIL), OutcomeKind.PROVIDER_FAULT, "channel"),
    ],
)
def test_content_that_cannot_be_sent_is_refused_before_sending(
    delivery: Delivery, kind: OutcomeKind, code: str
) -> None:
    with pytest.raises(Unsendable) as raised:
        an_sns().build(delivery, NOW_MS)
    assert (raised.value.outcome.kind, raised.value.outcome.error_code) == (kind, code)


def test_a_text_may_not_need_more_segments_than_allowed() -> None:
    two = a_delivery(content=Content(text="a" * 161))
    with pytest.raises(Unsendable, match="2 SMS \\(gsm-7\\); max_segments allows 1"):
        an_sns(max_segments=1).build(two, NOW_MS)
    assert an_sns(max_segments=2).build(two, NOW_MS).body


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"region": "Paris"}, "region"),
        ({"access_key_id": ""}, "access_key_id"),
        ({"secret_access_key": ""}, "secret_access_key"),
        ({"base_url": "sns"}, "base_url"),
        ({"sender_id": "12345"}, "sender_id"),
        ({"sender_id": "MuchTooLongName"}, "sender_id"),
        ({"sms_type": "Urgent"}, "sms_type"),
        ({"callback_topics": ["my-topic"]}, "callback_topics"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        an_sns(**settings)
    assert raised.value.field == field
    assert SECRET not in str(raised.value)


REGIONS = [
    *("us-east-1", "eu-central-2", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"),
    *("us-iso-east-1", "us-isob-east-1", "eu-isoe-west-1", "us-isof-south-1"),
]


@pytest.mark.parametrize("region", REGIONS)
def test_the_endpoint_is_that_of_the_region_s_partition(region: str) -> None:
    theirs = boto3.client("sns", region_name=region, aws_access_key_id="a", aws_secret_access_key="b")
    assert an_sns(region=region).build(a_delivery(), NOW_MS).url == f"{theirs.meta.endpoint_url}/"


def test_the_endpoint_follows_the_setting() -> None:
    assert (
        an_sns(base_url="http://127.0.0.1:4566").build(a_delivery(), NOW_MS).url == "http://127.0.0.1:4566/"
    )


# Answers ------------------------------------------------------------------------------------------------


def answer(status: int, body: bytes | str, **headers: str) -> HttpResponse:
    return HttpResponse(status=status, headers=headers, body=body.encode() if isinstance(body, str) else body)


def test_the_success_of_the_contract_is_accepted() -> None:
    good = WIRE["success"]
    outcome = classify(answer(good["status"], good["body"]), NOW_MS)
    assert (outcome.kind, outcome.provider_message_id) == (OutcomeKind.ACCEPTED, good["message_id"])


@pytest.mark.parametrize("row", WIRE["errors"], ids=lambda row: f"{row['code']}-{row['retry_class']}")
def test_every_error_of_the_contract_has_its_outcome(row: dict[str, Any]) -> None:
    outcome = classify(answer(row["status"], row["body"]), NOW_MS)
    assert outcome.kind in KINDS[row["retry_class"]]
    assert str(outcome.error_code).split(".")[0] == row["code"]
    assert outcome.error


TABLE = [
    *(
        (
            "Throttling ThrottlingException RequestLimitExceeded TooManyRequestsException SlowDown",
            "rate_limited",
        ),
    ),
    ("KMSThrottling", "rate_limited"),
    ("EndpointDisabled", "token_dead"),
    ("PlatformApplicationDisabled", "config"),
    ("InvalidParameter ParameterValueInvalid ValidationException NotFound", "permanent"),
    ("AuthorizationError InvalidSecurity KMSOptInRequired", "config"),
    ("UnrecognizedClientException UserError OptInRequired AccessDeniedException", "config"),
    ("ExpiredTokenException MissingAuthenticationToken InvalidSignatureException", "config"),
    ("KMSDisabled KMSInvalidState KMSNotFound KMSAccessDenied", "config"),
    ("InternalError", "transient"),
]


@pytest.mark.parametrize(("codes", "retry_class"), TABLE)
def test_our_table_includes_the_contract_s_codes(codes: str, retry_class: str) -> None:
    for code in codes.split():
        assert load_error_table("sns").codes[code].outcome in KINDS[retry_class]


def error(code: str, message: str = "x") -> str:
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"


def test_an_invalid_parameter_is_blamed_according_to_its_message() -> None:
    def kind(message: str) -> OutcomeKind:
        return classify(answer(400, error("InvalidParameter", message)), NOW_MS).kind

    assert kind("Invalid parameter: PhoneNumber Reason: no") is OutcomeKind.BAD_RECIPIENT
    assert kind("Invalid parameter: TargetArn Reason: An ARN must have 6 parts") is OutcomeKind.BAD_RECIPIENT
    assert kind("Invalid parameter: Message too long") is OutcomeKind.BAD_CONTENT
    assert kind("Invalid parameter: AWS.SNS.SMS.SenderID Reason: no") is OutcomeKind.PROVIDER_FAULT
    assert kind("No origination entities available to send") is OutcomeKind.PROVIDER_FAULT
    assert kind("") is OutcomeKind.BAD_CONTENT


def test_a_delay_is_returned_in_milliseconds() -> None:
    def wait(value: str) -> int | None:
        return classify(
            answer(400, error("Throttling"), **{"x-amz-retry-after": value}), NOW_MS
        ).retry_after_ms

    def plain(value: str, **more: str) -> int | None:
        told = {"retry-after": value, **more}
        return classify(answer(503, "busy", **told), NOW_MS).retry_after_ms

    assert (plain("7"), plain("soon")) == (7_000, None)
    assert plain("7", **{"x-amz-retry-after": "1500"}) == 1500
    assert (wait("1500"), wait(" 0 "), wait("soon"), wait("-1"), wait("9" * 40)) == (
        1500,
        0,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, OutcomeKind.PROVIDER_FAULT),
        (400, OutcomeKind.TRANSIENT),
        (403, OutcomeKind.PROVIDER_FAULT),
        (404, OutcomeKind.PROVIDER_FAULT),
        (408, OutcomeKind.TRANSIENT),
        (413, OutcomeKind.BAD_CONTENT),
        (429, OutcomeKind.THROTTLED),
        (500, OutcomeKind.TRANSIENT),
        (504, OutcomeKind.TRANSIENT),
        (200, OutcomeKind.AMBIGUOUS),
    ],
)
@pytest.mark.parametrize("body", ["", "<html><body>hello", error("Novelty"), error("unreadable"), "{}"])
def test_without_a_known_code_the_status_decides(status: int, kind: OutcomeKind, body: str) -> None:
    assert classify(answer(status, body), NOW_MS).kind is kind


BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


@pytest.mark.parametrize(
    "prologue",
    [
        BOMB,
        '<!DOCTYPE x SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE x [<!ENTITY i SYSTEM "file:///etc/passwd">]>',
        "<!DOCTYPE x>",
    ],
)
def test_a_document_with_a_dtd_is_not_parsed(prologue: str) -> None:
    assert parse_xml_leaves((prologue + WIRE["success"]["body"].replace("567910cd", "&i;")).encode()) == {}


def test_an_unknown_encoding_is_not_looked_up() -> None:
    body = '<?xml version="1.0" encoding="no-such-thing"?>' + WIRE["success"]["body"]
    assert classify(answer(200, body), NOW_MS).kind is OutcomeKind.ACCEPTED


@given(
    st.integers(100, 599),
    st.binary()
    | st.text(alphabet="<>/aErorCdMsge &;#x!D[]\"'é\x00").map(str.encode)
    | st.text().map(lambda code: error(code).encode("utf-8", "replace")),
    st.text(),
)
def test_no_response_makes_it_raise(status: int, body: bytes, wait: str) -> None:
    outcome = classify(answer(status, body, **{"x-amz-retry-after": wait}), NOW_MS)
    assert outcome.kind is not OutcomeKind.ACCEPTED


def test_an_excessively_nested_document_is_ignored() -> None:
    assert classify(answer(200, b"<a>" * 20_000), NOW_MS).kind is OutcomeKind.AMBIGUOUS
