"""Keys of preferences, suppressions and buckets: two different things never share a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homing.core.lifecycle.effects import key_part, preference_key, suppression_key, unescape_key_part
from homing.core.notifications import Channel
from homing.core.ports.stores import Entry
from homing.core.recipients.registry_entries import decode_preference, decode_suppression
from homing.core.routing.rate_limits import RateLimit, TokenBucket, take_from_bucket

# Few letters, so that different parts often give the same text unless they are separated.
TEXT = st.text(alphabet="a:%3A25*", min_size=1, max_size=6)


@given(TEXT)
def test_a_part_of_a_key_reads_back(text: str) -> None:
    assert unescape_key_part(key_part(text)) == text
    assert ":" not in key_part(text)


@given(TEXT, TEXT, st.sampled_from([*(c.value for c in Channel), "*"]))
def test_a_preference_reads_back_from_its_key(id: str, category: str, channel: str) -> None:
    entry = Entry(tenant="t", kind="preference", key=preference_key(id, category, channel), value={})
    found = decode_preference(entry)
    assert (found.recipient_id, found.category, found.channel) == (id, category, channel)


@given(st.sampled_from(Channel), TEXT, TEXT)
def test_a_suppression_reads_back_from_its_key(channel: Channel, address: str, category: str) -> None:
    entry = Entry(tenant="t", kind="suppression", key=suppression_key(channel, address, category), value={})
    found = decode_suppression(entry)
    assert (found.channel, found.address, found.category) == (channel, address, category)


@given(st.floats(0, 10), st.integers(-20, 20), st.integers(0, 100_000))
def test_taking_and_returning_tokens_stays_between_zero_and_the_burst(
    tokens: float, want: int, passed_ms: int
) -> None:
    limit = RateLimit(0.1, 10)
    after, granted, wait_ms = take_from_bucket(TokenBucket(tokens, 0), limit, passed_ms, want)
    assert -1e-6 <= after.tokens <= 10
    assert 0 <= granted <= max(0, want)
    assert (wait_ms == 0) == (after.tokens >= 1 - 1e-9)
