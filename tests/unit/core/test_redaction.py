"""Redaction of other people's text before it is logged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.ids import uuid7
from homing.core.redaction import HIDDEN, redact
from support.core_builders import NOW

TOKEN = "fGk3:APA91b" + "xY_-9" * 8


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("mailbox ada@example.org is full", f"mailbox {HIDDEN}@example.org is full"),
        ("<ada.l+news@example.org>: 550", f"<{HIDDEN}@example.org>: 550"),
        ("to +15550100123 failed", f"to {HIDDEN} failed"),
        ("to +1 (555) 010-0123 failed", f"to {HIDDEN} failed"),
        ("POST https://shop.example/in/secret?k=v: 503", f"POST https://shop.example/{HIDDEN} 503"),
        ("https://user:secret@shop.example/in", f"https://shop.example/{HIDDEN}"),
        (f"token {TOKEN} is dead", f"token {HIDDEN} is dead"),
        ("HTTPS://SHOP.EXAMPLE/IN/SECRET", f"HTTPS://SHOP.EXAMPLE/{HIDDEN}"),
        ("password=hunter2&user=ada", f"password={HIDDEN}&user=ada"),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{HIDDEN}", "n": 1}}'),
        ("Authorization: Bearer abc.def", f"Authorization: {HIDDEN}"),
        ("sent as Bearer abc.def-123", f"sent as Bearer {HIDDEN}"),
        ("postgresql://homing:p,w:1@db/x is away", "postgresql://db/x is away"),
    ],
)
def test_addresses_numbers_paths_and_tokens_are_removed(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "503 try later",
        "code 30005",
        "the token is old",
        "basic auth is used",
        "attempt 3 of 6 after 12000 ms",
    ],
)
def test_text_that_identifies_nobody_is_unchanged(text: str) -> None:
    assert redact(text) == text


@given(st.integers(0, 2**74 - 1))
def test_homing_s_own_ids_are_unchanged(bits: int) -> None:
    text = f"notification {uuid7(NOW, bits)} failed"
    assert redact(text) == text


words = st.text("abcdefgh ,.;:()'\"<>-", max_size=20)
secrets = st.sampled_from(["ada.lovelace@example.org", "+15550100123", TOKEN, "secret-path-of-a-hook"])


@given(words, secrets, words)
def test_no_recipient_remains_whatever_text_surrounds_it(before: str, secret: str, after: str) -> None:
    shown = f"https://shop.example/{secret}" if "path" in secret else secret
    found = redact(f"{before} {shown} {after}")
    assert secret not in found
    assert secret.partition("@")[0] not in found


@given(st.text())
def test_any_text_can_be_redacted_and_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert "\x00" not in once
    assert redact(once) == once


@pytest.mark.parametrize("unit", ["a", "1", "@", "a@", "http://", "+1 ", "https://a@", "1-", "\x00", "a:"])
def test_long_nonsense_is_redacted_quickly_and_truncated(unit: str) -> None:
    assert len(redact(unit * 50_000)) <= 60_000
