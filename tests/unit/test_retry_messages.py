"""`RetryMessage`: Homing's codec against an independent one, and all that it rejects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.brokers.retry_message import RetryMessage, decode_retry_message, encode_retry_message
from homing.core.errors import InvalidRequest
from support.malformed_messages import malformed_messages
from support.retry_messages import Retry, field, read_retry, write_retry

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=60)
COUNT = st.integers(0, 999)


@given(
    message_id=TEXT,
    original_payload=st.binary(max_size=300),
    original_queue=TEXT,
    error_reason=TEXT,
    retry_count=COUNT,
    max_retries=COUNT,
    next_retry_at_ms=st.integers(0, 2**63 - 1),
)
def test_both_codecs_agree(**fields: str | bytes | int) -> None:
    message = RetryMessage(**fields)  # type: ignore[arg-type]
    assert decode_retry_message(write_retry(**fields)) == message
    assert read_retry(encode_retry_message(message)) == Retry(**fields)  # type: ignore[arg-type]


def test_unknown_fields_are_ignored_so_that_the_definition_can_grow() -> None:
    body = write_retry(message_id="m", original_queue="q") + field(99, "new") + field(8, 1)
    assert decode_retry_message(body) == RetryMessage(message_id="m", original_queue="q")


@pytest.mark.parametrize("seed", range(4))
def test_malformed_messages_are_rejected_with_a_reason(seed: int) -> None:
    for body in malformed_messages(500, seed, large_every=0):
        with pytest.raises(InvalidRequest) as caught:
            decode_retry_message(body)
        assert caught.value.field
        assert caught.value.message
