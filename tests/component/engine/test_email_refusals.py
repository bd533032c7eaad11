"""The parts of an email are checked at intake: errors name the field, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest

from homing.core.notifications import Attachment, Content
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import ADA, EngineHarness, refused

BAD: list[tuple[str, Content]] = [
    ("content.subject", Content(subject="=?utf-8?q?a=0aBcc:_eve@example.org?=", body="b")),
    ("content.headers.Bcc", Content(body="b", headers={"Bcc": "eve@example.org"})),
    ("content.headers.X-A", Content(body="b", headers={"X-A": "a\r\nBcc: eve@example.org"})),
    ("content.unsubscribeUrl", Content(body="b", unsubscribe_url="http://example.org/u")),
    ("content.attachments.filename", Content(body="b", attachments=(Attachment("../a", "QQ=="),))),
    ("content.attachments.content", Content(body="b", attachments=(Attachment("a", "QQ"),))),
]


@pytest.mark.parametrize(("field", "content"), BAD, ids=[case[0] for case in BAD])
async def test_an_invalid_part_of_an_email_is_refused_by_name(
    harness: EngineHarness, field: str, content: Content
) -> None:
    assert (await refused(harness, {"body": None, "content": content})).field == field


@pytest.mark.parametrize("spelled", ["unsubscribe_url", "unsubscribeUrl"])
async def test_the_parts_of_an_email_reach_the_provider_unchanged(
    harness: EngineHarness, spelled: str
) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"any": provider})
    content: dict[str, Any] = {"body": "b", "headers": {"X-Ref": "17"}, spelled: "https://example.org/u"}
    await engine.wait((await engine.send(ADA, channel="email", content=content)).id)
    (sent,) = provider.sent
    assert (sent.content.headers, sent.content.unsubscribe_url) == ({"X-Ref": "17"}, "https://example.org/u")
