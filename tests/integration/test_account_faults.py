"""Account faults and unlisted errors, with real local servers: the second vendor gets the message.

Twilio precedes SNS, and SendGrid precedes Azure Communication Services. Breakers are forced closed, so that
each message really goes to the first provider of its route.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from homing import BreakerPolicy, Channel, Homing, Listed, OutcomeKind, Reason, Status
from homing.core.notifications import History
from homing.core.ports.providers import Provider
from homing.net.http_client import CurlTransport
from homing.providers.acs.provider import AcsProvider
from homing.providers.common.error_tables import load_error_table
from homing.providers.sendgrid.provider import SendGridProvider
from homing.providers.sns.provider import SnsProvider
from homing.providers.twilio.provider import TwilioProvider
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer

K = OutcomeKind
RULES = [
    {"name": "fast", "base_ms": 5, "cap_ms": 5, "jitter": "none", "failover_after": 1, "max_attempts": 6}
]

ADDRESS = {Channel.SMS: "+15550100", Channel.EMAIL: "ada@example.org"}
ROUTES = {Channel.SMS: ("twilio", "sns"), Channel.EMAIL: ("sendgrid", "acs")}

TAKEN = {
    "twilio": answer(201, json.dumps({"sid": "SM" + "a" * 32, "status": "queued"}).encode()),
    "sns": answer(
        200,
        b"<PublishResponse><PublishResult><MessageId>m-1</MessageId></PublishResult></PublishResponse>",
    ),
    "sendgrid": answer(202, b"", {"x-message-id": "sg-1"}),
    "acs": answer(202, json.dumps({"id": "op-1", "status": "Running"}).encode()),
}


def twilio(code: int, status: int = 400) -> ServerAction:
    return answer(status, json.dumps({"code": code, "message": "no", "status": status}).encode())


def sns(code: str, status: int = 400) -> ServerAction:
    said = f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
    return answer(status, said.encode())


def sendgrid(field: str | None, status: int = 400) -> ServerAction:
    return answer(status, json.dumps({"errors": [{"message": "no", "field": field}]}).encode())


def acs(code: str, status: int = 400) -> ServerAction:
    return answer(status, json.dumps({"error": {"code": code, "message": "no"}}).encode())


TWILIO_FAULTS = [
    int(code)
    for code, meaning in load_error_table("twilio").codes.items()
    if code.isdigit() and meaning.outcome is K.PROVIDER_FAULT
]
"""Each numeric account fault in the table. Codes that were once missing are named in a separate test."""

UNKNOWN = {
    "twilio": twilio(29999),
    "sns": sns("SomethingNew"),
    "sendgrid": sendgrid("a_field_that_is_new"),
    "acs": acs("SomethingNew"),
}
"""An error with a code that no table lists. SNS answers such codes as `transient`, so it is not used as the
second refusal.
"""


class MessageResult(NamedTuple):
    """The result of one message."""

    history: History
    calls: dict[str, int]

    @property
    def outcomes(self) -> list[tuple[str, OutcomeKind]]:
        return [(attempt.provider, attempt.outcome) for attempt in self.history.attempts]


def made(name: str, url: str, transport: CurlTransport) -> Provider:
    match name:
        case "twilio":
            return TwilioProvider(
                transport, account_sid="AC" + "b" * 32, auth_token="t", sender="+15017122661", base_url=url
            )
        case "sns":
            return SnsProvider(
                transport, region="us-east-1", access_key_id="AKID", secret_access_key="s", base_url=url
            )
        case "sendgrid":
            return SendGridProvider(transport, api_key="SG.x", from_email="a@example.com", base_url=url)
        case _:
            return AcsProvider(transport, sender_address="a@example.com", base_url=url, access_key="c2VjcmV0")


async def sent_over(channel: Channel, answers: dict[str, ServerAction], **more: Any) -> MessageResult:
    """Sends one message on a route of these vendors, in this order, and waits until it has ended."""
    async with AsyncExitStack() as stack:
        transport = CurlTransport()
        stack.push_async_callback(transport.close)
        servers = {
            name: await stack.enter_async_context(FaultServer(always(act))) for name, act in answers.items()
        }
        listed = {
            name: Listed(
                id=name,
                provider=made(name, server.url, transport),
                channels=(channel,),
                breaker=BreakerPolicy(failures=10**6),
            )
            for name, server in servers.items()
        }
        async with Homing("memory:", providers=listed, rules=RULES, worker=True) as homing:
            one = await homing.send(ADDRESS[channel], channel=channel, body="Hello", **more)
            await homing.wait(one.id)
            history = await homing.history(one.id)
    return MessageResult(history, {name: len(server.received) for name, server in servers.items()})


def always(act: ServerAction) -> Callable[[ReceivedRequest], ServerAction]:
    return lambda received: act


async def reaches_the_second(channel: Channel, first: ServerAction) -> MessageResult:
    one, two = ROUTES[channel]
    ended = await sent_over(channel, {one: first, two: TAKEN[two]})
    done = ended.history.notification
    assert (done.status, done.provider_names) == (Status.SENT, (one, two))
    assert ended.calls == {one: 1, two: 1}
    return ended


@pytest.mark.parametrize(
    ("code", "status"),
    [(21659, 400), (21660, 400), (21661, 400), (21703, 400), (20404, 404), (21606, 400), (20005, 403)],
)
async def test_an_account_fault_of_twilio_moves_to_sns_at_once(code: int, status: int) -> None:
    ended = await reaches_the_second(Channel.SMS, twilio(code, status))
    assert ended.outcomes == [("twilio", K.PROVIDER_FAULT), ("sns", K.ACCEPTED)]


async def test_a_full_queue_of_a_twilio_sender_moves_to_sns() -> None:
    ended = await reaches_the_second(Channel.SMS, twilio(21611))
    assert ended.outcomes == [("twilio", K.THROTTLED), ("sns", K.ACCEPTED)]


@pytest.mark.parametrize("code", TWILIO_FAULTS)
async def test_each_account_fault_in_twilio_s_table_moves_to_sns(code: int) -> None:
    await reaches_the_second(Channel.SMS, twilio(code))


@pytest.mark.parametrize(
    "first",
    [
        sendgrid("from.email"),
        sendgrid("asm.group_id"),
        sendgrid("tracking_settings.open_tracking"),
        sendgrid(None, 401),
    ],
    ids=["from", "asm", "tracking", "key"],
)
async def test_an_account_fault_of_sendgrid_moves_to_communication_services(first: ServerAction) -> None:
    ended = await reaches_the_second(Channel.EMAIL, first)
    assert ended.outcomes == [("sendgrid", K.PROVIDER_FAULT), ("acs", K.ACCEPTED)]


@pytest.mark.parametrize("code", ["InvalidSenderUserName", "SubscriptionBlocked", "DomainNotLinked"])
async def test_an_account_fault_of_communication_services_moves_to_sendgrid(code: str) -> None:
    ended = await sent_over(Channel.EMAIL, {"acs": acs(code), "sendgrid": TAKEN["sendgrid"]})
    assert ended.outcomes == [("acs", K.PROVIDER_FAULT), ("sendgrid", K.ACCEPTED)]


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "UserError", "OptInRequired"])
async def test_an_account_fault_of_sns_moves_to_twilio(code: str) -> None:
    ended = await sent_over(Channel.SMS, {"sns": sns(code), "twilio": TAKEN["twilio"]})
    assert ended.outcomes == [("sns", K.PROVIDER_FAULT), ("twilio", K.ACCEPTED)]


@pytest.mark.parametrize(
    ("channel", "first"),
    [
        (Channel.SMS, UNKNOWN["twilio"]),
        (Channel.SMS, twilio(29999, 422)),
        (Channel.SMS, answer(418)),
        (Channel.EMAIL, UNKNOWN["sendgrid"]),
        (Channel.EMAIL, answer(418)),
    ],
    ids=["twilio code", "twilio 422", "twilio 418", "sendgrid field", "sendgrid 418"],
)
async def test_an_unlisted_error_moves_to_the_second_provider(channel: Channel, first: ServerAction) -> None:
    ended = await reaches_the_second(channel, first)
    assert [outcome for _, outcome in ended.outcomes] == [K.PROVIDER_FAULT, K.ACCEPTED]


async def test_two_unlisted_errors_end_as_bad_content_after_exactly_two_calls() -> None:
    answers = {"sendgrid": UNKNOWN["sendgrid"], "acs": UNKNOWN["acs"]}
    ended = await sent_over(Channel.EMAIL, answers)
    done = ended.history.notification
    assert (done.status, done.reason) == (Status.FAILED, Reason.BAD_CONTENT)
    assert ended.outcomes == [("sendgrid", K.PROVIDER_FAULT), ("acs", K.BAD_CONTENT)]
    assert ended.calls == {"sendgrid": 1, "acs": 1}


@pytest.mark.parametrize(
    ("channel", "name"), [(Channel.SMS, "twilio"), (Channel.EMAIL, "sendgrid"), (Channel.EMAIL, "acs")]
)
async def test_an_unlisted_error_of_the_only_provider_ends_as_bad_content_after_one_call(
    channel: Channel, name: str
) -> None:
    ended = await sent_over(channel, {name: UNKNOWN[name]})
    done = ended.history.notification
    assert (done.status, done.reason) == (Status.FAILED, Reason.BAD_CONTENT)
    assert (ended.outcomes, ended.calls) == ([(name, K.BAD_CONTENT)], {name: 1})


async def test_an_unlisted_error_of_a_pinned_provider_ends_as_bad_content() -> None:
    answers = {"twilio": UNKNOWN["twilio"], "sns": TAKEN["sns"]}
    ended = await sent_over(Channel.SMS, answers, provider="twilio")
    assert ended.history.notification.reason is Reason.BAD_CONTENT
    assert ended.calls == {"twilio": 1, "sns": 0}


@pytest.mark.parametrize(
    ("channel", "first"),
    [
        (Channel.SMS, twilio(21617)),
        (Channel.SMS, twilio(30007)),
        (Channel.EMAIL, sendgrid(None)),
        (Channel.EMAIL, sendgrid("subject")),
        (Channel.EMAIL, sendgrid("attachments.0.content")),
        (Channel.EMAIL, sendgrid("a_field_that_is_new", 413)),
    ],
    ids=["too long", "filtered", "no field", "subject", "attachment", "too large"],
)
async def test_an_error_listed_as_bad_content_never_fails_over(channel: Channel, first: ServerAction) -> None:
    one, two = ROUTES[channel]
    ended = await sent_over(channel, {one: first, two: TAKEN[two]})
    assert ended.history.notification.reason is Reason.BAD_CONTENT
    assert ended.calls == {one: 1, two: 0}
