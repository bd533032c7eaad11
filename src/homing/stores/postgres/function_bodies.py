"""Reads the body of a user's PL/pgSQL function: does it survive if Homing's schema is gone?"""

from __future__ import annotations

import re

# A string may be SQL for EXECUTE, so calls are also searched in strings, and keywords only outside of them.
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)

_WORD = re.compile(
    r"\b(?:(?P<opens>begin|case)|end\s+(?:if|loop)|(?P<closes>end(?:\s+case)?)|(?P<catches>exception)\s+when)\b",
    re.IGNORECASE,
)

_CAUGHT = re.compile(r"\bwhen\s[^;]*?\b(?:others|invalid_schema_name)\b", re.IGNORECASE)

_RAISED = re.compile(r"\braise\b(?!\s+(?:debug|log|info|notice|warning)\b)", re.IGNORECASE)


def catches_missing_schema(source: str, schema: str) -> bool:
    """Returns True if each call of the schema is in a block that catches the error if the schema is gone.

    In doubt it returns False, for example if a handler may raise an exception again.
    """
    words = _SKIPPED.sub(lambda found: " " * len(found[0]), source)
    calls = re.finditer(rf'\b{schema}"?\s*\.', source, re.IGNORECASE)
    return all(_is_caught(words[call.end() :]) for call in calls)


def _is_caught(rest: str) -> bool:
    """Takes the text after the call. A block around the call ends deeper than any other that begins here."""
    depth = outermost = 0
    for word in _WORD.finditer(rest):
        if word["opens"]:
            depth += 1
        elif word["closes"]:
            depth -= 1
            outermost = min(depth, outermost)
        elif word["catches"] and depth == outermost:
            handlers = _up_to_end(rest[word.start() :])
            if _CAUGHT.search(handlers):
                return not _RAISED.search(handlers)
    return False


def _up_to_end(rest: str) -> str:
    """Returns the text up to the end of the block that the text is in."""
    depth = 0
    for word in _WORD.finditer(rest):
        depth += bool(word["opens"]) - bool(word["closes"])
        if depth < 0:
            return rest[: word.start()]
    return rest
