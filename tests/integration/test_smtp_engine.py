"""The engine with SMTP: from a settings file to a real server, and with server faults."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from homing import BreakerPolicy, Channel, Homing, Listed, Status
from homing.core.errors import ConfigError
from homing.providers.smtp.provider import SmtpProvider
from support.smtp_servers import RecordingHandler, ScriptedSmtpServer, SmtpReply, aiosmtpd_server

RULES = [
    {
        "name": "fast",
        "base_ms": 5,
        "cap_ms": 5,
        "jitter": "none",
        "on_timeout": "hold",
        "max_attempts": 60,
        "timeout_ms": 60_000,
    }
]


def settings_file(folder: Path, port: int, more: str = "") -> Path:
    path = folder / "homing.toml"
    path.write_text(
        f"""store = "memory:"
[providers.smtp]
host = "127.0.0.1"
port = {port}
tls = "none"
from_email = "orders@example.com"
local_hostname = "app.example"
{more}
"""
    )
    return path


async def test_an_email_is_sent_from_a_settings_file_to_a_real_server(tmp_path: Path) -> None:
    kept = RecordingHandler()
    async with (
        aiosmtpd_server(kept) as port,
        Homing(config_file=settings_file(tmp_path, port), worker=True) as homing,
    ):
        content = {"subject": "Hello", "body": "Ada", "unsubscribe_url": "https://example.org/u/1"}
        sent = await homing.send("ada@example.org", channel="email", content=content)
        done = await homing.wait(sent.id)
    assert done.status is Status.SENT
    assert (done.provider_message_ids[0] or "").startswith(f"<{sent.id}@example.com> 2.0.0 Ok")
    assert b"List-Unsubscribe: <https://example.org/u/1>\r\n" in cast(bytes, kept.envelopes[0].content)


def test_a_wrong_setting_is_named_with_its_provider(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"providers\.smtp\.idle_ms: is 0"):
        Homing(config_file=settings_file(tmp_path, 25, "idle_ms = 0"))


async def test_with_random_faults_and_hold_no_email_is_lost_or_sent_twice() -> None:
    """One step in twelve fails, at every step of the conversation."""
    rng = random.Random(5321)

    def moody(number: int, step: str) -> SmtpReply | None:
        if step == "QUIT" or rng.random() > 1 / 12:
            return None
        breaks: list[SmtpReply] = ["close", "reset"]
        refusals: list[SmtpReply] = [b"451 4.3.0 not now\r\n", b"421 4.3.2 bye\r\n"]
        return rng.choice(breaks if step in ("dot", "body") else breaks + refusals)

    async with ScriptedSmtpServer(moody) as server:
        provider = SmtpProvider(
            host="127.0.0.1", port=server.port, tls="none", from_email="orders@example.com",
            local_hostname="app.example", max_connections=6, mails_per_connection=7,
        )  # fmt: skip
        listed = Listed(
            id="smtp", provider=provider, channels=(Channel.EMAIL,), breaker=BreakerPolicy(failures=10**6)
        )
        async with Homing("memory:", providers={"smtp": listed}, rules=RULES, worker=True) as homing:
            sends = [homing.send(f"p{n}@example.org", channel="email", body="Hello") for n in range(300)]
            accepted = await asyncio.gather(*sends)
            done = [await homing.wait(one.id) for one in accepted]
    got = Counter(
        found[1].decode() for mail in server.mails if (found := re.search(rb"Message-ID: <([^@]+)@", mail))
    )
    assert sum(got.values()) == len(server.mails)
    assert set(got.values()) == {1}
    statuses = Counter(one.status for one in done)
    assert set(statuses) == {Status.SENT, Status.IN_DOUBT}
    assert {one.id for one in done} == set(got)
    assert statuses[Status.IN_DOUBT] > 5
    assert max(one.attempt_count for one in done) > 1
