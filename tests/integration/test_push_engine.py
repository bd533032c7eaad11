"""Push and Apprise from a settings file to a server, with the app's delivery report."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from homing import Homing, Reason, Recipient, Status
from homing.core.lifecycle.receipts import Callback
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer

VECTORS = Path(__file__).parents[1] / "vectors"
FCM: dict[str, Any] = json.loads((VECTORS / "fcm.json").read_text())
WEBPUSH: dict[str, Any] = json.loads((VECTORS / "webpush.json").read_text())["rfc8291"]

NAME = FCM["send"]["success"]["body"]["name"]
UNREGISTERED = next(error["body"] for error in FCM["errors"] if error["id"] == "unregistered")
CALLBACK_SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def google(received: ReceivedRequest) -> ServerAction:
    """A token server and an FCM server."""
    if received.path == "/token":
        return answer(200, json.dumps(FCM["oauth"]["token_response"]).encode())
    return answer(200, json.dumps(FCM["send"]["success"]["body"]).encode())


def google_without_devices(received: ReceivedRequest) -> ServerAction:
    return google(received) if received.path == "/token" else answer(404, json.dumps(UNREGISTERED).encode())


def settings(folder: Path, text: str) -> Path:
    path = folder / "homing.toml"
    path.write_text(text)
    return path


def with_fcm(folder: Path, server: FaultServer) -> Path:
    pem = FCM["oauth"]["throwaway_test_private_key_pem"]
    key = {"client_email": "svc@demo.example", "private_key": pem, "project_id": "demo-proj"}
    (folder / "key.json").write_text(json.dumps(key))
    text = f"""
        [providers.fcm]
        service_account = "file:{folder / "key.json"}"
        base_url = "{server.url}"
        token_uri = "{server.url}/token"
        callback_secret = "{CALLBACK_SECRET}"
        android = {{ priority = "normal" }}
    """
    return settings(folder, text)


def report(message_id: str) -> Callback:
    """Reports a delivery like an app's backend."""
    now_s = int(time.time())
    body = json.dumps({"messageId": message_id, "event": "delivered", "timestamp": now_s})
    signed = Webhook(CALLBACK_SECRET).sign("evt_1", datetime.fromtimestamp(now_s, UTC), body)
    headers = {"webhook-id": "evt_1", "webhook-timestamp": str(now_s), "webhook-signature": signed}
    return Callback(url="https://homing.example/fcm/delivery-status", headers=headers, body=body.encode())


async def test_a_push_is_sent_by_fcm_and_its_app_reports_it_delivered(tmp_path: Path) -> None:
    async with (
        FaultServer(google) as server,
        Homing("memory:", config_file=with_fcm(tmp_path, server), worker=True) as homing,
    ):
        sent = await homing.send(Recipient(device_token="tok1"), channel="push", title="T", body="B")
        done = await homing.wait(sent.id)
        assert (done.status, done.provider_message_ids) == (Status.SENT, (NAME,))
        await homing.handle_callback("fcm", report(NAME))
        assert (await homing.get(sent.id)).status is Status.DELIVERED
    assert json.loads(server.received[1].body)["message"]["android"] == {"priority": "normal"}


async def test_an_unregistered_token_is_dead(tmp_path: Path) -> None:
    async with (
        FaultServer(google_without_devices) as server,
        Homing("memory:", config_file=with_fcm(tmp_path, server), worker=True) as homing,
    ):
        sent = await homing.send(Recipient(device_token="tok1"), channel="push", body="B")
        done = await homing.wait(sent.id)
    assert (done.status, done.reason, done.attempt_count) == (Status.FAILED, Reason.DEAD_ADDRESS, 1)


async def test_a_push_is_sent_to_a_subscription(tmp_path: Path) -> None:
    keys = {"p256dh": WEBPUSH["ua_public"], "auth": WEBPUSH["auth_secret"]}
    subscription = json.dumps({"endpoint": "https://push.example.net/send/abc", "keys": keys})
    async with FaultServer(otherwise=answer(201, headers={"location": "/m/1"})) as server:
        text = f"""
            [providers.webpush]
            vapid_private_key = "{WEBPUSH["as_private"]}"
            vapid_subject = "mailto:push@example.com"
            base_url = "{server.url}"
        """
        async with Homing("memory:", config_file=settings(tmp_path, text), worker=True) as homing:
            sent = await homing.send(Recipient(device_token=subscription), channel="push", body="B")
            done = await homing.wait(sent.id)
    assert (done.status, done.provider_message_ids) == (Status.SENT, ("/m/1",))
    assert server.received[0].headers["topic"] == sent.id.replace("-", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from libraries that Apprise's plugins load
async def test_a_chat_message_is_sent_by_apprise(tmp_path: Path) -> None:
    async with FaultServer() as server:
        text = f"""
            [providers.team]
            kind = "apprise"
            urls = ["json://127.0.0.1:{server.port}/"]
            channels = ["chat"]
        """
        async with Homing("memory:", config_file=settings(tmp_path, text), worker=True) as homing:
            sent = await homing.send(
                Recipient(url="https://team.example"), channel="chat", body="Disk is full"
            )
            done = await homing.wait(sent.id)
    assert done.status is Status.SENT
    assert json.loads(server.received[0].body)["message"] == "Disk is full"
