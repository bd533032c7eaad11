"""Log lines: readable by machines or people, without recipients' addresses."""

from __future__ import annotations

import io
import json
import logging
import string
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homing.core.ids import uuid7
from homing.core.redaction import HIDDEN, Redacted
from homing.telemetry import logs

LETTERS = string.ascii_letters + string.digits
names = st.text(LETTERS, min_size=6, max_size=20).map(lambda text: f"{text}Zq7x")
emails = names.map(lambda name: f"{name}@example.org")
phones = st.integers(10**10, 10**14).map(lambda number: f"+{number}")
device_tokens = st.text(LETTERS + "_-", min_size=40, max_size=160).map(lambda text: f"f{text}9")
urls = names.map(lambda name: f"https://hooks.example.org/in/{name}")
passwords = st.text(LETTERS, min_size=8, max_size=16)
secrets = st.one_of(emails, phones, device_tokens, urls)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restores the process-wide logging configuration."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(format, level, stream)
    return stream


def private_part(secret: str) -> str:
    """Parts of the text that must not be logged. Hosts may be."""
    return secret.partition("@")[0] if "@" in secret else secret.rpartition("/")[2].lstrip("+")


def test_a_json_line_has_time_level_logger_and_message() -> None:
    stream = lines("json")
    logging.getLogger("homing.breakers").warning("breaker of %s: %s → %s", "pigeon", "closed", "open")
    line = json.loads(stream.getvalue())
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() is not None
    event = "breaker of pigeon: closed → open"
    assert line == {"level": "warning", "logger": "homing.breakers", "event": event}


def formatted(**attributes: Any) -> str:
    """Returns the JSON line of a record that was logged at a fixed time."""
    given_along = {"name": "homing.breakers", "levelname": "WARNING", "created": 1_763_260_843.512347}
    return logs.JsonFormatter().format(logging.makeLogRecord({**given_along, **attributes}))


def test_a_json_line_is_the_documented_one_byte_for_byte() -> None:
    assert formatted(msg="breaker of %s: %s → %s", args=("pigeon", "closed", "open")) == (
        '{"event": "breaker of pigeon: closed → open", "level": "warning", "logger": "homing.breakers",'
        ' "timestamp": "2025-11-16T02:40:43.512347Z"}'
    )


def test_a_line_that_its_caller_has_redacted_is_kept_as_it_is() -> None:
    """A duration looks like a phone number, and redacting takes longer than all the rest."""
    line = json.loads(formatted(msg=Redacted("took 86400000 ms"), ms=86_400_000))
    assert (line["event"], line["ms"]) == ("took 86400000 ms", 86_400_000)
    assert json.loads(formatted(msg="took 86400000 ms", ms=86_400_000))["ms"] == HIDDEN
    stream = lines("text")
    logging.getLogger("homing.deliveries").info(Redacted("took 86400000 ms"))
    assert "took 86400000 ms" in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_arguments_of_a_redacted_text_are_redacted(format: str) -> None:
    stream = lines(format)
    logging.getLogger("homing.deliveries").info(Redacted("sent to %s"), "ada@example.org")
    assert f"sent to {HIDDEN}@example.org" in stream.getvalue()


def test_extra_fields_stand_between_the_event_and_the_level() -> None:
    assert formatted(
        msg='a "quote"\n', attempt=3, seen=[{"by": (1, None)}, []], stack_info="Stack:\n here"
    ) == (
        '{"event": "a \\"quote\\"\\n", "stack_info": "Stack:\\n here", "attempt": 3,'
        ' "seen": [{"by": [1, null]}, []], "level": "warning",'
        ' "logger": "homing.breakers", "timestamp": "2025-11-16T02:40:43.512347Z"}'
    )


def test_a_timestamp_on_a_full_second_has_six_digits_too() -> None:
    assert (
        json.loads(formatted(msg="x", created=1_763_260_843.0))["timestamp"] == "2025-11-16T02:40:43.000000Z"
    )


@pytest.mark.parametrize("strange", ["\ud800", 2**70, {"a": -(2**64)}, object()])
def test_a_value_that_json_cannot_represent_is_still_logged(strange: object) -> None:
    assert json.loads(formatted(msg="told", value=strange))["event"] == "told"


class Unprintable:
    """An object whose text cannot be computed."""

    def __str__(self) -> str:
        raise ValueError("to ada@example.org")


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_line_that_cannot_be_formatted_is_reported_without_its_arguments(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = lines(format)
    logging.getLogger("other").warning("retried %d times", "ada@example.org")
    logging.getLogger("other").warning("to %s", Unprintable())
    logging.getLogger("other").warning("with a field", extra={"field": Unprintable()})
    written = stream.getvalue().splitlines()
    assert len(written) == 3
    assert "retried %d times" in written[0]
    assert "TypeError" in written[0]
    assert "ada" not in stream.getvalue() + capsys.readouterr().err
    if format == "json":
        assert [json.loads(line)["logger"] for line in written] == ["other"] * 3


def test_a_stream_that_is_closed_does_not_stop_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    stream = lines("json")
    stream.close()
    logging.getLogger("homing").warning("to %s", "ada@example.org")
    assert "ada" not in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_utf_8_whatever_the_locale(encoding: str) -> None:
    written = io.BytesIO()
    logs.configure("json", "info", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    logging.getLogger("homing").warning("é 😀 %s", "\udcff")
    assert json.loads(written.getvalue().decode("utf-8"))["event"].startswith("é 😀 ")


def test_a_line_formatted_by_another_handler_before_gains_no_fields() -> None:
    record = logging.makeLogRecord({"msg": "told", "name": "homing"})
    logging.Formatter("%(asctime)s %(message)s").format(record)
    assert sorted(json.loads(logs.JsonFormatter().format(record))) == [
        "event",
        "level",
        "logger",
        "timestamp",
    ]


def test_a_text_line_has_the_same_parts() -> None:
    stream = lines("text")
    logging.getLogger("homing.worker").info("%d leases", 3)
    assert stream.getvalue().endswith(" INFO homing.worker 3 leases\n")
    assert datetime.fromisoformat(stream.getvalue()[:19]).year >= 2024


def test_every_record_is_one_line_of_json() -> None:
    stream = lines("json")
    for text in ("two\nlines", 'quotes " and \\', "snow ☃", ""):
        logging.getLogger("other").error(text)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "two\nlines", 'quotes " and \\', "snow ☃", ""
    ]  # fmt: skip


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_level_filters_messages(format: str) -> None:
    stream = lines(format, "error")
    logging.getLogger("homing.worker").warning("not this")
    logging.getLogger("homing.worker").error("but this")
    assert "not this" not in stream.getvalue()
    assert "but this" in stream.getvalue()


def test_configuring_again_replaces_the_earlier_configuration() -> None:
    first, second = lines("text"), lines("json")
    logging.getLogger("homing").warning("once")
    assert (first.getvalue(), len(second.getvalue().splitlines())) == ("", 1)


def test_homing_s_own_ids_are_kept() -> None:
    id = uuid7(1_794_000_000_000, 4711)
    stream = lines("json")
    logging.getLogger("homing.settler").error("settlement of %s cannot be written", id)
    assert id in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets, words=st.sampled_from(["no mailbox %s here", "<%s>: 550", "%s", "to=%s;", "('%s',)"]))
def test_no_recipient_is_logged(format: str, secret: str, words: str) -> None:
    stream = lines(format)
    logging.getLogger("homing.deliverer").warning(words, secret)
    assert private_part(secret) not in stream.getvalue()
    assert HIDDEN in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secret=passwords,
    words=st.sampled_from(
        [
            "password=%s",
            '{"api_key": "%s"}',
            "Authorization: Bearer %s",
            "token: %s",
            "postgresql://homing:%s@db/x",
        ]
    ),
)
def test_no_named_secret_is_logged(format: str, secret: str, words: str) -> None:
    stream = lines(format)
    logging.getLogger("asyncpg").error(words, f"{secret}Zq9")
    assert f"{secret}Zq9" not in stream.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets)
def test_a_traceback_contains_neither_values_nor_recipients(format: str, secret: str) -> None:
    def fails(recipient: str) -> None:
        kept_in_a_variable = recipient.upper()
        raise ValueError(f"cannot reach {recipient}") from KeyError(kept_in_a_variable)

    stream = lines(format)
    try:
        fails(secret)
    except ValueError:
        logging.getLogger("homing.worker").exception("the send failed")
    written = stream.getvalue()
    assert private_part(secret) not in written
    assert private_part(secret).upper() not in written
    assert "ValueError: cannot reach" in written
    assert "in fails" in written
    assert "in test_a_traceback_contains_neither_values_nor_recipients" in written, "code is no secret"
    if format == "json":
        assert "Traceback" in json.loads(written)["exception"]


def test_an_exception_group_is_logged_with_its_members() -> None:
    stream = lines("json")
    inner = [ValueError("to ada@example.org"), ExceptionGroup("more", [KeyError("bob@example.org")])]
    logging.getLogger("homing").error("the send failed", exc_info=ExceptionGroup("several", inner))
    written = json.loads(stream.getvalue())["exception"]
    assert f"ValueError: to {HIDDEN}@example.org" in written
    assert "KeyError" in written
    assert "ada" not in written
    assert "bob" not in written


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets)
def test_extra_fields_are_redacted_at_any_depth(secret: str) -> None:
    stream = lines("json")
    given_along: dict[str, Any] = {"to": secret, "seen": [{"by": (secret, 1)}, {secret: None}], "attempt": 3}
    logging.getLogger("homing.events").warning("told", extra=given_along)
    assert private_part(secret) not in stream.getvalue()
    assert json.loads(stream.getvalue())["attempt"] == 3


def test_extra_fields_cannot_replace_standard_ones() -> None:
    stream = lines("json")
    private = "ada@example.org"
    along = {
        "level": private,
        "logger": private,
        "timestamp": private,
        "exception": private,
        "event": private,
    }
    logging.getLogger("homing").warning("told", extra=along)
    assert "ada" not in stream.getvalue()
    assert json.loads(stream.getvalue())["level"] == "warning"


def test_a_number_that_may_be_a_phone_number_is_hidden_too() -> None:
    stream = lines("json")
    logging.getLogger("homing").warning("told", extra={"to": 15550100123, "ratio": 0.5, "on": True})
    line = json.loads(stream.getvalue())
    assert (line["to"], line["ratio"], line["on"]) == (HIDDEN, 0.5, True)
