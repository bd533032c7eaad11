"""Tokens of unsubscribe links: they decrypt to the sealed subscription, or to nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.notifications import Channel
from homing.core.recipients.unsubscribe_links import LONGEST_TOKEN, LinkSealer, Subscription

SEAL = LinkSealer(b"a secret of thirty-two characters")
ADA = Subscription("acme", Channel.EMAIL, "newsletter", None, "ada@example.org")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
subscriptions = st.builds(
    Subscription, texts, st.sampled_from(Channel), texts, st.none() | texts, st.none() | texts
)


@given(subscriptions)
def test_a_token_decrypts_to_its_subscription_and_is_deterministic(what: Subscription) -> None:
    token = SEAL.token(what)
    assert SEAL.opened(token) == what
    assert SEAL.token(what) == token
    assert set(token) <= set(ALPHABET)


@given(subscriptions, st.data())
def test_a_modified_token_decrypts_to_nothing(what: Subscription, data: st.DataObject) -> None:
    token = SEAL.token(what)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from([one for one in ALPHABET if one != token[at]]))
    assert SEAL.opened(token[:at] + other + token[at + 1 :]) is None
    assert SEAL.opened(token[:at]) is None
    assert SEAL.opened(token + other) is None


@given(st.text(max_size=100))
def test_text_that_is_not_a_token_decrypts_to_nothing(text: str) -> None:
    assert SEAL.opened(text) is None


@pytest.mark.parametrize("text", ["", "1", "1A", "1AAAA", "2" + "A" * 60, "1" + "A" * LONGEST_TOKEN, "1é"])
def test_odd_lengths_and_formats_decrypt_to_nothing(text: str) -> None:
    assert SEAL.opened(text) is None


def test_a_token_reveals_nothing_about_the_recipient() -> None:
    from base64 import urlsafe_b64decode

    token = SEAL.token(ADA)
    raw = urlsafe_b64decode(token[1:] + "=" * (-len(token[1:]) % 4))
    for word in (b"ada", b"example", b"acme", b"newsletter"):
        assert word not in raw
        assert word not in token.encode()


def test_another_secret_cannot_decrypt_it_and_gives_another_token() -> None:
    other = LinkSealer(b"another secret of thirty-two chars")
    assert other.opened(SEAL.token(ADA)) is None
    assert other.token(ADA) != SEAL.token(ADA)
