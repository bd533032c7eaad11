"""Forms are encoded as by the standard library."""

from __future__ import annotations

from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st

from homing.providers.common.http_provider import encode_form


@given(st.lists(st.tuples(st.from_regex(r"[A-Za-z0-9_.-]{1,10}", fullmatch=True), st.text())))
def test_a_form_equals_that_of_the_standard_library(fields: list[tuple[str, str]]) -> None:
    assert encode_form(fields) == urlencode(fields)
