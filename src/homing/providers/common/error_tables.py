"""Error tables: the meaning of each error code of a provider, kept as data in each vendor's `errors.toml`.

A table has `[codes]`, which are the provider's error codes and Homing's own, and `[statuses]`, which are HTTP
statuses (for SMTP, reply codes) or classes of them, such as `5xx`. Each entry is `{ outcome = "…", means =
"…" }`, with `retry_after_ms` if the provider documents a delay, and `uncounted` if the attempt does not count
toward `max_attempts`. The reference pages of the providers are generated from these tables.

The helpers at the end turn table entries into exceptions and receipts, and check the number of SMS segments.

An error is *unlisted* if its code has no entry or, if it has no code, its exact status has none (see
`lists`). An unlisted `bad_content` is a guess, and the outcome is marked as such.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct, convert
from msgspec.structs import replace

from homing.core.content.sms import sms_size
from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.providers.common.http_provider import Unsendable


class ErrorMeaning(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of an error table."""

    outcome: OutcomeKind
    means: str
    retry_after_ms: int | None = None
    uncounted: bool = False
    """True if the attempt does not count toward `max_attempts`, because the failure says nothing about the
    message. See `Outcome.uncounted`."""


class ErrorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The error table of one provider."""

    statuses: Mapping[str, ErrorMeaning]
    codes: Mapping[str, ErrorMeaning] = {}

    def meaning(self, code: str | None, status: int) -> ErrorMeaning:
        """Returns the entry for the code, or else for the exact status, or else for the class of the status.

        Without any entry, the error counts as transient.
        """
        found = self.codes.get(code) if code else None
        return found or self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx") or _UNKNOWN

    def lists(self, code: str | None, status: int, *, other_code: bool = False) -> bool:
        """Returns True if the table explains this error by more than the class of its status.

        An error whose code has no entry is unlisted even if its status has one, because providers return 400
        for many errors. The exception is 413, which is about the size of the message whatever the code.
        """
        if code and code in self.codes:
            return True
        return str(status) in self.statuses and (status == _TOO_LARGE or not (code or other_code))

    def outcome(
        self,
        code: str | None,
        status: int,
        error: str | None,
        *,
        retry_after_ms: int | None = None,
        other_code: bool = False,
    ) -> Outcome:
        """Returns the outcome of a response with this code and status.

        `other_code` is True if the response has a code that the table does not list and that `code` therefore
        omits.
        """
        meaning = self.meaning(code, status)
        return Outcome(
            meaning.outcome,
            error_code=code or str(status),
            error=error or meaning.means,
            retry_after_ms=meaning.retry_after_ms if retry_after_ms is None else retry_after_ms,
            unlisted=meaning.outcome is OutcomeKind.BAD_CONTENT
            and not self.lists(code, status, other_code=other_code),
            uncounted=meaning.uncounted,
        )


_TOO_LARGE = 413

_UNKNOWN = ErrorMeaning(
    OutcomeKind.TRANSIENT, "a response that the provider's documentation does not describe"
)


@cache
def load_error_table(name: str) -> ErrorTable:
    """Returns the error table of a built-in provider."""
    return parse_error_table((files(f"homing.providers.{name}") / "errors.toml").read_text(encoding="utf-8"))


def parse_error_table(toml: str) -> ErrorTable:
    """Parses an error table. Providers in other packages use this function for their own tables."""
    return convert(tomllib.loads(toml), ErrorTable)


def build_refusal(provider: str, code: str, error: str | None = None) -> Unsendable:
    """Returns the exception for `build` to raise, with the outcome that the table has for `code`.

    `error` replaces the table's text with a more specific one.
    """
    meaning = load_error_table(provider).codes[code]
    return Unsendable(meaning.outcome, code, error or meaning.means)


def check_segments(provider: str, text: str, most: int) -> None:
    """Raises `Unsendable` if the text would be billed as more than `most` SMS. 0 means no limit."""
    if not most:
        return
    size = sms_size(text)
    if size.segments > most:
        error = f"the text needs {size.segments} SMS ({size.encoding}); max_segments allows {most}"
        raise build_refusal(provider, "segments", error)


def check_max_segments(given: int) -> int:
    """Returns the setting `max_segments`. Raises `ConfigError` unless it is an integer of at least 0."""
    if type(given) is not int or given < 0:
        raise ConfigError("max_segments", f"is {given!r}; use a whole number, or 0 for no limit")
    return given


def failure_receipts(
    receipt: Receipt, meaning: ErrorMeaning | None, error_code: str, error: str | None
) -> Iterator[Receipt]:
    """Yields the receipt as a failure and, if the recipient has opted out, a second one that unsubscribes.

    `meaning` is the table's entry for the code. If the table has none, `error` is used as the failure's text.
    """
    kind = meaning.outcome if meaning else None
    yield replace(
        receipt,
        event=ReceiptEvent.FAILED,
        outcome=kind,
        retry_after_ms=meaning.retry_after_ms if meaning else None,
        error_code=error_code,
        error=meaning.means if meaning else error,
    )
    if kind is OutcomeKind.OPTED_OUT:
        yield replace(
            receipt,
            event=ReceiptEvent.UNSUBSCRIBE,
            event_id=f"{receipt.event_id}:unsubscribe",
            unsubscribed_from_all=True,
        )
