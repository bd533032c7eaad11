"""Templates, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from homing.client.asking import part
from homing.client.calling import Calling
from homing.client.structs.templates import (
    PreviewWanted,
    TemplateDeleted,
    TemplateDraft,
    TemplateHistory,
    TemplateHistoryQuery,
    TemplatePage,
    TemplateQuery,
    TemplateWritten,
)
from homing.core.model import Channel
from homing.core.templates import (
    CheckReport,
    Preview,
    Template,
    TemplateParts,
    TemplateSummary,
    TemplateVersion,
)


class Templates(Calling):
    """The operations on templates."""

    def list_templates(self, *, limit: int = 50) -> Iterator[TemplateSummary]:
        """List templates by key: the tenant's own, and those of the folder that all tenants have."""
        return self._pages(TemplatePage, "/api/v1/templates", TemplateQuery(limit=limit))

    def check_templates(
        self,
        *,
        key: str = "draft",
        locales: dict[str, dict[str, TemplateParts]] | None = None,
        sample: dict[str, Any] | None = None,
    ) -> CheckReport:
        """Check a draft, or (without a body) everything that the tenant can send.

        Each must compile, be there in every declared locale with the same parts, and render with its
        sample.
        """
        return self._ask(
            CheckReport,
            "POST",
            "/api/v1/templates/check",
            body=TemplateDraft(
                key=key, locales={} if locales is None else locales, sample={} if sample is None else sample
            ),
        )

    def get_template(self, key: str) -> Template:
        """One template with all its locales and parts, as it is in force."""
        return self._ask(Template, "GET", f"/api/v1/templates/{part(key)}")

    def put_template(
        self,
        key: str,
        *,
        locales: dict[str, dict[str, TemplateParts]],
        sample: dict[str, Any] | None = None,
        version: int = 0,
    ) -> Template:
        """Write a template whole, as a new version.

        It is checked first, as a deployment is, and refused with all that is wrong. It wins over the
        folder's of the same key. Sends that are accepted from then on use it, in other processes within
        two seconds.
        """
        return self._ask(
            Template,
            "PUT",
            f"/api/v1/templates/{part(key)}",
            body=TemplateWritten(locales=locales, sample={} if sample is None else sample, version=version),
        )

    def delete_template(self, key: str) -> TemplateDeleted:
        """Take the tenant's own template out of force; it can be restored by its version.

        The folder's of the same key is in force again.
        """
        return self._ask(TemplateDeleted, "DELETE", f"/api/v1/templates/{part(key)}")

    def preview_template(
        self,
        key: str,
        *,
        locale: str | None = None,
        channel: Channel | None = None,
        data: dict[str, Any] | None = None,
    ) -> Preview:
        """How a template reads. Nothing is sent or stored."""
        return self._ask(
            Preview,
            "POST",
            f"/api/v1/templates/{part(key)}/preview",
            body=PreviewWanted(locale=locale, channel=channel, data=data),
        )

    def list_template_versions(self, key: str, *, limit: int = 20) -> Iterator[TemplateVersion]:
        """The versions of a tenant's own template; the last hundred are kept."""
        return self._pages(
            TemplateHistory, f"/api/v1/templates/{part(key)}/versions", TemplateHistoryQuery(limit=limit)
        )

    def get_template_version(self, key: str, version: int) -> Template:
        """A template as it was then: what a notification's `templateVersion` was made from."""
        return self._ask(Template, "GET", f"/api/v1/templates/{part(key)}/versions/{part(version)}")

    def restore_template(self, key: str, version: int) -> Template:
        """Write an earlier version anew, as the newest; also of a template that was deleted."""
        return self._ask(Template, "POST", f"/api/v1/templates/{part(key)}/versions/{part(version)}/restore")
