"""Removes recipients and secrets from text before it is logged, stored as an error or audited."""

from __future__ import annotations

import re

HIDDEN = "•••"


# Each pattern starts at a word and does not backtrack, so that long input takes only linear time.
_SENSITIVE_WORDS = r"password|passwd|secret|token|api[-_ ]?key|authorization"

_RULES = (
    (
        re.compile(
            rf"(?i)\b((?:{_SENSITIVE_WORDS})[\"']?\s{{0,3}}[=:]\s{{0,3}}[\"']?)(?:(?:bearer|basic)\s{{1,3}})?[^\s\"',;&]++"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s{1,3}[\w.~+/=-]{6,}+"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}+://)[^\s/@]++@"), r"\1"),
    (re.compile(r"(?i)(https?://)(?:[^\s/@]*+@)?([^\s/?#\"'<>]++)[^\s\"'<>]*+"), rf"\1\2/{HIDDEN}"),
    (re.compile(r"(?<![^\s@<>\"'(),;:])[^\s@<>\"'(),;:]++@([\w.-]++)"), rf"{HIDDEN}@\1"),
    (re.compile(r"(?<![\w-])\+?\d(?:[ ().-]{0,3}\d){6,20}(?![\w-])"), HIDDEN),
    (re.compile(r"(?<![\w:-])[\w:-]{32,}+"), HIDDEN),
)

_MAX_CHARS = 20_000

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Redacted(str):
    """Text that contains no recipients and no secrets, so that it need not be redacted again.

    As the message of a log line, it also vouches for the fields of the line.
    """

    __slots__ = ()


def redact(text: str) -> str:
    """Replaces email addresses, phone numbers, tokens, named secrets and URL paths by `•••`.

    Domains and UUIDs, such as notification ids, are kept. Only the first 20,000 characters are returned.
    """
    text = text[:_MAX_CHARS].replace("\x00", "")
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\x00{len(kept) - 1}\x00"

    text = _UUID.sub(keep, text)
    for pattern, by in _RULES:
        text = pattern.sub(by, text)
    return re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], text)
