"""Manages a tenant's own templates: checks them before they are written, and keeps earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from homing.core.content.templates import (
    TEMPLATE,
    TEMPLATE_VERSION,
    CheckReport,
    ManagedRenderer,
    Preview,
    Template,
    TemplateSummary,
    TemplateVersion,
    check_key,
    check_template,
    decode_summary,
    decode_template,
    decode_version,
    encode_template,
    encode_template_head,
    head_version,
    version_key,
)
from homing.core.errors import ConfigError, InvalidRequest, NotFound, TemplateFailed, VersionConflict
from homing.core.lifecycle.effects import key_part
from homing.core.notifications import Channel
from homing.core.plain_values import check_line, enum_member
from homing.core.ports.stores import Entry, Registry

MAX_VERSIONS = 100
"""Maximum number of stored versions per template. Older ones are deleted when new ones are written."""

MAX_TEMPLATES = 1_000
"""Maximum number of templates per tenant."""

_PAGE = 500

_MAX_REPORTED = 5

_MAX_DELETED_PER_WRITE = 10


class Templates:
    """The templates of one tenant: its own, and those of the folder that all tenants share.

    The tenant's own template takes precedence over the folder's template with the same key. A template is
    written only if it compiles, exists in every declared locale, and renders with its sample data.
    """

    def __init__(self, registry: Registry, tenant: str, press: ManagedRenderer | None) -> None:
        self._registry = registry
        self._tenant = tenant
        self._renderer = press

    # Reads ---------------------------------------------------------------------------------------

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[TemplateSummary, ...]:
        """Returns templates ordered by key, including those of the shared folder.

        `after` is the last key of the previous page.
        """
        check_line(after, "after")
        if not 1 <= limit <= 1000:
            raise InvalidRequest("limit", f"is {limit}; it must be between 1 and 1000")
        shared = await self._press.shared()
        heads = await self._registry.list_entries(self._tenant, TEMPLATE, after=after, limit=limit)
        found = {key: summary for key, summary in shared.items() if key > after}
        if len(heads) == limit:  # later keys belong to the next page
            found = {key: summary for key, summary in found.items() if key < heads[-1].key}
        found |= {head.key: decode_summary(head) for head in heads}
        return tuple(found[key] for key in sorted(found)[:limit])

    async def get(self, key: str) -> Template:
        """Returns the template in force. Raises `NotFound` if no template has that key."""
        check_key(key)
        if head := await self._head(key):
            return await self.version(key, head_version(head))
        shared = await self._press.get_shared(key)
        if shared is None:
            raise NotFound(f"there is no template {key!r} for tenant {self._tenant!r}")
        return shared

    async def versions(self, key: str, *, before: int = 0, limit: int = 20) -> tuple[TemplateVersion, ...]:
        """Returns the versions of a template, newest first, even if the template was deleted.

        If `before` is not 0, only versions older than version `before` are returned.
        """
        check_key(key)
        after = version_key(key, before) if before else ""
        filed = await self._registry.list_entries(
            self._tenant, TEMPLATE_VERSION, prefix=f"{key_part(key)}:", after=after, limit=min(limit, 100)
        )
        return tuple(map(decode_version, filed))

    async def version(self, key: str, version: int) -> Template:
        """Returns one version of a template. Raises `NotFound` if the version is not stored."""
        place = version_key(check_key(key), version)
        found = await self._registry.get_many(self._tenant, TEMPLATE_VERSION, [place])
        if place not in found:
            raise NotFound(f"there is no version {version} of the template {key!r}")
        return decode_template(key, found[place])

    async def preview(
        self,
        key: str,
        *,
        locale: str | None = None,
        channel: Channel | str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Preview:
        """Renders a template with the given data, or with its sample data. Sends and stores nothing."""
        check_key(key)
        chosen = None if channel is None else enum_member(Channel, channel, "channel")
        return await self._press.preview(self._tenant, key, locale, chosen, data)

    async def check(self, template: Template | None = None) -> CheckReport:
        """Checks a draft, or all templates of this tenant and of the folder if no draft is given."""
        if template is not None:
            return await self._press.check([check_template(template)])
        shared = await self._press.check_shared()
        own = await self._press.check([await self.get(head.key) for head in await self._heads()])
        kept = [one for one in shared.findings if one.key not in own.keys]
        if own.keys or shared.keys:  # an empty folder is no problem if the tenant has templates of its own
            kept = [one for one in kept if one.key is not None or shared.keys]
        return CheckReport(
            keys=tuple(sorted({*shared.keys, *own.keys})),
            locales=own.locales,
            findings=(*kept, *own.findings),
        )

    # Writes --------------------------------------------------------------------------------------

    async def put(self, template: Template, *, who: str) -> Template:
        """Writes a template as a new version. Raises `TemplateFailed` with the problems if its check fails.

        If the template's `version` is set, raises `VersionConflict` unless it is the version in force.
        Otherwise replaces any version.
        """
        template = check_template(template)
        report = await self._press.check([template])
        if not report.good:
            reported = [one.message for one in report.findings[:_MAX_REPORTED]]
            more = len(report.findings) - len(reported)
            raise TemplateFailed("locales", "; ".join(reported) + (f"; and {more} more" if more else ""))
        while True:
            head = await self._head(template.key)
            if template.version and (head is None or head_version(head) != template.version):
                raise VersionConflict(
                    f"the template {template.key!r} is no longer at version {template.version}"
                )
            if head is None:
                await self._check_limit(template.key)
            version = await self._next_version(template.key)
            if await self._registry.put(self._entries(template, head, version), who=who) is not None:
                break  # else the template was changed at the same time: try again
        self._press.forget(self._tenant, template.key)
        await self._remove_old(template.key, version)
        return await self.version(template.key, version)

    async def restore(self, key: str, version: int, *, who: str) -> Template:
        """Writes an earlier version again, as the newest one. Also works for a deleted template."""
        return await self.put(replace(await self.version(key, version), version=0), who=who)

    async def delete(self, key: str) -> bool:
        """Deletes the tenant's own template but keeps its versions. Returns False if it does not exist.

        If the folder has a template with the same key, that template is in force again.
        """
        removed = await self._registry.delete(self._tenant, TEMPLATE, [check_key(key)])
        self._press.forget(self._tenant, key)
        return removed > 0

    # The Registry --------------------------------------------------------------------------------

    @property
    def _press(self) -> ManagedRenderer:
        if self._renderer is None:
            raise ConfigError(
                "templates", "cannot be managed: jinja2 is not installed, or the renderer is your own"
            )
        return self._renderer

    def _entries(self, template: Template, head: Entry | None, version: int) -> tuple[Entry, Entry]:
        return (
            Entry(
                tenant=self._tenant,
                kind=TEMPLATE,
                key=template.key,
                value=encode_template_head(template, version),
                version=head.version if head else 0,
            ),
            Entry(
                tenant=self._tenant,
                kind=TEMPLATE_VERSION,
                key=version_key(template.key, version),
                value=encode_template(template),
            ),
        )

    async def _head(self, key: str) -> Entry | None:
        return (await self._registry.get_many(self._tenant, TEMPLATE, [key])).get(key)

    async def _heads(self) -> tuple[Entry, ...]:
        found: list[Entry] = []
        while True:
            after = found[-1].key if found else ""
            page = await self._registry.list_entries(self._tenant, TEMPLATE, after=after, limit=_PAGE)
            found.extend(page)
            if len(page) < _PAGE:
                return tuple(found)

    async def _check_limit(self, key: str) -> None:
        if len(await self._heads()) >= MAX_TEMPLATES:
            raise InvalidRequest("key", f"{key!r} would exceed the limit of {MAX_TEMPLATES:,} templates")

    async def _next_version(self, key: str) -> int:
        """Returns the next version number of a template. Numbers are not reused after a deletion."""
        newest = await self.versions(key, limit=1)
        return newest[0].version + 1 if newest else 1

    async def _remove_old(self, key: str, newest: int) -> None:
        if newest <= MAX_VERSIONS:
            return
        old = await self.versions(key, before=newest - MAX_VERSIONS + 1, limit=_MAX_DELETED_PER_WRITE)
        places = [version_key(key, one.version) for one in old]
        await self._registry.delete(self._tenant, TEMPLATE_VERSION, places)
