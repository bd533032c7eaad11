"""Templates that tenants have written themselves, and their renderer, which also uses those of the folder."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.content.locales import LAST_RESORT, LocalePolicy, find_locale, normalize_locale
from homing.core.content.templates import (
    TEMPLATE,
    TEMPLATE_VERSION,
    CheckReport,
    LocaleSummary,
    Preview,
    Template,
    TemplateOrigin,
    TemplateParts,
    TemplateSummary,
    decode_template,
    head_version,
    version_key,
)
from homing.core.errors import InvalidRequest, NotFound, StoreUnavailable, TemplateNotFound
from homing.core.notifications import Channel
from homing.core.ports.plug_ins import Rendered
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Registry
from homing.core.send_request import SendLimits
from homing.rendering.folder_templates import (
    FolderTemplates,
    TemplateFile,
    TemplateFolder,
    TemplateLibrary,
    TemplateSources,
    YieldTimer,
    part_file_name,
    render_with_json_data,
)

TEMPLATE_FRESH_MS = 2_000
"""How long a template is used before the registry is asked for a newer version, in milliseconds."""

MAX_CACHED_TEMPLATES = 1_000
"""Maximum number of entries in the cache. Those that were looked up least recently are dropped."""


class _CachedTemplate(Struct):
    """Cache entry for one tenant and template key."""

    version: int
    """The version in use. 0 if the tenant has no template of its own."""
    library: TemplateLibrary | None
    """The tenant's own template. None if the folder's template is used."""
    looked_ms: int
    """Monotonic time of the last lookup in the registry."""


class TenantTemplates:
    """The renderer of an engine: uses the tenant's own template of a key, or else the folder's.

    Templates of tenants are not trusted: they run in the same sandbox, within the same limits. Other
    processes use a changed template after at most `TEMPLATE_FRESH_MS`.
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
        self._cache: OrderedDict[tuple[str, str], _CachedTemplate] = OrderedDict()
        self._empty_library = TemplateLibrary(TemplateFolder())
        self._yield_timer = YieldTimer()

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """Returns the content in exactly this locale."""
        cached = self._cache.get((tenant, template_key))
        if cached is None or self._is_stale(cached):
            cached = await self._looked_up(tenant, template_key)
        own, wanted = cached.library, locale or LAST_RESORT
        if own is None:
            if self._folder is None:
                message = f"{template_key!r} does not exist for tenant {tenant!r}"
                raise TemplateNotFound("templateKey", message)
            found = self._folder.ready(template_key, locale)
            if found is None:
                return await self._folder.render(tenant, template_key, channel, locale, data)
        else:
            found = own.ready(template_key, wanted)
            if found is None:  # compiling takes milliseconds, so it runs in a thread
                found = await asyncio.to_thread(own.compiled, template_key, wanted)
        made = render_with_json_data(found, template_key, channel, data)
        if self._yield_timer.due:
            await asyncio.sleep(0)
        return made

    async def channels(self, tenant: str, key: str) -> frozenset[Channel]:
        """Returns the channels for which a template is written, in any locale. Empty if it does not exist."""
        cached = self._cache.get((tenant, key))
        if cached is None or self._is_stale(cached):
            cached = await self._looked_up(tenant, key)
        library = cached.library or await self._shared_library()
        locales = library.folder.written.get(key, {})
        return frozenset(channel for written in locales.values() for channel in written.channels)

    def _is_stale(self, cached: _CachedTemplate) -> bool:
        return self._clock.monotonic_ms() - cached.looked_ms >= TEMPLATE_FRESH_MS

    # Operations on templates -----------------------------------------------------------------------

    async def shared(self) -> Mapping[str, TemplateSummary]:
        if self._folder is None:
            return {}
        library = await self._folder.read()
        return {key: summarize_shared_template(library, key) for key in library.folder.written}

    async def get_shared(self, key: str) -> Template | None:
        library = await self._shared_library()
        return _shared_template(library, key) if key in library.folder.written else None

    async def check(self, templates: Sequence[Template]) -> CheckReport:
        """Checks the templates one by one in a thread. If cancelled, stops after the current template."""
        shared = await self._shared_library()
        reports = [await self._checked(_library(one, shared)) for one in templates]
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
        self.forget(tenant, key)  # a preview must show the current version
        library = (await self._looked_up(tenant, key)).library or await self._shared_library()
        if key not in library.folder.written:
            raise NotFound(f"there is no template {key!r} for tenant {tenant!r}")
        return await asyncio.to_thread(
            library.preview, key, self._declared_locale(tenant, locale), channel, data
        )

    def forget(self, tenant: str, key: str) -> None:
        if cached := self._cache.get((tenant, key)):
            cached.looked_ms = -TEMPLATE_FRESH_MS

    # The current version ---------------------------------------------------------------------------

    async def _looked_up(self, tenant: str, key: str) -> _CachedTemplate:
        """Returns the current version from the registry, or the cached one if it is still current."""
        place = tenant, key
        before, now = self._cache.get(place), self._clock.monotonic_ms()
        if before is not None:
            before.looked_ms = now  # until the answer arrives, other renders use the cached version
        try:
            found = await self._load_current(tenant, key, before)
        except StoreUnavailable:
            # A spooled request must still be rendered: use the cached template, or else the folder's.
            return before or _CachedTemplate(0, None, now)
        found.looked_ms = now
        self._cache[place] = found
        self._cache.move_to_end(place)
        while len(self._cache) > MAX_CACHED_TEMPLATES:
            self._cache.popitem(last=False)
        return found

    async def _load_current(self, tenant: str, key: str, before: _CachedTemplate | None) -> _CachedTemplate:
        head = (await self._registry.get_many(tenant, TEMPLATE, [key])).get(key)
        version = head_version(head) if head else 0
        if before is not None and before.version == version:
            return before
        place = version_key(key, version)
        entry = (
            (await self._registry.get_many(tenant, TEMPLATE_VERSION, [place])).get(place) if head else None
        )
        if entry is None:
            return _CachedTemplate(0, None, 0)
        return _CachedTemplate(
            version, _library(decode_template(key, entry), await self._shared_library()), 0
        )

    async def _shared_library(self) -> TemplateLibrary:
        return self._empty_library if self._folder is None else await self._folder.read()

    async def _checked(self, library: TemplateLibrary) -> CheckReport:
        from homing.rendering.deployment_check import check_library

        return await asyncio.to_thread(check_library, library, self._locales.declared, self._limits)

    def _declared_locale(self, tenant: str, wanted: str | None) -> str:
        """Returns the declared locale for `wanted`. A preview never falls back to another locale."""
        if wanted is None:
            return self._locales.resolve(tenant, None, None)
        if found := find_locale([normalize_locale(wanted)], self._locales.declared):
            return found
        there = ", ".join(self._locales.declared)
        raise InvalidRequest("locale", f"is {wanted!r}; use one of the declared locales: {there}")


def _library(template: Template, shared: TemplateLibrary) -> TemplateLibrary:
    """Returns a library with this template, as if it were in a folder, so that errors name the same paths."""
    written = {
        locale: TemplateSources(
            sources=_sources(template.key, locale, channels), version=str(template.version)
        )
        for locale, channels in template.locales.items()
    }
    sample = msgspec.json.encode(template.sample).decode()
    return TemplateLibrary(
        TemplateFolder(written={template.key: written}, samples={template.key: sample}), shared
    )


def _sources(key: str, locale: str, channels: Mapping[Channel, TemplateParts]) -> tuple[TemplateFile, ...]:
    return tuple(
        TemplateFile(
            name=f"{key}/{locale}/{part_file_name(channel, part)}",
            channel=channel,
            part=part,
            text=text if isinstance(text, str) else msgspec.json.encode(text).decode(),
        )
        for channel, parts in channels.items()
        for part in parts.__struct_fields__
        if (text := getattr(parts, part)) is not None
    )


def summarize_shared_template(library: TemplateLibrary, key: str) -> TemplateSummary:
    """Returns the locales, versions and channels of a template of the folder."""
    locales = {
        locale: LocaleSummary(version=one.version, channels=one.channels)
        for locale, one in library.folder.written[key].items()
    }
    return TemplateSummary(key=key, origin=TemplateOrigin.FOLDER, locales=locales)


def _shared_template(library: TemplateLibrary, key: str) -> Template:
    return Template(
        key=key,
        origin=TemplateOrigin.FOLDER,
        locales={locale: _parts(one) for locale, one in library.folder.written[key].items()},
        sample=_object(library.folder.samples.get(key, "")),
    )


def _parts(written: TemplateSources) -> dict[Channel, TemplateParts]:
    found: dict[Channel, dict[str, Any]] = {}
    for source in written.sources:
        text: Any = _object(source.text) if source.part == "data" else source.text
        found.setdefault(source.channel, {})[source.part] = text
    return {channel: TemplateParts(**parts) for channel, parts in found.items()}


def _object(text: str) -> dict[str, Any]:
    """Decodes a JSON object. Returns an empty object for other text, which the template check reports."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
