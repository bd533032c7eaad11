"""API keys: their format, their digest, and their validity."""

from __future__ import annotations

import ast
import inspect
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.access import api_keys
from homing.core.access.api_keys import (
    ID_BITS,
    SECRET_BITS,
    KeyRecord,
    KeyStatus,
    create_api_key,
    is_well_formed,
    secret_matches,
    split_api_key,
)
from homing.core.access.scopes import Scope, check_tenant, read_scopes
from homing.core.errors import InvalidRequest


def read_key(text: str) -> tuple[str, str] | None:
    """Reads a key as a keychain does that has not seen it before."""
    parts = split_api_key(text)
    return parts if parts is not None and is_well_formed(*parts) else None


IDS = st.integers(0, 2**ID_BITS - 1)
SECRETS = st.integers(0, 2**SECRET_BITS - 1)


def record(digest: str = "", **fields: Any) -> KeyRecord:
    return KeyRecord(
        id="1",
        tenant="t",
        name="n",
        scopes=(Scope.SEND,),
        digest=digest,
        created_at=0,
        created_by="ada",
        **fields,
    )


@given(IDS, SECRETS)
def test_a_key_can_be_recognized_and_read_back(id_bits: int, secret_bits: int) -> None:
    new = create_api_key(id_bits, secret_bits)
    assert new.text.startswith(f"hm_{new.id}_")
    parts = read_key(new.text)
    assert parts is not None
    assert parts[0] == new.id
    assert secret_matches(record(new.digest), parts[1])


@given(IDS, SECRETS, st.data())
def test_a_typing_error_in_a_key_is_detected_without_a_lookup(
    id_bits: int, secret_bits: int, data: st.DataObject
) -> None:
    text = create_api_key(id_bits, secret_bits).text
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(
        st.sampled_from("0123456789abcdefghijklmnopqrstuvwxyzABC_-. ").filter(lambda c: c != text[place])
    )
    assert read_key(text[:place] + other + text[place + 1 :]) is None
    assert read_key(text[:place] + text[place + 1 :]) is None


@pytest.mark.parametrize("text", ["", "hm_", "hm__", "hm_1_2", "x" * 10_000, "hm_" + "é" * 51, "\x00"])
def test_text_without_the_format_of_a_key_is_not_a_key(text: str) -> None:
    assert read_key(text) is None


def test_a_secret_has_enough_entropy_and_is_not_stored() -> None:
    assert SECRET_BITS >= 128
    new = create_api_key(1, random.Random(1).getrandbits(SECRET_BITS))
    secret = new.text.rpartition("_")[2]
    assert secret not in new.digest
    assert secret not in repr(new)
    assert len(new.digest) == 64


@given(SECRETS, SECRETS)
def test_another_secret_does_not_match(one: int, other: int) -> None:
    mine, theirs = create_api_key(1, one), create_api_key(1, other)
    parts = read_key(theirs.text)
    assert parts is not None
    assert secret_matches(record(mine.digest), parts[1]) == (one == other)
    assert not secret_matches(None, parts[1])


def test_secrets_are_compared_in_constant_time_even_if_the_key_does_not_exist() -> None:
    tree = ast.parse(inspect.getsource(api_keys.secret_matches))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert calls.count("hmac.compare_digest") == 1
    compared = [op for node in ast.walk(tree) if isinstance(node, ast.Compare) for op in node.ops]
    assert not [op for op in compared if isinstance(op, (ast.Eq, ast.NotEq, ast.In))]
    first = next(node for node in ast.walk(tree) if isinstance(node, ast.Return)).value
    assert isinstance(first, ast.BoolOp), "the comparison comes before the question whether there is a key"
    assert ast.unparse(first.values[0]).startswith("hmac.compare_digest")


def test_a_key_is_valid_until_it_expires_or_is_revoked() -> None:
    assert record().status(10**15) is KeyStatus.ACTIVE
    assert record(expires_at=100).status(99) is KeyStatus.ACTIVE
    assert record(expires_at=100).status(100) is KeyStatus.EXPIRED
    assert record(expires_at=100, revoked_at=50).status(60) is KeyStatus.REVOKED


def test_scopes_are_read_by_name_without_repeats_and_at_least_one_is_needed() -> None:
    assert read_scopes(["read", "send", "read"]) == (Scope.SEND, Scope.READ)
    for wrong in (["root"], [""], [1], ["SEND"]):
        with pytest.raises(InvalidRequest, match="must be one of send, read, operate, manage, admin"):
            read_scopes(wrong)
    with pytest.raises(InvalidRequest, match="is empty"):
        read_scopes([])


@pytest.mark.parametrize("name", ["acme", "Acme", "a", "0", "team-1.eu_west", "a" * 63])
def test_a_valid_tenant_name_is_accepted(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize(
    "name", ["", "*", "a b", "a" * 64, "-a", ".a", "a/b", "a\n", "ä", "a\x00", None, 7, "а"]
)
def test_an_invalid_tenant_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest, match="tenant: must have 1 to 63"):
        check_tenant(name)
