"""Templates: their types, checks and registry entries, and the interface of a renderer that manages them.

A template has two kinds of registry entries. Its `template` entry holds the number of the current version and
its locales and channels. One `template_version` entry per version holds the content. So listing is cheap, and
the template of an old message can still be looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from homing.core.content.locales import is_language_tag
from homing.core.errors import InvalidRequest
from homing.core.lifecycle.effects import key_part
from homing.core.notifications import Channel, Content
from homing.core.plain_values import check_text, enum_member, to_builtin
from homing.core.ports.plug_ins import Renderer
from homing.core.ports.stores import Entry
from homing.core.send_request import SendLimits, check_json, check_name
from homing.core.times import moment

TEMPLATE, TEMPLATE_VERSION = "template", "template_version"


MAX_PART_BYTES = 64 * 1024
"""Maximum size of one part of a template. The time to compile a part grows with its size."""

MAX_TEMPLATE_BYTES = 256 * 1024
"""Maximum size of a template with all its locales and its sample data."""

MAX_LOCALES = 100

_LAST_VERSION = 10**9


TemplateSource = Annotated[str, Meta(max_length=MAX_PART_BYTES, examples=["Hello {{ name }}"])]


class TemplateParts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sources of a template for one channel. Each part is a Jinja template."""

    subject: TemplateSource | None = None
    text: TemplateSource | None = None
    html: TemplateSource | None = None
    title: TemplateSource | None = None
    body: TemplateSource | None = None
    data: dict[str, Any] | None = None
    """JSON whose texts are Jinja templates. A text that is only `{{ … }}` keeps the type of its value."""


Locales = dict[str, dict[Channel, TemplateParts]]
"""Locale → channel → sources of the parts."""


class TemplateOrigin(StrEnum):
    """Origin of a template."""

    OWN = "own"
    """A template written by the tenant. It overrides a template of the folder with the same key."""
    FOLDER = "folder"
    """A template in a folder of the project, available to all tenants."""


class Template(Struct, frozen=True, kw_only=True, rename="camel"):
    """One template with all its locales."""

    key: str
    locales: Locales
    sample: dict[str, Any] = field(default_factory=dict)
    """Sample data for checks and previews."""
    origin: TemplateOrigin = TemplateOrigin.OWN
    version: int = 0
    """Version that increases with each write. 0 for a template of the folder."""
    updated_at: datetime | None = None
    updated_by: str = ""


class LocaleSummary(Struct, frozen=True, kw_only=True):
    """Version and channels of a template in one locale."""

    version: str
    """Version of the template, as stored with notifications."""
    channels: tuple[Channel, ...]


class TemplateSummary(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A template without its content, for lists."""

    key: str
    origin: TemplateOrigin
    locales: dict[str, LocaleSummary]
    updated_at: datetime | None = None
    updated_by: str = ""


class TemplateVersion(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of a template's history."""

    version: int
    updated_at: datetime
    updated_by: str


class TemplateProblem(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One problem with a template."""

    message: str
    key: str | None = None
    locale: str | None = None
    """Affected locale. None if the problem concerns all locales of the template."""
    missing: bool = False
    """True if the template does not exist in this locale."""


class CheckReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of checking every template in every declared locale."""

    keys: tuple[str, ...]
    locales: tuple[str, ...]
    findings: tuple[TemplateProblem, ...]

    @property
    def good(self) -> bool:
        """True if no problem was found."""
        return not self.findings

    def state(self, key: str, locale: str) -> Literal["ok", "wrong", "missing"]:
        """Returns `ok`, `wrong` or `missing` for one template in one locale."""
        here = [one for one in self.findings if one.key == key and one.locale in (None, locale)]
        if any(one.missing for one in here):
            return "missing"
        return "wrong" if here else "ok"


class Preview(Struct, frozen=True, kw_only=True, rename="camel"):
    """Rendered content of a template, by channel."""

    key: str
    locale: str
    version: str
    contents: dict[Channel, Content]


@runtime_checkable
class ManagedRenderer(Renderer, Protocol):
    """A renderer for templates of the tenants and of a folder."""

    async def channels(self, tenant: str, key: str) -> frozenset[Channel]:
        """Returns the channels for which a template is written, in any locale. Empty if it does not exist."""

    async def shared(self) -> Mapping[str, TemplateSummary]:
        """Returns summaries of the templates of the folder, by key."""

    async def get_shared(self, key: str) -> Template | None:
        """Returns a template of the folder, or None if there is no such key."""

    async def check(self, templates: Sequence[Template]) -> CheckReport:
        """Checks that each template compiles, exists in every declared locale and renders its sample."""

    async def check_shared(self) -> CheckReport:
        """Checks all templates of the folder in the same way as `check`."""

    async def preview(
        self,
        tenant: str,
        key: str,
        locale: str | None,
        channel: Channel | None,
        data: Mapping[str, Any] | None,
    ) -> Preview:
        """Renders a template with this data.

        If None, `locale` is the tenant's default, `channel` means all channels of the template, and `data` is
        its sample data.
        """

    def forget(self, tenant: str, key: str) -> None:
        """Drops the cached versions of a template that has just changed."""


def check_key(key: Any) -> str:
    """Returns the key of a template. Raises `InvalidRequest` unless it is a valid name for one.

    Keys that start with `_` are reserved for parts that templates share.
    """
    check_name(key, "key")
    if str(key).startswith("_"):
        raise InvalidRequest("key", "starts with _, which is reserved for shared parts of templates")
    return str(key)


def check_template(template: Template) -> Template:
    """Returns the template after checking sizes, names and characters.

    Whether the template can be rendered is checked by the renderer.
    """
    template = _plain_template(template)
    check_key(template.key)
    if not 1 <= len(template.locales) <= MAX_LOCALES:
        raise InvalidRequest(
            "locales", f"has {len(template.locales)} entries; it must have 1 to {MAX_LOCALES}"
        )
    for locale, channels in template.locales.items():
        if not is_language_tag(locale):
            raise InvalidRequest("locales", f"has {locale!r}; locales are like en-US, de or zh-Hant")
        for channel, parts in channels.items():
            _check_parts(parts, f"locales.{locale}.{channel.value}")
    limits = SendLimits()
    check_json(template.sample, "sample", limits)
    size = len(msgspec.json.encode(encode_template(template)))
    if size > MAX_TEMPLATE_BYTES:
        raise InvalidRequest(
            "locales", f"and sample have {size} bytes; at most {MAX_TEMPLATE_BYTES} are allowed"
        )
    return template


def encode_template_head(template: Template, version: int) -> dict[str, Any]:
    """Encodes the value of a `template` entry."""
    channels = {locale: list(parts) for locale, parts in template.locales.items()}
    return {"version": version, "locales": msgspec.to_builtins(channels)}


def encode_template(template: Template) -> dict[str, Any]:
    """Encodes the value of a `template_version` entry."""
    return {"locales": msgspec.to_builtins(template.locales), "sample": template.sample}


def version_key(key: str, version: int) -> str:
    """Returns the registry key of a template's version. The newest version sorts first."""
    return f"{key_part(key)}:{_LAST_VERSION - version:010d}"


def head_version(head: Entry) -> int:
    """Returns the current version from a `template` entry, or 0 if the entry has none."""
    version = head.value.get("version")
    return version if isinstance(version, int) else 0


def decode_summary(head: Entry) -> TemplateSummary:
    """Decodes a template's summary from its `template` entry."""
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


def decode_template(key: str, filed: Entry) -> Template:
    """Decodes a template from a `template_version` entry."""
    return Template(
        key=key,
        locales=msgspec.convert(filed.value["locales"], Locales),
        sample=filed.value.get("sample", {}),
        version=_version(filed),
        updated_at=moment(filed.updated_at),
        updated_by=filed.updated_by,
    )


def decode_version(filed: Entry) -> TemplateVersion:
    """Decodes one version of the history from its `template_version` entry."""
    return TemplateVersion(
        version=_version(filed), updated_at=moment(filed.updated_at), updated_by=filed.updated_by
    )


def _version(filed: Entry) -> int:
    return _LAST_VERSION - int(filed.key.rpartition(":")[2])


def _plain_template(template: Template) -> Template:
    """Returns the template in built-in types, because its text and sample data may come from a framework."""
    try:
        msgspec.json.encode(template)
    except UnicodeEncodeError:
        return template  # a later check names the field
    except TypeError:
        try:
            return msgspec.convert(msgspec.to_builtins(template, enc_hook=to_builtin), Template)
        except msgspec.ValidationError as error:
            raise InvalidRequest("template", str(error)) from None
    if all(type(channel) is Channel for channels in template.locales.values() for channel in channels):
        return template
    locales = {
        locale: {enum_member(Channel, name, f"locales.{locale}"): parts for name, parts in channels.items()}
        for locale, channels in template.locales.items()
    }
    return replace(template, locales=locales)


def _check_parts(parts: TemplateParts, where: str) -> None:
    given = 0
    for name in ("subject", "text", "html", "title", "body"):
        source = getattr(parts, name)
        if source is None:
            continue
        given += 1
        check_text(source, f"{where}.{name}")
        _check_size(source.encode(), f"{where}.{name}")
    if parts.data is not None:
        given += 1
        check_json(parts.data, f"{where}.data", SendLimits())
        _check_size(msgspec.json.encode(parts.data), f"{where}.data")
    if not given:
        raise InvalidRequest(where, "has no part; give one of subject, text, html, title, body, data")


def _check_size(source: bytes, where: str) -> None:
    if len(source) > MAX_PART_BYTES:
        raise InvalidRequest(where, f"has {len(source)} bytes; at most {MAX_PART_BYTES} are allowed")
