"""Templates as they are written, kept and read; and what a renderer must do for them to be managed here.

A template is filed twice: under its key, which version is in force (`template`), and under key and version,
what it says (`template_version`). So a list is cheap, and what a message was made from can be looked up
afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Meta, Struct, field

from homing.core.effects import key_part
from homing.core.errors import InvalidRequest
from homing.core.events import moment
from homing.core.locale import is_tag
from homing.core.model import Channel, Content, Entry
from homing.core.plain import builtin
from homing.core.ports import Renderer
from homing.core.request import SendLimits, check_json, check_name
from homing.core.text import check_text

TEMPLATE, TEMPLATE_VERSION = "template", "template_version"

MOST_PART_BYTES = 64 * 1024
"""Of one part: compiling takes a time that grows with it."""
MOST_BYTES = 256 * 1024
"""Of a template, all its locales together."""
MOST_LOCALES = 100
_LAST_VERSION = 10**9

Source = Annotated[str, Meta(max_length=MOST_PART_BYTES, examples=["Hello {{ name }}"])]


class TemplateParts(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a template says on one channel, each part a Jinja source."""

    subject: Source | None = None
    text: Source | None = None
    html: Source | None = None
    title: Source | None = None
    body: Source | None = None
    data: dict[str, Any] | None = None
    """JSON whose texts are sources; one that is `{{ … }}` alone gives the value itself."""


Locales = dict[str, dict[Channel, TemplateParts]]
"""Locale → channel → parts."""


class TemplateOrigin(StrEnum):
    """Where a template comes from."""

    OWN = "own"
    """Written by the tenant. It wins over the folder's of the same key."""
    FOLDER = "folder"
    """A file of the project: all tenants have it."""


class Template(Struct, frozen=True, kw_only=True, rename="camel"):
    """One template with all its locales."""

    key: str
    locales: Locales
    sample: dict[str, Any] = field(default_factory=dict)
    """The data that it is tried with."""
    origin: TemplateOrigin = TemplateOrigin.OWN
    version: int = 0
    """Rises with each write; 0 where it comes from the folder."""
    updated_at: datetime | None = None
    updated_by: str = ""


class LocaleSummary(Struct, frozen=True, kw_only=True):
    """A template in one locale."""

    version: str
    """As notifications keep it."""
    channels: tuple[Channel, ...]


class TemplateSummary(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What there is of a template."""

    key: str
    origin: TemplateOrigin
    locales: dict[str, LocaleSummary]
    updated_at: datetime | None = None
    updated_by: str = ""


class TemplateVersion(Struct, frozen=True, kw_only=True, rename="camel"):
    """One version, as the history lists it."""

    version: int
    updated_at: datetime
    updated_by: str


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One thing that is wrong."""

    message: str
    key: str | None = None
    locale: str | None = None
    """None: it concerns all locales of the template."""
    missing: bool = False
    """The template does not exist in this locale."""


class CheckReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """Every template in every declared locale, and what is wrong."""

    keys: tuple[str, ...]
    locales: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        return not self.findings

    def state(self, key: str, locale: str) -> Literal["ok", "wrong", "missing"]:
        """Of one template in one locale."""
        here = [one for one in self.findings if one.key == key and one.locale in (None, locale)]
        if any(one.missing for one in here):
            return "missing"
        return "wrong" if here else "ok"


class Preview(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a template reads."""

    key: str
    locale: str
    version: str
    contents: dict[Channel, Content]


@runtime_checkable
class Press(Renderer, Protocol):
    """A renderer whose templates are the tenants' own and those of a folder."""

    async def shared(self) -> Mapping[str, TemplateSummary]:
        """Those of the folder, by key."""

    async def get_shared(self, key: str) -> Template | None:
        """One of them."""

    async def check(self, templates: Sequence[Template]) -> CheckReport:
        """Whether each compiles, is there in every declared locale, and renders with its sample."""

    async def check_shared(self) -> CheckReport:
        """The same of the folder."""

    async def preview(
        self,
        tenant: str,
        key: str,
        locale: str | None,
        channel: Channel | None,
        data: Mapping[str, Any] | None,
    ) -> Preview:
        """How it reads for one channel or all, with this data or its sample; None: the tenant's locale."""

    def forget(self, tenant: str, key: str) -> None:
        """It was changed here just now: the next render looks."""


def check_key(key: Any) -> str:
    """A key as requests name it; those that begin with `_` are what templates share."""
    check_name(key, "key")
    if str(key).startswith("_"):
        raise InvalidRequest("key", "begins with _, as only what templates share does")
    return str(key)


def checked_template(template: Template) -> Template:
    """Sizes, names and characters; whether it renders is for the press to say."""
    template = _plain_template(template)
    check_key(template.key)
    if not 1 <= len(template.locales) <= MOST_LOCALES:
        raise InvalidRequest(
            "locales", f"has {len(template.locales)} entries; allowed are 1 to {MOST_LOCALES}"
        )
    for locale, channels in template.locales.items():
        if not is_tag(locale):
            raise InvalidRequest("locales", f"has {locale!r}; locales are like en-US, de or zh-Hant")
        for channel, parts in channels.items():
            _check_parts(parts, f"locales.{locale}.{channel.value}")
    limits = SendLimits()
    check_json(template.sample, "sample", limits)
    size = len(msgspec.json.encode(filed_template(template)))
    if size > MOST_BYTES:
        raise InvalidRequest("locales", f"and sample have {size} bytes; allowed are {MOST_BYTES}")
    return template


def filed_head(template: Template, version: int) -> dict[str, Any]:
    """What is filed under the key."""
    channels = {locale: list(parts) for locale, parts in template.locales.items()}
    return {"version": version, "locales": msgspec.to_builtins(channels)}


def filed_template(template: Template) -> dict[str, Any]:
    """What is filed under key and version."""
    return {"locales": msgspec.to_builtins(template.locales), "sample": template.sample}


def version_key(key: str, version: int) -> str:
    """Where a version is filed: the newest comes first."""
    return f"{key_part(key)}:{_LAST_VERSION - version:010d}"


def head_version(head: Entry) -> int:
    """The version in force."""
    version = head.value.get("version")
    return version if isinstance(version, int) else 0


def summary_of(head: Entry) -> TemplateSummary:
    """From what is filed under the key."""
    version = str(head_version(head))
    return TemplateSummary(
        key=head.key,
        origin=TemplateOrigin.OWN,
        locales={
            locale: LocaleSummary(version=version, channels=tuple(map(Channel, channels)))
            for locale, channels in head.value.get("locales", {}).items()
        },
        updated_at=moment(head.updated_at),
        updated_by=head.updated_by,
    )


def template_of(key: str, filed: Entry) -> Template:
    """From what is filed under key and version."""
    return Template(
        key=key,
        locales=msgspec.convert(filed.value["locales"], Locales),
        sample=filed.value.get("sample", {}),
        version=_version(filed),
        updated_at=moment(filed.updated_at),
        updated_by=filed.updated_by,
    )


def history_of(filed: Entry) -> TemplateVersion:
    """One line of the history."""
    return TemplateVersion(
        version=_version(filed), updated_at=moment(filed.updated_at), updated_by=filed.updated_by
    )


def _version(filed: Entry) -> int:
    return _LAST_VERSION - int(filed.key.rpartition(":")[2])


def _plain_template(template: Template) -> Template:
    """Returns the template with built-in types only: its text and sample may come from a framework."""
    try:
        msgspec.json.encode(template)
    except UnicodeEncodeError:
        return template  # the checks name the field
    except TypeError:
        try:
            return msgspec.convert(msgspec.to_builtins(template, enc_hook=builtin), Template)
        except msgspec.ValidationError as error:
            raise InvalidRequest("template", str(error)) from None
    return template


def _check_parts(parts: TemplateParts, where: str) -> None:
    said = 0
    for name in ("subject", "text", "html", "title", "body"):
        source = getattr(parts, name)
        if source is None:
            continue
        said += 1
        check_text(source, f"{where}.{name}")
        _check_size(source.encode(), f"{where}.{name}")
    if parts.data is not None:
        said += 1
        check_json(parts.data, f"{where}.data", SendLimits())
        _check_size(msgspec.json.encode(parts.data), f"{where}.data")
    if not said:
        raise InvalidRequest(where, "has no part; give one of subject, text, html, title, body, data")


def _check_size(source: bytes, where: str) -> None:
    if len(source) > MOST_PART_BYTES:
        raise InvalidRequest(where, f"has {len(source)} bytes; allowed are {MOST_PART_BYTES}")
