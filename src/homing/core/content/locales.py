"""Selects the locale of a message, by Accept-Language (RFC 9110) and lookup (RFC 4647, section 3.4)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field

from homing.core.errors import InvalidRequest

LAST_RESORT = "en-US"
"""Default locale if the settings define none, and the locale of templates that are rendered without one."""


MAX_HEADER_CHARACTERS = 1000
"""Maximum length of an Accept-Language header. Browsers send about a hundred characters at most."""


_RANGE = re.compile(r"\*|[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")

_WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")

ANY = "*"


class LocalePolicy(Struct, frozen=True, kw_only=True):
    """The declared locales of a project, and what happens if a request matches none of them."""

    declared: tuple[str, ...]
    """Locales in which templates are written."""
    default: str = LAST_RESORT
    tenant_defaults: Mapping[str, str] = field(default_factory=dict)
    """Default locale by tenant. For a tenant that is not listed, `default` applies."""
    reject_unmatched: bool = False
    """True if a request is rejected whose recipient's locale or Accept-Language matches no declared locale.
    If False, the request gets the default locale."""

    def resolve(self, tenant: str, preferred: str | None, accept_language: str | None) -> str:
        """Returns the declared locale that matches the recipient's preference, or else Accept-Language.

        If neither matches, this is the default of the tenant, or else that of the project. If
        `reject_unmatched` is set, raises `InvalidRequest` if a preference, or a header that names languages,
        does not match.
        """
        if preferred:
            if found := self._match_preference(preferred):
                return found
            self.check_preference(preferred)
        ranges = list(parse_accept_language(accept_language or ""))
        wanted = [name for name, weight in ranges if weight > 0]
        if found := find_locale(wanted, self.declared, [name for name, weight in ranges if weight == 0]):
            return found
        if self.reject_unmatched and ranges and ANY not in wanted:
            raise InvalidRequest("acceptLanguage", self._offer())
        return self.tenant_defaults.get(tenant, self.default)

    def check_preference(self, preferred: str) -> None:
        """Raises `InvalidRequest` if messages to a recipient with this locale would be rejected."""
        if self.reject_unmatched and self._match_preference(preferred) is None:
            raise InvalidRequest("recipient.locale", self._offer())

    def _match_preference(self, preferred: str) -> str | None:
        """Returns the declared locale for a preference, or None.

        A preference for a language alone also matches a regional variant, if only one is declared.
        """
        wanted = normalize_locale(preferred)
        if found := find_locale([wanted], self.declared):
            return found
        variants = [tag for tag in self.declared if tag.lower().startswith(f"{wanted.lower()}-")]
        return variants[0] if len(variants) == 1 else None

    def _offer(self) -> str:
        return f"matches none of the available locales, which are {', '.join(self.declared)}"


def normalize_locale(locale: str) -> str:
    """Returns a locale in the form of a language tag. For example, `de_AT` becomes `de-AT`."""
    return locale.strip().replace("_", "-")


def is_language_tag(text: str) -> bool:
    """Returns True if the text has the form of a language tag."""
    return text != ANY and _RANGE.fullmatch(text) is not None


def parse_accept_language(header: str) -> Iterator[tuple[str, float]]:
    """Yields (range, weight) of an Accept-Language header, highest weight first.

    Malformed elements are skipped.
    """
    found = [element for raw in header.split(",") if (element := _element(raw))]
    yield from sorted(found, key=lambda element: -element[1])  # stable: equal weights keep their order


def find_locale(ranges: Iterable[str], available: Collection[str], never: Collection[str] = ()) -> str | None:
    """Returns the first available tag that matches a range, shortening each range from its end by subtags.

    Only ranges are shortened, so the range `pt` does not match the tag `pt-BR`. Tags in `never`, which are
    those with weight 0, are excluded.
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
            if subtags and len(subtags[-1]) == 1:  # a single-letter subtag has no meaning on its own
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
