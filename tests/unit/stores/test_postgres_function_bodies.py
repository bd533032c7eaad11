"""Functions of users that call Homing's schema: which of them only warn once the schema is gone."""

from __future__ import annotations

import pytest

from homing.stores.postgres.function_bodies import catches_missing_schema

CALL = "PERFORM homing.enqueue('email', '{}');"
CATCH = "EXCEPTION WHEN OTHERS THEN RAISE WARNING 'no: %', SQLERRM; RETURN NEW;"


@pytest.mark.parametrize(
    "body",
    [
        f"BEGIN {CALL} RETURN NEW; {CATCH} END",
        f"begin {CALL} return new; exception when invalid_schema_name then return new; end",
        f"BEGIN BEGIN {CALL} END; RETURN NEW; {CATCH} END",
        f"BEGIN IF a THEN {CALL} END IF; x := CASE WHEN b THEN 1 END; {CATCH} END",
        f"BEGIN BEGIN {CALL} {CATCH} END; BEGIN {CALL} {CATCH} END; END",
        f"BEGIN {CALL} BEGIN x := 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; {CATCH} END",
        f"BEGIN BEGIN {CALL} EXCEPTION WHEN unique_violation THEN RAISE; END; {CATCH} END",
        f"BEGIN EXECUTE 'SELECT homing.cleanup()'; -- don't begin\n {CATCH} END",
        "BEGIN PERFORM my_homing.enqueue(); END",
    ],
)
def test_a_function_that_catches_the_error(body: str) -> None:
    assert catches_missing_schema(body, "homing")


@pytest.mark.parametrize(
    "body",
    [
        f"BEGIN {CALL} RETURN NEW; END",
        'BEGIN PERFORM "homing" . enqueue(); END',
        "BEGIN PERFORM HOMING.ENQUEUE(); END",
        f"BEGIN BEGIN x := 1 / 0; {CATCH} END; {CALL} RETURN NEW; END",
        f"BEGIN {CALL} BEGIN x := 1 / 0; {CATCH} END; RETURN NEW; END",
        f"BEGIN {CALL} BEGIN {CALL} {CATCH} END; RETURN NEW; END",
        f"BEGIN x := 1 / 0; EXCEPTION WHEN OTHERS THEN {CALL} END",
        f"DECLARE x uuid := homing.uuid7(); BEGIN x := NULL; {CATCH} END",
        f"BEGIN {CALL} EXCEPTION WHEN unique_violation THEN NULL; END",
        f"BEGIN {CALL} EXCEPTION WHEN OTHERS THEN RAISE; END",
        f"BEGIN {CALL} EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION 'no'; END",
        f"BEGIN {CALL} -- {CATCH}\n END",
    ],
)
def test_a_function_that_would_fail(body: str) -> None:
    assert not catches_missing_schema(body, "homing")
