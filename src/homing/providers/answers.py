"""Error tables: what each code of a provider means, kept as data in `errors/*.toml` and documented from it.

A table has `[codes]` (the provider's own), and `[statuses]` (HTTP, or the first digits of it: `5xx`). Each
entry is `{ outcome = "…", means = "…" }`, with `retry_after_ms` where the provider's documentation names one.

An error is *unlisted* if neither its code nor its exact status has a line that explains it, so that only the
class of its status (`4xx`) is known. An unlisted `bad_content` is a guess, and the outcome says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct, convert

from homing.core.model import Outcome, OutcomeKind


class Meaning(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of an error table."""

    outcome: OutcomeKind
    means: str
    retry_after_ms: int | None = None


class ErrorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The error table of one provider."""

    statuses: Mapping[str, Meaning]
    codes: Mapping[str, Meaning] = {}

    def meaning(self, code: str | None, status: int) -> Meaning:
        """By the provider's code; else by the status, exact before its class; else a server's bad day."""
        found = self.codes.get(code) if code else None
        return found or self.statuses.get(str(status)) or self.statuses.get(f"{status // 100}xx") or _UNKNOWN

    def lists(self, code: str | None, status: int, *, other_code: bool = False) -> bool:
        """Returns whether the table explains this error by more than the class of its status.

        A code that has no line makes the error unlisted, even if its status has one: 400 is what every
        fault may come with. The exception is 413, which is about the size of the message whatever the code.
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
        """The outcome of an answer with this code and status.

        `other_code`: the answer has a code that the table does not list, and `code` leaves it out.
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
_UNKNOWN = Meaning(OutcomeKind.TRANSIENT, "an answer that the contract does not know")


@cache
def error_table(name: str) -> ErrorTable:
    """The table of that provider."""
    return table_of((files("homing.providers") / "errors" / f"{name}.toml").read_text(encoding="utf-8"))


def table_of(toml: str) -> ErrorTable:
    """A table from its text: for providers of other packages."""
    return convert(tomllib.loads(toml), ErrorTable)
