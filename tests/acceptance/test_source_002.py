"""The six scenarios of source 002 over real HTTP: `homing serve` as a process, with fake vendors.

Status codes and field names are the source's. Its requests name no recipient; these do.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest

from homing.providers.twilio.callbacks import compute_signature
from homing.testing.fault_server import ServerAction, answer
from support.cli_driver import Cli
from support.fake_vendors import (
    ACCOUNT,
    APP_SECRET,
    PUBLIC,
    TOKEN,
    Report,
    fcm_post,
    key_file,
    sendgrid_post,
    sendgrid_public_key,
    twilio_post,
)
from support.service_process import Service, serving
from support.vendor_server import VendorServer, json_answer

SECRET = "a secret that only the issuer of admin tokens and Homing know"
SETTINGS = f"""
store = "homing.db"
preset = "channel"
[[service.jwt]]
issuer = "https://id.listo.example"
audience = "homing"
algorithm = "HS256"
key = "{SECRET}"
tenant = "default"
scopes = ["admin"]
[queue_names]
priority = "listo-notifications-priority"
standard = "listo-notifications-queue"
bulk = "listo-notifications-bulk"
[templates]
folder = "templates"
locales = ["en-US", "es-MX"]
[routes]
sms = ["twilio", "sns"]
email = ["sendgrid", "acs"]
[providers.twilio]
account_sid = "{ACCOUNT}"
auth_token = "{TOKEN}"
sender = "+15017122661"
callback_url = "{PUBLIC}/api/v1/webhooks/twilio/sms-status"
base_url = "VENDORS"
[providers.sns]
region = "us-east-1"
access_key_id = "AKIDEXAMPLE"
secret_access_key = "wJalrXUtnFEMI"
base_url = "VENDORS/sns"
[providers.sendgrid]
api_key = "SG.key"
from_email = "us@example.org"
webhook_public_key = "{sendgrid_public_key()}"
base_url = "VENDORS"
[providers.acs]
sender_address = "us@example.org"
base_url = "VENDORS"
access_key = "YWNz"
[providers.fcm]
service_account = "file:firebase.json"
callback_secret = "{APP_SECRET}"
base_url = "VENDORS"
token_uri = "VENDORS/token"
"""
TEMPLATES = {
    "driver_assigned/{locale}/push.title.txt": {"en-US": "Your driver", "es-MX": "Su conductor"},
    "driver_assigned/{locale}/push.body.txt": {"en-US": "is {{ driver }}", "es-MX": "es {{ driver }}"},
    "order_confirmed/{locale}/email.subject.txt": {"en-US": "Order confirmed", "es-MX": "Pedido confirmado"},
    "order_confirmed/{locale}/email.txt": {"en-US": "Thank you.", "es-MX": "Gracias."},
}
PHONE = {"phone": "+15550100"}
HANG = ServerAction(then="hang")


@pytest.fixture(scope="module")
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as running:
        yield running


@pytest.fixture(scope="module")
def service(vendors: VendorServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("listo")
    (folder / "homing.toml").write_text(SETTINGS.replace("VENDORS", vendors.url))
    (folder / "firebase.json").write_text(key_file())
    _write_templates(folder / "templates")
    with serving(Cli(folder)) as running:
        yield running


def _write_templates(folder: Path) -> None:
    for name, texts in TEMPLATES.items():
        for locale, text in texts.items():
            file = folder / name.format(locale=locale)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            (file.parents[1] / "sample.json").write_text('{"driver": "Grace"}')


def send(service: Service, request: Any, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, body = service.call("POST", "/api/v1/notifications/send", request, headers=named)
    return status, json.loads(body)


def now(service: Service, id: str) -> None:
    """Makes the next attempt due now, so that the test does not wait for a backoff."""
    status, body = service.call("POST", f"/api/v1/notifications/{id}/reschedule", {"delayMs": 0})
    assert status == 200, body


def read(service: Service, path: str) -> Any:
    status, body = service.call("GET", f"/api/v1/notifications/{path}")
    assert status == 200, body
    return json.loads(body)


DRIVER = {
    "templateKey": "driver_assigned",
    "data": {"driver": "Grace"},
    "priority": "high",
    "synchronous": True,
    "channel": "push",
    "recipient": {"deviceToken": "token-1"},
}


@pytest.mark.source("002", "26", "39-46", "74-88", "90-94", "103", "105", "206-208", "246", "256", "504-522")
def test_scenario_1_a_synchronous_delivery_succeeds(service: Service, vendors: VendorServer) -> None:
    status, sent = send(service, DRIVER, Idempotency_Key="ride-1")
    assert (status, sent["status"], sent["provider"]) == (200, "sent", "fcm")
    assert set(sent) >= {"notificationId", "status", "sentAt", "providerMessageId"}
    assert sent["providerMessageId"].startswith("projects/demo-proj/messages/")
    # FCM only accepts the message; the app reports the delivery, which the next read shows.
    post = fcm_post(Report("fcm", sent["providerMessageId"].rpartition("/")[2], "delivered"))
    assert _post(service, post.path, post.headers, post.body) < 300
    status, sent = send(service, DRIVER, Idempotency_Key="ride-1")
    assert (status, sent["status"]) == (200, "delivered")
    assert set(sent) >= {"notificationId", "status", "deliveredAt", "providerMessageId"}
    message = json.loads(vendors.asked("fcm"))["message"]
    assert message["notification"] == {"title": "Your driver", "body": "is Grace"}


@pytest.mark.source("002", "65", "70-72", "82-87", "90-94", "106", "524-541")
def test_scenario_2_a_synchronous_timeout_is_not_queued(service: Service, vendors: VendorServer) -> None:
    vendors.told["fcm"].append(HANG)
    bare = {name: value for name, value in DRIVER.items() if name not in ("channel", "priority")}
    status, failed = send(service, bare)  # the template has only one channel
    error = failed["error"]
    assert (status, error["code"]) == (504, "DELIVERY_TIMEOUT")
    assert error["message"] == "Synchronous delivery timed out after 2s. Notification NOT queued."
    found = service.until(error["notificationId"], "failed")
    assert (found["attemptCount"], found["reason"]) == (1, "DELIVERY_TIMEOUT")
    assert "nextRetryAt" not in found


@pytest.mark.source("002", "67", "100-102", "108-112", "136-148", "200-202", "213-224", "257", "543-566")
def test_scenario_3_an_asynchronous_delivery_retries_and_fails_over(
    service: Service, vendors: VendorServer
) -> None:
    vendors.told["sendgrid"] += [ServerAction(then="reset"), answer(503)]
    status, sent = send(
        service,
        {
            "templateKey": "order_confirmed",
            "priority": "normal",
            "channel": "email",
            "recipient": {"email": "ada@example.org"},
        },
    )
    assert (status, sent["status"], sent["queueName"]) == (202, "queued", "listo-notifications-queue")
    id = sent["notificationId"]
    for attempt, seconds in ((1, 5), (2, 10)):
        service.until(id, "retrying", attempt)
        assert read(service, f"{id}/retry-info")["currentDelayMinutes"] * 60 == seconds
        now(service, id)
    policy = read(service, f"{id}/explain")["policy"]
    assert (policy["maxAttempts"], policy["jitterMs"], policy["timeoutMs"]) == (6, 1_000, 30_000)
    found = service.until(id, "sent")
    assert found["providerNames"] == ["sendgrid", "sendgrid", "acs"]
    outcomes = [one["outcome"] for one in read(service, f"{id}/attempts")["attempts"]]
    assert outcomes == ["ambiguous", "transient", "accepted"]


@pytest.mark.source("002", "194-196", "211-213", "226-229", "233-237", "300-325", "568-582", "584")
def test_scenario_4_a_failure_reported_later_moves_to_the_other_provider(
    service: Service, vendors: VendorServer
) -> None:
    status, sent = send(service, {"channel": "sms", "recipient": PHONE, "content": {"body": "Your code"}})
    assert status == 202
    id = sent["notificationId"]
    (sid,) = service.until(id, "sent")["providerMessageIds"]
    url = parse_qs(vendors.asked("twilio").decode())["StatusCallback"][0]
    report = Report("twilio", sid, "hard", {"url": url})  # undelivered, 30005
    forged = twilio_post(report, token="0" * 32)
    assert _post(service, forged.path, forged.headers, forged.body) == 401
    assert read(service, id)["status"] == "sent"
    path, headers, body = _as_json(sid, url)
    assert _post(service, path, headers, body) < 300
    found = service.until(id, "sent", 2)
    assert found["id"] == id
    assert set(found) >= {"providerMessageIds", "providerNames", "attemptCount", "lastAttemptAt"}
    assert found["providerNames"] == ["twilio", "sns"]
    assert found["providerMessageIds"][0] == sid
    assert found["providerMessageIds"][1].startswith("sns-")


@pytest.mark.source("002", "344-345")
@pytest.mark.parametrize("event", ["soft", "hard", "hard drop", "unknown"])
def test_a_bounced_or_dropped_email_goes_to_the_other_provider(
    service: Service, vendors: VendorServer, event: str
) -> None:
    to = {"email": f"{event.replace(' ', '-')}@example.org"}
    _, sent = send(service, {"channel": "email", "recipient": to, "content": {"subject": "S", "body": "B"}})
    id = sent["notificationId"]
    (message,) = service.until(id, "sent")["providerMessageIds"]
    post = sendgrid_post([Report("sendgrid", message, event, {"homing_notification_id": id})])
    assert _post(service, post.path, post.headers, post.body) < 300
    assert service.until(id, "sent", 2)["providerNames"] == ["sendgrid", "acs"]


@pytest.mark.source("002", "355")
def test_a_push_that_the_app_reports_as_failed_is_sent_again_by_the_same_provider(
    service: Service, vendors: VendorServer
) -> None:
    content = {"title": "Order", "body": "It is on its way"}
    _, sent = send(service, {"channel": "push", "recipient": {"deviceToken": "token-1"}, "content": content})
    id = sent["notificationId"]
    (message,) = service.until(id, "sent")["providerMessageIds"]
    post = fcm_post(Report("fcm", message.rpartition("/")[2], "soft"))
    assert _post(service, post.path, post.headers, post.body) < 300
    service.until(id, "retrying")
    now(service, id)
    assert service.until(id, "sent", 2)["providerNames"] == ["fcm", "fcm"]


@pytest.mark.source("002", "30", "393-399", "586-598")
def test_scenario_5_the_locale_is_resolved_without_a_substitute(
    service: Service, vendors: VendorServer
) -> None:
    to = {"channel": "email", "recipient": {"email": "ada@example.org"}, "templateKey": "order_confirmed"}
    status, sent = send(service, to, Accept_Language="es-MX, en-US;q=0.9")
    assert status == 202
    found = service.until(sent["notificationId"], "sent")
    assert (found["locale"], found["content"]["subject"]) == ("es-MX", "Pedido confirmado")
    status, sent = send(service, {**to, "recipient": {"email": "ada@example.org", "locale": "en-US"}})
    assert read(service, sent["notificationId"])["content"]["subject"] == "Order confirmed"
    missing = {**to, "templateKey": "order_shipped"}
    status, refused = send(service, missing, Accept_Language="es-MX, en-US;q=0.9")
    assert (status, refused["error"]["code"]) == (422, "TEMPLATE_NOT_FOUND")
    status, refused = send(service, to, Accept_Language="fr-FR")
    assert (status, refused["error"]["code"]) == (422, "INVALID_REQUEST")
    preferred = {**to, "recipient": {"email": "ada@example.org", "locale": "fr-FR"}}
    status, refused = send(service, preferred, Accept_Language="es-MX")
    assert (status, refused["error"]["field"]) == (422, "recipient.locale")


@pytest.mark.source("002", "258", "473-498", "600-617")
def test_scenario_6_an_admin_retries_manually_with_the_other_provider(
    service: Service, vendors: VendorServer
) -> None:
    vendors.told["twilio"].append(json_answer(400, {"code": 21635, "message": "The number is a landline"}))
    _, sent = send(service, {"channel": "sms", "recipient": PHONE, "content": {"body": "Your order"}})
    id = sent["notificationId"]
    failed = service.until(id, "failed")
    assert (failed["reason"], failed["attemptCount"]) == ("BAD_RECIPIENT", 1)
    assert "landline" in failed["lastError"]
    assert "failedAt" in failed
    claims = {"iss": "https://id.listo.example", "aud": "homing", "sub": "support"}
    stamps = {"iat": int(time.time()), "exp": int(time.time()) + 600}
    admin = {"Authorization": f"Bearer {jwt.encode({**claims, **stamps}, SECRET, 'HS256')}"}
    reason = "Customer escalation - retry with secondary provider"
    wanted = {"reason": reason, "forceProvider": "AWS_SNS"}
    path = f"/api/v1/admin/notifications/{id}/retry"
    assert service.call("POST", path, wanted, headers=admin)[0] == 403
    status, body = service.call("POST", path, wanted, headers={**admin, "X-Admin-Override": "true"})
    done = json.loads(body)
    assert (status, done["success"], done["notificationId"], done["status"]) == (200, True, id, "queued")
    assert set(done) >= {"retryAttemptId", "estimatedDeliveryTime"}
    found = service.until(id, "sent")
    assert found["providerNames"] == ["twilio", "sns"]
    (cause,) = read(service, f"{id}/attempts")["causes"]
    assert (cause["name"], cause["who"], cause["why"]) == ("retry", "jwt:support", reason)


def _as_json(sid: str, url: str) -> tuple[str, dict[str, str], bytes]:
    """Returns the callback of the source: JSON, whose hash is a signed part of the URL."""
    body = json.dumps({"MessageSid": sid, "MessageStatus": "failed", "ErrorCode": "30005"}).encode()
    url = f"{url}{'&' if '?' in url else '?'}bodySHA256={sha256(body).hexdigest()}"
    headers = {
        "X-Twilio-Signature": compute_signature(TOKEN, url, ()),
        "Content-Type": "application/json",
        "Host": urlsplit(url).netloc,
    }
    return url.removeprefix(PUBLIC), headers, body


def _post(service: Service, path: str, headers: Any, body: bytes) -> int:
    """Posts without a key, like a vendor."""
    connection = http.client.HTTPConnection(service.address, timeout=60)
    try:
        connection.request("POST", path, body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()
