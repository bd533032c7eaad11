"""Every provider with valid settings. Each credential contains a mark that tests can search for."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from homing import Channel, Content, Delivery, Priority, Recipient
from homing.compose.factories import PROVIDERS, PlugInDependencies, build_from_settings
from homing.core.errors import ConfigError
from homing.net.http_messages import Transport
from homing.settings import load_settings
from support.email_deliveries import UNREACHABLE
from support.push_deliveries import FCM, KEY_FILE, WEBPUSH

HTTP = load_settings(None, env={}).http
NOW_MS = 1_705_320_000_000
NAMES = [kind for kind in PROVIDERS if kind not in ("console", "file", "scripted")]
OVER_HTTP = [kind for kind in NAMES if kind not in ("smtp", "apprise", "rabbitmq")]

TOKEN = "tok-swordfish-0001"
KEY_BYTES = b"swordfish-0002-swordfish-0002-swo"
WEBHOOK_SECRET = f"whsec_{b64encode(KEY_BYTES).decode()}"

SETTINGS: dict[str, dict[str, Any]] = {
    "twilio": {
        "account_sid": f"AC{'b' * 32}",
        "auth_token": TOKEN,
        "api_key_sid": f"SK{'d' * 32}",
        "api_key_secret": "swordfish-0003",
        "sender": "+15017122661",
        "callback_url": "https://notify.example.org/twilio",
    },
    "sns": {
        "region": "us-east-1",
        "access_key_id": "AKIASWORDFISH",
        "secret_access_key": "swordfish-0004",
        "session_token": "swordfish-0005",
        "callback_topics": ["arn:aws:sns:us-east-1:123456789012:status"],
    },
    "sendgrid": {
        "api_key": "SG.swordfish-0006",
        "from_email": "shop@example.com",
        "webhook_public_key": (
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1"
            "flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
        ),
    },
    "acs": {
        "base_url": "https://shop.europe.communication.azure.com",
        "access_key": b64encode(KEY_BYTES).decode(),
        "sender_address": "shop@example.com",
        "webhook_key": "swordfish-0007",
    },
    "fcm": {"service_account": KEY_FILE, "callback_secret": WEBHOOK_SECRET},
    "smtp": {
        "host": "127.0.0.1",
        "port": 1,
        "tls": "none",
        "from_email": "shop@example.com",
        "username": "shop",
        "password": "swordfish-0008",
    },
    "webhook": {"secret": WEBHOOK_SECRET},
    "slack": {"webhook_url": "https://hooks.slack.com/services/T0/B0/swordfish-0009"},
    "webpush": {
        "vapid_private_key": "c3dvcmRmaXNoLTAwMTAtc3dvcmRmaXNoLTAwMTAtc3c",
        "vapid_subject": "mailto:ops@example.org",
    },
    "apprise": {"urls": ["json://swordfish-0011:swordfish-0012@127.0.0.1:1/swordfish-0013"]},
    "rabbitmq": {"url": "amqp://127.0.0.1:1/", "username": "shop", "password": "swordfish-0014"},
}

MARKS = (
    "swordfish",
    "SWORDFISH",
    "c3dvcmRmaXNo",  # the mark in base64
    FCM["oauth"]["throwaway_test_private_key_pem"].splitlines()[3],
)
"""Texts that reveal a credential of the settings above, in any encoding."""

CHANNELS = {
    "twilio": Channel.SMS,
    "sns": Channel.SMS,
    "sendgrid": Channel.EMAIL,
    "acs": Channel.EMAIL,
    "fcm": Channel.PUSH,
    "smtp": Channel.EMAIL,
    "webhook": Channel.WEBHOOK,
    "slack": Channel.CHAT,
    "webpush": Channel.PUSH,
    "apprise": Channel.CHAT,
    "rabbitmq": Channel.QUEUE,
}
ADDRESSES = {
    Channel.SMS: "+15558675310",
    Channel.EMAIL: "ada@example.org",
    Channel.PUSH: "device-token-of-ada",
    Channel.WEBHOOK: "https://hooks.example.org/ada",
    Channel.CHAT: "https://hooks.slack.com/services/T1/B1/of-ada",
    Channel.QUEUE: "ada",
}
SUBSCRIPTION = json.dumps(
    {
        "endpoint": "https://push.example.net/of-ada",
        "keys": {"p256dh": WEBPUSH["rfc8291"]["ua_public"], "auth": WEBPUSH["rfc8291"]["auth_secret"]},
    }
)


def a_provider(kind: str, transport: Transport | None = None, **settings: Any) -> Any:
    """Creates the provider from settings, as for a user."""
    shared = PlugInDependencies(HTTP, lambda: NOW_MS)
    if transport is not None:
        shared._transport = transport
    return build_from_settings("providers", kind, kind, PROVIDERS, {**SETTINGS[kind], **settings}, shared)


def refusal(kind: str, field: str, value: Any) -> ConfigError | None:
    """Returns the error for this value of a setting, or None if it is accepted."""
    try:
        a_provider(kind, UNREACHABLE, **{field: value})
    except ConfigError as refused:
        return refused
    return None


def a_delivery(kind: str, **fields: Any) -> Delivery:
    """Returns a delivery that this provider can send."""
    channel = CHANNELS[kind]
    address = SUBSCRIPTION if kind == "webpush" else ADDRESSES[channel]
    given: dict[str, Any] = {
        "notification_id": "018d0c7e-5a00-7000-8000-000000000001",
        "tenant": "acme",
        "channel": channel,
        "type": "order_confirmed",
        "priority": Priority.HIGH,
        "recipient": Recipient(id="ada"),
        "address": address,
        "content": Content(title="Hello", body="Your parcel is here", data={"k": "v"}),
        "idempotency_key": "018d0c7e-5a00-7000-8000-000000000001",
        "attempt": 1,
        "timeout_ms": 60_000,
        **fields,
    }
    return Delivery(**given)
