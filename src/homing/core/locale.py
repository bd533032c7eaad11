"""Which declared locale a message is written in: Accept-Language (RFC 9110), lookup (RFC 4647, 3.4)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field

from homing.core.errors import InvalidRequest

LAST_RESORT = "en-US"
"""Where neither the recipient, nor the header, nor the tenant says anything."""

MOST_CHARACTERS = 1000
"""Of a header; browsers send some hundred at most."""

_RANGE = re.compile(r"\*|[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")
_WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
ANY = "*"


class LocalePolicy(Struct, frozen=True, kw_only=True):
    """The locales of a project, and what to do with those who ask for none of them."""

    declared: tuple[str, ...]
    default: str = LAST_RESORT
    tenant_defaults: Mapping[str, str] = field(default_factory=dict)
    reject_unmatched: bool = False
    """A header that matches none of the declared is refused, instead of going on to the default."""

    def resolve(self, tenant: str, preferred: str | None, accept_language: str | None) -> str:
        """Recipient's preference → Accept-Language → tenant's default → the default; no fallback after that.

        A preference that is not declared says nothing here, and the next step decides.
        """
        if preferred and (found := lookup([normal(preferred)], self.declared)):
            return found
        ranges = list(weighted(accept_language or ""))
        wanted = [name for name, weight in ranges if weight > 0]
        if found := lookup(wanted, self.declared, [name for name, weight in ranges if weight == 0]):
            return found
        if self.reject_unmatched and ranges and ANY not in wanted:
            offered = ", ".join(self.declared)
            raise InvalidRequest("acceptLanguage", f"asks for none of the locales here; these are {offered}")
        return self.tenant_defaults.get(tenant, self.default)


def normal(locale: str) -> str:
    """A stored locale as a language tag: `de_AT` is `de-AT`."""
    return locale.strip().replace("_", "-")


def is_tag(text: str) -> bool:
    """Whether this is a language tag by its form."""
    return text != ANY and _RANGE.fullmatch(text) is not None


def weighted(header: str) -> Iterator[tuple[str, float]]:
    """(range, weight) of an Accept-Language header, the most wanted first; what is malformed is left out."""
    found = [element for raw in header.split(",") if (element := _element(raw))]
    yield from sorted(found, key=lambda element: -element[1])  # stable: equal weights keep their order


def lookup(ranges: Iterable[str], available: Collection[str], never: Collection[str] = ()) -> str | None:
    """The first available tag that a range finds, cut from its end one subtag at a time.

    Only the range is cut: `pt` does not find `pt-BR`. `never` are the ranges with weight 0.
    """
    tags = {tag.lower(): tag for tag in available}
    for name in never:
        tags.pop(name.lower(), None)
    for wanted in ranges:
        subtags = wanted.lower().split("-")
        while subtags:
            if found := tags.get("-".join(subtags)):
                return found
            subtags.pop()
            if subtags and len(subtags[-1]) == 1:  # `x` and its like mean nothing without what follows
                subtags.pop()
    return None


def _element(raw: str) -> tuple[str, float] | None:
    name, *parameters = (part.strip() for part in raw.split(";"))
    if not _RANGE.fullmatch(name):
        return None
    weight = 1.0
    for parameter in parameters:
        key, _, value = (part.strip() for part in parameter.partition("="))
        if key.lower() != "q" or not _WEIGHT.fullmatch(value):
            return None
        weight = float(value)
    return name, weight
