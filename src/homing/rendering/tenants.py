"""Templates that tenants have written themselves, beside those of the folder."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.errors import InvalidRequest, NotFound, StoreUnavailable, TemplateNotFound
from homing.core.locale import LAST_RESORT, LocalePolicy, lookup, normal
from homing.core.model import Channel
from homing.core.ports import Clock, Registry, Rendered
from homing.core.request import SendLimits
from homing.core.templates import (
    TEMPLATE,
    TEMPLATE_VERSION,
    CheckReport,
    LocaleSummary,
    Preview,
    Template,
    TemplateOrigin,
    TemplateParts,
    TemplateSummary,
    head_version,
    template_of,
    version_key,
)
from homing.rendering.files import Folder, Source, Written, file_name
from homing.rendering.templates import FolderTemplates, Library, Turns, rendered

FRESH_MS = 2_000
"""So long a template is used before it is asked again whether it is still the one in force."""
MOST_KNOWN = 1_000
"""Templates that are held compiled; those that are used least are let go."""


class _Known(Struct):
    """What was found out about a key of a tenant."""

    version: int
    """0: the tenant has none of its own."""
    library: Library | None
    looked_ms: int


class TenantTemplates:
    """The renderer of a service: the tenant's own template of a key, else the folder's.

    What tenants write is not trusted: it runs in the same sandbox, within the same bounds. Other processes
    see a change within `FRESH_MS`.
    """

    def __init__(
        self,
        registry: Registry,
        folder: FolderTemplates | None,
        *,
        locales: LocalePolicy,
        limits: SendLimits,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._folder = folder
        self._locales = locales
        self._limits = limits
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._nothing = Library(Folder())
        self._turns = Turns()

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """The content in exactly this locale."""
        known = self._known.get((tenant, template_key))
        if known is None or self._clock.monotonic_ms() - known.looked_ms >= FRESH_MS:
            known = await self._looked_up(tenant, template_key)
        own, wanted = known.library, locale or LAST_RESORT
        if own is None:
            if self._folder is None:
                told = f"{template_key!r} does not exist for tenant {tenant!r}"
                raise TemplateNotFound("templateKey", told)
            found = self._folder.ready(template_key, locale)
            if found is None:
                return await self._folder.render(tenant, template_key, channel, locale, data)
        else:
            found = own.ready(template_key, wanted)
            if found is None:  # compiling takes milliseconds: not on the event loop
                found = await asyncio.to_thread(own.compiled, template_key, wanted)
        made = rendered(found, template_key, channel, data)
        if self._turns.due:
            await asyncio.sleep(0)
        return made

    # As `core.templates.Press` has it --------------------------------------------------------------

    async def shared(self) -> Mapping[str, TemplateSummary]:
        if self._folder is None:
            return {}
        library = await self._folder.read()
        return {key: shared_summary(library, key) for key in library.folder.written}

    async def get_shared(self, key: str) -> Template | None:
        library = await self._beside()
        return _shared(library, key) if key in library.folder.written else None

    async def check(self, templates: Sequence[Template]) -> CheckReport:
        """One by one, each on a thread: whoever gives up waiting stops it after the one under way."""
        beside = await self._beside()
        reports = [await self._checked(_library(one, beside)) for one in templates]
        return CheckReport(
            keys=tuple(one.key for one in templates),
            locales=self._locales.declared,
            findings=tuple(finding for report in reports for finding in report.findings),
        )

    async def check_shared(self) -> CheckReport:
        if self._folder is None:
            return CheckReport(keys=(), locales=self._locales.declared, findings=())
        return await self._checked(await self._folder.read())

    async def preview(
        self,
        tenant: str,
        key: str,
        locale: str | None,
        channel: Channel | None,
        data: Mapping[str, Any] | None,
    ) -> Preview:
        self.forget(tenant, key)  # whoever looks at it wants it as it is now
        library = (await self._looked_up(tenant, key)).library or await self._beside()
        if key not in library.folder.written:
            raise NotFound(f"there is no template {key!r} for tenant {tenant!r}")
        return await asyncio.to_thread(library.preview, key, self._declared(tenant, locale), channel, data)

    def forget(self, tenant: str, key: str) -> None:
        if known := self._known.get((tenant, key)):
            known.looked_ms = -FRESH_MS

    # What is in force ------------------------------------------------------------------------------

    async def _looked_up(self, tenant: str, key: str) -> _Known:
        """What is in force now; the known one, where that is still it."""
        place = tenant, key
        before, now = self._known.get(place), self._clock.monotonic_ms()
        if before is not None:
            before.looked_ms = now  # others go on with what there is, meanwhile
        try:
            found = await self._filed(tenant, key, before)
        except StoreUnavailable:
            # What goes into a spool must be rendered all the same: with what is known, or the folder's.
            return before or _Known(0, None, now)
        found.looked_ms = now
        self._known[place] = found
        self._known.move_to_end(place)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found

    async def _filed(self, tenant: str, key: str, before: _Known | None) -> _Known:
        head = (await self._registry.get_many(tenant, TEMPLATE, [key])).get(key)
        version = head_version(head) if head else 0
        if before is not None and before.version == version:
            return before
        place = version_key(key, version)
        filed = (
            (await self._registry.get_many(tenant, TEMPLATE_VERSION, [place])).get(place) if head else None
        )
        if filed is None:
            return _Known(0, None, 0)
        return _Known(version, _library(template_of(key, filed), await self._beside()), 0)

    async def _beside(self) -> Library:
        return self._nothing if self._folder is None else await self._folder.read()

    async def _checked(self, library: Library) -> CheckReport:
        from homing.rendering.checking import check

        return await asyncio.to_thread(check, library, self._locales.declared, self._limits)

    def _declared(self, tenant: str, wanted: str | None) -> str:
        """The declared locale that is meant; a preview, too, falls back to no other."""
        if wanted is None:
            return self._locales.resolve(tenant, None, None)
        if found := lookup([normal(wanted)], self._locales.declared):
            return found
        there = ", ".join(self._locales.declared)
        raise InvalidRequest("locale", f"is {wanted!r}; the declared ones are {there}")


def _library(template: Template, beside: Library) -> Library:
    """A template as if it lay in a folder: errors name the same places."""
    written = {
        locale: Written(sources=_sources(template.key, locale, channels), version=str(template.version))
        for locale, channels in template.locales.items()
    }
    sample = msgspec.json.encode(template.sample).decode()
    return Library(Folder(written={template.key: written}, samples={template.key: sample}), beside)


def _sources(key: str, locale: str, channels: Mapping[Channel, TemplateParts]) -> tuple[Source, ...]:
    return tuple(
        Source(
            name=f"{key}/{locale}/{file_name(channel, part)}",
            channel=channel,
            part=part,
            text=text if isinstance(text, str) else msgspec.json.encode(text).decode(),
        )
        for channel, parts in channels.items()
        for part in parts.__struct_fields__
        if (text := getattr(parts, part)) is not None
    )


def shared_summary(library: Library, key: str) -> TemplateSummary:
    """What there is of a template of the folder."""
    locales = {
        locale: LocaleSummary(version=one.version, channels=one.channels)
        for locale, one in library.folder.written[key].items()
    }
    return TemplateSummary(key=key, origin=TemplateOrigin.FOLDER, locales=locales)


def _shared(library: Library, key: str) -> Template:
    return Template(
        key=key,
        origin=TemplateOrigin.FOLDER,
        locales={locale: _parts(one) for locale, one in library.folder.written[key].items()},
        sample=_object(library.folder.samples.get(key, "")),
    )


def _parts(written: Written) -> dict[Channel, TemplateParts]:
    found: dict[Channel, dict[str, Any]] = {}
    for source in written.sources:
        text: Any = _object(source.text) if source.part == "data" else source.text
        found.setdefault(source.channel, {})[source.part] = text
    return {channel: TemplateParts(**parts) for channel, parts in found.items()}


def _object(text: str) -> dict[str, Any]:
    """What is not a JSON object is told by the check; here it is empty."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
