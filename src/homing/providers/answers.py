"""Error tables: the meaning of each error code of a provider, kept as data in `errors/*.toml`.

A table has `[codes]`, which are the provider's own, and `[statuses]`, which are HTTP statuses or classes of
them, such as `5xx`. Each entry is `{ outcome = "…", means = "…" }`, with `retry_after_ms` if the provider
documents a delay. The reference pages of the providers are generated from these tables.

An error is *unlisted* if neither its code nor its exact status has an entry, so that only the class of its
status (`4xx`) is known. An unlisted `bad_content` is a guess, and the outcome is marked as such.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct, convert

from homing.core.model import Outcome, OutcomeKind


class Meaning(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of an error table."""

    outcome: OutcomeKind
    means: str
    retry_after_ms: int | None = None


class ErrorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The error table of one provider."""

    statuses: Mapping[str, Meaning]
    codes: Mapping[str, Meaning] = {}

    def meaning(self, code: str | None, status: int) -> Meaning:
        """Returns the entry for the code, or else for the exact status, or else for the class of the status.

        Without any entry, the error counts as transient.
        """
        found = self.codes.get(code) if code else None
        return found or self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx") or _UNKNOWN

    def lists(self, code: str | None, status: int, *, other_code: bool = False) -> bool:
        """Returns True if the table explains this error by more than the class of its status.

        An error whose code has no entry is unlisted even if its status has one, because any error may come
        with 400. The exception is 413, which is about the size of the message whatever the code.
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
        )


_TOO_LARGE = 413
_UNKNOWN = Meaning(OutcomeKind.TRANSIENT, "a response that the provider's documentation does not describe")


@cache
def error_table(name: str) -> ErrorTable:
    """Returns the error table of a built-in provider."""
    return table_of((files("homing.providers") / "errors" / f"{name}.toml").read_text(encoding="utf-8"))


def table_of(toml: str) -> ErrorTable:
    """Parses an error table. Providers in other packages use it for their own tables."""
    return convert(tomllib.loads(toml), ErrorTable)
