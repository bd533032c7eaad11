"""Length and segments of an SMS, known before sending."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.content.sms import SmsEncoding, SmsSize, sms_size

GSM, UCS = SmsEncoding.GSM_7, SmsEncoding.UCS_2


@pytest.mark.parametrize(
    ("text", "encoding", "units", "segments"),
    [
        ("", GSM, 0, 1),
        ("a" * 160, GSM, 160, 1),
        ("a" * 161, GSM, 161, 2),
        ("a" * 306, GSM, 306, 2),
        ("a" * 307, GSM, 307, 3),
        ("€" * 80, GSM, 160, 1),
        ("€" * 81, GSM, 162, 2),
        ("{}[]~^|\\€\f", GSM, 20, 1),
        ("à@£\n\rÅΔΩ¿§", GSM, 10, 1),
        ("ç", UCS, 1, 1),  # the alphabet has only the capital letter
        ("`", UCS, 1, 1),
        ("\t", UCS, 1, 1),
        ("é" * 160, GSM, 160, 1),
        ("ê" * 70, UCS, 70, 1),
        ("ê" * 71, UCS, 71, 2),
        ("ê" * 134, UCS, 134, 2),
        ("ê" * 135, UCS, 135, 3),
        ("👍" * 35, UCS, 70, 1),
        ("👍" * 36, UCS, 72, 2),
    ],
)
def test_the_length_of_a_text_is_counted_in_its_encoding(
    text: str, encoding: SmsEncoding, units: int, segments: int
) -> None:
    assert sms_size(text) == SmsSize(encoding, units, segments)


def test_an_escaped_character_is_never_split_between_segments() -> None:
    fits = "a" * 152 + "b" + "€" * 76 + "c"
    assert sms_size(fits) == SmsSize(GSM, 306, 2)
    moved = "a" * 152 + "€" + "c" * 152  # 306 septets too, but the 153rd and 154th belong together
    assert sms_size(moved) == SmsSize(GSM, 306, 3)


def test_a_surrogate_pair_is_never_split_between_segments() -> None:
    assert sms_size("ê" * 67 + "👍" * 33 + "ê") == SmsSize(UCS, 134, 2)
    assert sms_size("ê" * 66 + "👍" + "ê" * 66) == SmsSize(UCS, 134, 3)


def test_the_alphabet_has_127_characters_and_ten_escaped_ones() -> None:
    every = [chr(point) for point in range(0x3000)]
    plain = [one for one in every if sms_size(one) == SmsSize(GSM, 1, 1)]
    escaped = [one for one in every if sms_size(one) == SmsSize(GSM, 2, 1)]
    assert len(plain) == 127
    assert len(escaped) == 10


@given(st.text(alphabet=st.sampled_from("abc€[]ê👍é"), max_size=700))
def test_segments_match_a_straightforward_count(text: str) -> None:
    size = sms_size(text)
    seven_bit = not set(text) & set("ê👍")
    widths = [(2 if one in "€[]" else 1) if seven_bit else (2 if one == "👍" else 1) for one in text]
    alone, joined = (160, 153) if seven_bit else (70, 67)
    filled = [0]
    for width in widths:
        if filled[-1] + width > joined:
            filled.append(0)
        filled[-1] += width
    assert size.units == sum(widths)
    assert size.segments == (1 if sum(widths) <= alone else len(filled))
