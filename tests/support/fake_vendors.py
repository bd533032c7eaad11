"""Five fake vendors: they accept every message, and report on it as a test plans.

Messages reach them through a transport in this process. Their reports are requests with real signatures, for
posting to the service. A vendor echoes what it was given: Twilio the callback URL, SendGrid the custom
arguments, Communication Services the name of the operation.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from homing.net.http_messages import HttpRequest, HttpResponse
from homing.net.secrets import Secret
from homing.net.standard_webhooks import SigningKey, build_signature_header
from homing.providers.acs.provider import AcsProvider
from homing.providers.fcm.provider import FcmProvider
from homing.providers.sendgrid.provider import SendGridProvider
from homing.providers.sns.provider import SnsProvider
from homing.providers.twilio.callbacks import compute_signature
from homing.providers.twilio.provider import TwilioProvider

PUBLIC = "https://notify.example.org"
"""The public URL of the service, which the vendors sign whatever address the service listens on."""

ACCOUNT, TOKEN = "AC" + "b" * 32, "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
TOPIC = "arn:aws:sns:us-east-1:123456789012:delivery-status"
CERTIFICATE_URL = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123abcd.pem"
APP_SECRET = "whsec_" + b64encode(b"the apps' own secret, 32 bytes..").decode()
GRID_KEY = "a key that only Event Grid knows"

SENDGRID_KEY = ec.generate_private_key(ec.SECP256R1())
SNS_KEY = rsa.generate_private_key(65537, 2048)
FCM_KEY = rsa.generate_private_key(65537, 2048)

EventFields = Mapping[str, Mapping[str, Any]]
"""Event → the vendor's fields for it."""

TWILIO: EventFields = {
    "queued": {"MessageStatus": "queued"},
    "sent": {"MessageStatus": "sent"},
    "delivered": {"MessageStatus": "delivered"},
    "soft": {"MessageStatus": "undelivered", "ErrorCode": "30008"},
    "hard": {"MessageStatus": "undelivered", "ErrorCode": "30005"},
    "content": {"MessageStatus": "undelivered", "ErrorCode": "30007"},
    "fault": {"MessageStatus": "undelivered", "ErrorCode": "30034"},
    "unknown": {"MessageStatus": "failed", "ErrorCode": "39999"},
}
SNS: EventFields = {
    "delivered": {"status": "SUCCESS"},
    "soft": {"status": "FAILURE", "response": "Phone is currently unreachable/unavailable"},
    "hard": {"status": "FAILURE", "response": "Phone has blocked SMS"},
    "content": {"status": "FAILURE", "response": "Blocked as spam by phone carrier"},
    "fault": {"status": "FAILURE", "response": "No quota left for account"},
    "unknown": {"status": "FAILURE", "response": "A reason that is new"},
}
SENDGRID: EventFields = {
    "queued": {"event": "processed"},
    "sent": {"event": "deferred", "response": "try later"},
    "delivered": {"event": "delivered"},
    "soft": {"event": "bounce", "type": "blocked", "reason": "refused for now"},
    "hard": {"event": "bounce", "type": "bounce", "status": "5.1.1", "reason": "no such user"},
    "hard drop": {"event": "dropped", "reason": "Bounced Address"},
    "content": {"event": "dropped", "reason": "Spam Content"},
    "fault": {"event": "dropped", "reason": "Recipient List over Package Quota"},
    "unknown": {"event": "dropped", "reason": "A reason that is new"},
    "spam": {"event": "spamreport"},
    "unsubscribe": {"event": "group_unsubscribe"},
    "open": {"event": "open"},
    "click": {"event": "click", "url": "https://example.org"},
}
ACS: EventFields = {
    "sent": {"status": "Expanded"},
    "delivered": {"status": "Delivered"},
    "soft": {"status": "Failed"},
    "hard": {"status": "Bounced"},
    "content": {"status": "FilteredSpam"},
    "fault": {"status": "DomainNotLinked"},
    "unknown": {"status": "Failed"},
}
FCM: EventFields = {
    "delivered": {"event": "delivered"},
    "soft": {"event": "failed", "error": "UNAVAILABLE"},
    "hard": {"event": "failed", "error": "UNREGISTERED"},
    "content": {"event": "failed", "error": "INVALID_ARGUMENT"},
    "fault": {"event": "failed", "error": "THIRD_PARTY_AUTH_ERROR"},
    "unknown": {"event": "failed", "error": "A reason that is new"},
}
EVENT_FIELDS: Mapping[str, EventFields] = {
    "twilio": TWILIO,
    "sns": SNS,
    "sendgrid": SENDGRID,
    "acs": ACS,
    "fcm": FCM,
}


@dataclass(frozen=True)
class Report:
    """One event of one message, reported by a vendor."""

    vendor: str
    message_id: str
    what: str
    echo: Mapping[str, str] = field(default_factory=dict)
    """What the send gave the vendor to echo."""

    @property
    def id(self) -> str:
        return sha256(f"{self.vendor} {self.message_id} {self.what}".encode()).hexdigest()[:22]


@dataclass(frozen=True)
class Post:
    """A request from a vendor to the service."""

    path: str
    """Includes the query."""
    headers: Mapping[str, str]
    body: bytes
    reports: tuple[Report, ...] = ()


Plan = Callable[[str, str, int], Iterable[str]]
"""(vendor, address, number of the send to it) → events to report about that message."""


class FakeVendors:
    """A transport that leads to all five vendors."""

    def __init__(self, plan: Plan = lambda vendor, address, number: ()) -> None:
        self.plan = plan
        self.reports: list[Report] = []
        self.before_answering: Callable[[list[Report]], Awaitable[None]] | None = None
        """Called with the reports about a message before its send is answered."""
        self.sends: Counter[tuple[str, str]] = Counter()
        self.certificate = _certificate()

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse:
        host = urlsplit(request.url).netloc
        if request.method == "GET":
            return HttpResponse(status=200, headers={}, body=self.certificate)
        if host.startswith("oauth"):
            return _json(200, {"access_token": "ya29", "expires_in": 3600, "token_type": "Bearer"})
        for part, taken in (
            ("twilio", self._twilio),
            ("amazonaws", self._sns),
            ("sendgrid", self._sendgrid),
            ("communication.azure", self._acs),
            ("fcm", self._fcm),
        ):
            if part in host:
                told = len(self.reports)
                answer = taken(request)
                if self.before_answering is not None:
                    await self.before_answering(self.reports[told:])
                return answer
        raise AssertionError(f"no vendor has the host {host}")

    async def close(self) -> None: ...

    def providers(self) -> dict[str, Any]:
        """Returns all five providers, in the order of their routes."""
        return {
            "twilio": TwilioProvider(
                self,
                account_sid=ACCOUNT,
                auth_token=TOKEN,
                sender="+15017122661",
                callback_url=f"{PUBLIC}/api/v1/webhooks/twilio/sms-status",
            ),
            "sns": SnsProvider(
                self,
                region="us-east-1",
                access_key_id="AKIDEXAMPLE",
                secret_access_key="wJalrXUtnFEMI",
                callback_topics=[TOPIC],
            ),
            "sendgrid": SendGridProvider(
                self,
                api_key="SG.key",
                from_email="us@example.org",
                webhook_public_key=sendgrid_public_key(),
            ),
            "acs": AcsProvider(
                self,
                sender_address="us@example.org",
                base_url="https://us.communication.azure.com",
                access_key=b64encode(b"acs").decode(),
                webhook_key=GRID_KEY,
            ),
            "fcm": FcmProvider(self, service_account=key_file(), callback_secret=APP_SECRET),
        }

    # Messages to the vendors ------------------------------------------------------------------------

    def _twilio(self, request: HttpRequest) -> HttpResponse:
        form = dict(parse_qsl(request.body.decode()))
        sid = self._taken("twilio", form["To"], {"url": form["StatusCallback"]}, "SM")
        return _json(201, {"sid": sid, "status": "queued"})

    def _sns(self, request: HttpRequest) -> HttpResponse:
        form = parse_qs(request.body.decode())
        id = self._taken("sns", form["PhoneNumber"][0])
        body = f"<R><PublishResult><MessageId>{id}</MessageId></PublishResult></R>"
        return HttpResponse(status=200, headers={}, body=body.encode())

    def _sendgrid(self, request: HttpRequest) -> HttpResponse:
        (person,) = json.loads(request.body)["personalizations"]
        id = self._taken("sendgrid", person["to"][0]["email"], person["custom_args"])
        return HttpResponse(status=202, headers={"x-message-id": id})

    def _acs(self, request: HttpRequest) -> HttpResponse:
        address = json.loads(request.body)["recipients"]["to"][0]["address"]
        operation = dict(request.headers)["Operation-Id"]
        self._taken("acs", address, {"operation": operation})
        return _json(202, {"id": operation, "status": "Running"})

    def _fcm(self, request: HttpRequest) -> HttpResponse:
        id = self._taken("fcm", json.loads(request.body)["message"]["token"])
        return _json(200, {"name": f"projects/demo-proj/messages/{id}"})

    def _taken(self, vendor: str, address: str, echo: Mapping[str, str] | None = None, kind: str = "") -> str:
        self.sends[vendor, address] += 1
        number = self.sends[vendor, address]
        id = kind + sha256(f"{vendor} {address} {number}".encode()).hexdigest()[:32]
        self.reports += [Report(vendor, id, what, echo or {}) for what in self.plan(vendor, address, number)]
        return id


# Callbacks to the service --------------------------------------------------------------------------------


def posts(reports: Sequence[Report]) -> list[Post]:
    """Returns the requests with these reports. SendGrid and Event Grid put many into one."""
    mails = [one for one in reports if one.vendor == "sendgrid"]
    grid = [one for one in reports if one.vendor == "acs"]
    found = ([sendgrid_post(mails)] if mails else []) + ([acs_post(grid)] if grid else [])
    single: dict[str, Callable[[Report], Post]] = {
        "twilio": twilio_post,
        "sns": sns_post,
        "fcm": fcm_post,
    }
    return found + [single[one.vendor](one) for one in reports if one.vendor in single]


def twilio_post(report: Report, token: str = TOKEN) -> Post:
    url = report.echo["url"]
    params = [("MessageSid", report.message_id), *TWILIO[report.what].items()]
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": compute_signature(token, url, params),
    }
    return Post(url.removeprefix(PUBLIC), headers, urlencode(params).encode(), (report,))


def sendgrid_post(reports: Sequence[Report], key: ec.EllipticCurvePrivateKey = SENDGRID_KEY) -> Post:
    events = [
        {
            "sg_message_id": f"{one.message_id}.recvd-1",
            "sg_event_id": one.id,
            "timestamp": int(time.time()),
            **one.echo,
            **SENDGRID[one.what],
        }
        for one in reports
    ]
    return _sendgrid_signed(json.dumps(events).encode(), key, reports)


def _sendgrid_signed(body: bytes, key: ec.EllipticCurvePrivateKey, reports: Sequence[Report]) -> Post:
    stamp = str(int(time.time()))
    signed = key.sign(stamp.encode() + body, ec.ECDSA(SHA256()))
    headers = {
        "Content-Type": "application/json",
        "X-Twilio-Email-Event-Webhook-Timestamp": stamp,
        "X-Twilio-Email-Event-Webhook-Signature": b64encode(signed).decode(),
    }
    return Post("/api/v1/webhooks/sendgrid/events", headers, body, tuple(reports))


def acs_post(reports: Sequence[Report], key: str = GRID_KEY) -> Post:
    events = [
        {
            "id": one.id,
            "eventType": "Microsoft.Communication.EmailDeliveryReportReceived",
            "eventTime": datetime.now(UTC).isoformat(),
            "data": {"messageId": one.echo["operation"], **ACS[one.what]},
        }
        for one in reports
    ]
    headers = {"Content-Type": "application/json", "X-Webhook-Key": key}
    return Post("/api/v1/webhooks/acs/events", headers, json.dumps(events).encode(), tuple(reports))


def sns_post(report: Report, key: rsa.RSAPrivateKey = SNS_KEY) -> Post:
    said = SNS[report.what]
    event = {
        "notification": {"messageId": report.message_id},
        "delivery": {"destination": "+1XXX", "providerResponse": said.get("response", "accepted")},
        "status": said["status"],
    }
    return _sns_signed(json.dumps(event), key, report)


def _sns_signed(said: str, key: rsa.RSAPrivateKey, report: Report) -> Post:
    message = {
        "Message": said,
        "MessageId": report.id,
        "Timestamp": datetime.now(UTC).isoformat(),
        "TopicArn": TOPIC,
        "Type": "Notification",
    }
    text = "".join(f"{name}\n{message[name]}\n" for name in sorted(message))
    signed = b64encode(key.sign(text.encode(), PKCS1v15(), SHA256())).decode()
    whole = {
        **message,
        "SignatureVersion": "2",
        "SigningCertURL": CERTIFICATE_URL,
        "Signature": signed,
    }
    headers = {"Content-Type": "text/plain; charset=UTF-8"}
    return Post("/api/v1/webhooks/sns/notifications", headers, json.dumps(whole).encode(), (report,))


def fcm_post(report: Report, secret: str = APP_SECRET) -> Post:
    body = json.dumps({"messageId": report.message_id, "timestamp": time.time(), **FCM[report.what]}).encode()
    return _fcm_signed(body, secret, report)


def _fcm_signed(body: bytes, secret: str, report: Report) -> Post:
    stamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "Webhook-Id": report.id,
        "Webhook-Timestamp": str(stamp),
        "Webhook-Signature": build_signature_header([SigningKey(Secret(secret))], report.id, stamp, body),
    }
    return Post("/api/v1/webhooks/fcm/delivery-status", headers, body, (report,))


def twilio_json_post(report: Report, body: bytes | None = None) -> Post:
    """Returns the report as a JSON object, which Twilio signs by a hash of the body in the URL."""
    said = {"MessageSid": report.message_id, **TWILIO[report.what]}
    made = json.dumps(said).encode() if body is None else body
    path, mark, query = report.echo["url"].partition("?")
    url = f"{path}?{query}{'&' if mark else ''}bodySHA256={sha256(made).hexdigest()}"
    headers = {
        "Content-Type": "application/json",
        "X-Twilio-Signature": compute_signature(TOKEN, url, ()),
    }
    return Post(url.removeprefix(PUBLIC), headers, made, (report,))


def signed_post(vendor: str, body: str, id: str = "any") -> Post:
    """Returns any text as a callback with this id that the vendor has signed."""
    report = Report(vendor, id, "delivered", {"url": PUBLIC + "/api/v1/webhooks/twilio/sms-status"})
    match vendor:
        case "twilio":
            return twilio_json_post(report, body.encode())
        case "sns":
            return _sns_signed(body, SNS_KEY, report)
        case "sendgrid":
            return _sendgrid_signed(body.encode(), SENDGRID_KEY, (report,))
        case "acs":
            headers = {"Content-Type": "application/json", "X-Webhook-Key": GRID_KEY}
            return Post("/api/v1/webhooks/acs/events", headers, body.encode(), (report,))
        case _:
            return _fcm_signed(body.encode(), APP_SECRET, report)


def forged(report: Report) -> Post:
    """Returns the same report, signed by a forger without the secret."""
    match report.vendor:
        case "twilio":
            return twilio_post(report, token="0" * 32)
        case "sns":
            return sns_post(report, key=FCM_KEY)
        case "sendgrid":
            return sendgrid_post([report], key=ec.generate_private_key(ec.SECP256R1()))
        case "acs":
            return acs_post([report], key="guessed")
        case _:
            return fcm_post(report, secret="whsec_" + b64encode(b"guessed" * 5).decode())


def _json(status: int, said: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse(status=status, headers={}, body=json.dumps(said).encode())


def _certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, SNS_KEY.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=30))
    return made.sign(SNS_KEY, SHA256()).public_bytes(Encoding.PEM)


def sendgrid_public_key() -> str:
    key = SENDGRID_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b64encode(key).decode()


def key_file() -> str:
    pem = FCM_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "demo-proj",
            "private_key_id": "1",
            "private_key": pem,
            "client_email": "us@demo-proj.example.org",
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )
