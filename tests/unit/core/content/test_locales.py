"""Choice of the locale that a message is written in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.content.locales import (
    LocalePolicy,
    find_locale,
    is_language_tag,
    normalize_locale,
    parse_accept_language,
)
from homing.core.errors import InvalidRequest

VECTORS: list[dict[str, Any]] = msgspec.json.decode(
    (Path(__file__).parents[3] / "vectors/accept_language.json").read_bytes()
)["cases"]

PROJECT = LocalePolicy(declared=("en-US", "de", "pt-BR"), tenant_defaults={"acme": "de"})
STRICT = LocalePolicy(declared=("en-US", "de"), reject_unmatched=True)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["note"] or case["header"])
def test_a_header_selects_the_locale_of_the_vectors(case: dict[str, Any]) -> None:
    policy = LocalePolicy(declared=tuple(case["available"]), default=case["default"])
    assert policy.resolve("t", None, case["header"]) == case["expected"]


def test_all_vectors_are_present() -> None:
    assert len(VECTORS) == 31


@pytest.mark.source("002", "402-422")
@pytest.mark.parametrize(
    ("tenant", "preferred", "header", "expected"),
    [
        ("acme", "pt-BR", "de", "pt-BR"),
        ("acme", "pt_br", "de", "pt-BR"),
        ("other", "de-AT-1996", None, "de"),
        ("other", None, "fr, de;q=0.5", "de"),
        ("other", "", "de", "de"),
        ("other", "tlh", "de", "de"),
        ("acme", "tlh", "fr", "de"),
        ("acme", None, None, "de"),
        ("other", None, "", "en-US"),
        ("other", "pt", None, "pt-BR"),
        ("other", None, "pt", "en-US"),
    ],
)
def test_the_order_is_preference_header_tenant_default(
    tenant: str, preferred: str | None, header: str | None, expected: str
) -> None:
    assert PROJECT.resolve(tenant, preferred, header) == expected


@pytest.mark.parametrize("header", ["fr", "fr;q=0.1, it", "en-US;q=0, fr", "en-US;q=0", "*;q=0"])
def test_in_strict_mode_a_header_without_a_match_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest, match=r"none of the available locales, which are en-US, de") as caught:
        STRICT.resolve("t", None, header)
    assert caught.value.field == "acceptLanguage"
    assert LocalePolicy(declared=STRICT.declared).resolve("t", None, header) == "en-US"


@pytest.mark.parametrize("header", [None, "", "*", "fr, *;q=0.1", "not_a_range", ";;,,", "de-CH, fr"])
def test_in_strict_mode_a_header_without_a_specific_language_is_accepted(
    header: str | None,
) -> None:
    assert STRICT.resolve("t", None, header) in ("en-US", "de")


def test_a_preference_that_matches_makes_the_header_irrelevant() -> None:
    assert STRICT.resolve("t", "de_DE", "fr") == "de"


@pytest.mark.parametrize("preferred", ["fr-FR", "es", "x-y"])
def test_in_strict_mode_a_preference_without_a_match_is_refused_whatever_the_header_says(
    preferred: str,
) -> None:
    for header in (None, "de"):
        with pytest.raises(
            InvalidRequest, match="none of the available locales, which are en-US, de"
        ) as caught:
            STRICT.resolve("t", preferred, header)
        assert caught.value.field == "recipient.locale"


def test_a_language_alone_matches_its_only_variant() -> None:
    one = LocalePolicy(declared=("en-US", "es-MX"), reject_unmatched=True)
    assert one.resolve("t", "es", None) == one.resolve("t", "ES", "en-US") == "es-MX"
    two = LocalePolicy(declared=("en-US", "es-MX", "es-ES"))
    assert two.resolve("t", "es", None) == "en-US", "which variant is meant is not known"
    with pytest.raises(InvalidRequest):
        one.resolve("t", "es-ES", None)


def test_an_excluded_locale_is_not_matched_by_shortening_a_longer_range() -> None:
    ranges = [name for name, weight in parse_accept_language("en-GB, en;q=0") if weight]
    assert find_locale(ranges, ["en"], ["en"]) is None
    assert find_locale(ranges, ["en"]) == "en"


def test_stored_locales_become_language_tags() -> None:
    assert normalize_locale(" zh_Hant_TW ") == "zh-Hant-TW"
    assert is_language_tag("zh-Hant-TW")
    assert not any(map(is_language_tag, ("*", "", "en_US", "../x", "toolongsubtag", "en-", "1x")))


@given(st.text(alphabet="abenUS-;=q.,* _01\t", max_size=60))
def test_no_header_raises_an_unexpected_error_and_every_match_is_a_declared_locale(header: str) -> None:
    assert PROJECT.resolve("other", None, header) in PROJECT.declared
    weights = [weight for _, weight in parse_accept_language(header)]
    assert weights == sorted(weights, reverse=True)
    assert all(0 <= weight <= 1 for weight in weights)
