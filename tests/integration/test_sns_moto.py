"""SNS calls to moto's server in this process, over real sockets: what it accepts and refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer
from moto.sns.models import sns_backends

from homing import Channel, Content, Delivery
from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.sns.provider import SnsProvider
from homing.testing.provider_suite import a_delivery

KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "secret", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(moto_url: str) -> Iterator[Any]:
    """boto3 clients that create the targets and read what arrived."""
    made = boto3.client("sns", endpoint_url=moto_url, **KEYS)
    yield made
    made.close()


@pytest.fixture
async def sns(moto_url: str) -> AsyncIterator[SnsProvider]:
    transport = CurlTransport()
    yield SnsProvider(
        transport,
        region="us-east-1",
        access_key_id="AKIDEXAMPLE",
        secret_access_key="secret",
        sender_id="ACME",
        base_url=moto_url,
    )
    await transport.close()


def a_message(channel: Channel, address: str) -> Delivery:
    return a_delivery(channel, address, Content(title="Title", body="Olá 👍 & bye", data={"k": "v"}))


def an_endpoint(client: Any, token: str, platform: str = "GCM", **attributes: str) -> str:
    application = client.create_platform_application(
        Name=f"app-{token}", Platform=platform, Attributes={"PlatformCredential": "x"}
    )
    made = client.create_platform_endpoint(
        PlatformApplicationArn=application["PlatformApplicationArn"], Token=token, Attributes=attributes
    )
    return str(made["EndpointArn"])


def moto_state() -> Any:
    return sns_backends["123456789012"]["us-east-1"]


async def test_an_sms_arrives_with_its_text(sns: SnsProvider) -> None:
    outcome = await sns.send(a_message(Channel.SMS, "+15550100"))
    assert outcome.kind is OutcomeKind.ACCEPTED, outcome
    number, text = moto_state().sms_messages[outcome.provider_message_id][:2]
    assert (number, text) == ("+15550100", "Olá 👍 & bye")


@pytest.mark.parametrize("platform", ["GCM", "APNS"])
async def test_a_push_arrives_at_its_endpoint(sns: SnsProvider, client: Any, platform: str) -> None:
    arn = an_endpoint(client, f"token-{platform}", platform)
    outcome = await sns.send(a_message(Channel.PUSH, arn))
    assert outcome.kind is OutcomeKind.ACCEPTED, outcome
    kept = moto_state().platform_endpoints[arn].messages[outcome.provider_message_id]
    message = json.loads(kept)
    assert message["default"] == "Olá 👍 & bye"
    assert "Title" in message[platform]


async def test_an_invalid_number_is_the_recipient_s_fault(sns: SnsProvider) -> None:
    outcome = await sns.send(a_message(Channel.SMS, "15550100-x"))
    assert outcome.kind is OutcomeKind.BAD_RECIPIENT, outcome
    assert "15550100" not in str(outcome.error)


async def test_a_deleted_endpoint_is_a_bad_recipient(sns: SnsProvider, client: Any) -> None:
    arn = an_endpoint(client, "token-gone")
    client.delete_endpoint(EndpointArn=arn)
    outcome = await sns.send(a_message(Channel.PUSH, arn))
    assert outcome.kind in (OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS), outcome


async def test_a_disabled_endpoint_is_a_dead_address(sns: SnsProvider, client: Any) -> None:
    arn = an_endpoint(client, "token-off", Enabled="false")
    outcome = await sns.send(a_message(Channel.PUSH, arn))
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.DEAD_ADDRESS, "EndpointDisabled")


async def test_the_health_check_is_answered(sns: SnsProvider) -> None:
    assert await sns.check()


# Signatures ---------------------------------------------------------------------------------------------


@pytest.fixture
def user(moto_url: str) -> Iterator[dict[str, str]]:
    """A user who may publish, on a server that verifies every signature from now on."""
    iam = boto3.client("iam", endpoint_url=moto_url, **KEYS)
    name = f"publisher-{uuid4()}"
    iam.create_user(UserName=name)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    allow = {"Effect": "Allow", "Action": "sns:Publish", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    iam.put_user_policy(UserName=name, PolicyName="publish", PolicyDocument=policy)
    _look_at_signatures(moto_url, after="0")
    yield {"access_key_id": made["AccessKeyId"], "secret_access_key": made["SecretAccessKey"]}
    _look_at_signatures(moto_url, after="inf")
    iam.close()


def _look_at_signatures(moto_url: str, *, after: str) -> None:
    plain = {"Content-Type": "text/plain"}
    request = Request(f"{moto_url}/moto-api/reset-auth", data=after.encode(), headers=plain)
    with urlopen(request) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("changes", "kind", "code"),
    [
        ({}, OutcomeKind.ACCEPTED, None),
        ({"secret_access_key": "wrong"}, OutcomeKind.PROVIDER_FAULT, "SignatureDoesNotMatch"),
        ({"access_key_id": "AKIAIOSFODNN7EXAMPLE"}, OutcomeKind.PROVIDER_FAULT, "InvalidClientTokenId"),
    ],
)
async def test_signatures_are_verified(
    moto_url: str, user: dict[str, str], changes: dict[str, str], kind: OutcomeKind, code: str | None
) -> None:
    transport = CurlTransport()
    keys: dict[str, Any] = {**user, **changes}
    provider = SnsProvider(transport, region="us-east-1", base_url=moto_url, **keys)
    outcome = await provider.send(a_message(Channel.SMS, "+15550100"))
    assert (outcome.kind, outcome.error_code) == (kind, code), outcome
    await transport.close()


# Opted-out recipients -----------------------------------------------------------------------------------

OPTED_OUT = "+15550199"  # for moto, as every number with this ending


async def test_opt_outs_are_looked_up_if_the_settings_say_so(moto_url: str) -> None:
    transport = CurlTransport()
    asking = SnsProvider(
        transport,
        region="us-east-1",
        access_key_id="AKIDEXAMPLE",
        secret_access_key="secret",
        check_opt_out=True,
        base_url=moto_url,
    )
    outcome = await asking.send(a_message(Channel.SMS, OPTED_OUT))
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.OPTED_OUT, "OptedOut")
    assert (await asking.send(a_message(Channel.SMS, "+15550100"))).kind is OutcomeKind.ACCEPTED
    await transport.close()
