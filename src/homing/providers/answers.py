"""Error tables: what each code of a provider means, kept as data in `errors/*.toml` and documented from it.

A table has `[codes]` (the provider's own), and `[statuses]` (HTTP, or the first digits of it: `5xx`). Each
entry is `{ outcome = "…", means = "…" }`, with `retry_after_ms` where the provider's documentation names one.
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

    def outcome(
        self, code: str | None, status: int, error: str | None, *, retry_after_ms: int | None = None
    ) -> Outcome:
        """The outcome of an answer with this code and status."""
        meaning = self.meaning(code, status)
        return Outcome(
            meaning.outcome,
            error_code=code or str(status),
            error=error or meaning.means,
            retry_after_ms=meaning.retry_after_ms if retry_after_ms is None else retry_after_ms,
        )


_UNKNOWN = Meaning(OutcomeKind.TRANSIENT, "an answer that the contract does not know")


@cache
def error_table(name: str) -> ErrorTable:
    """The table of that provider."""
    return table_of((files("homing.providers") / "errors" / f"{name}.toml").read_text(encoding="utf-8"))


def table_of(toml: str) -> ErrorTable:
    """A table from its text: for providers of other packages."""
    return convert(tomllib.loads(toml), ErrorTable)
