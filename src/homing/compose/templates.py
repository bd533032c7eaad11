"""Builds the renderer and the locales from the settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from homing.config import Settings
from homing.core.errors import ConfigError
from homing.core.locale import LocalePolicy
from homing.core.ports import Clock, Registry
from homing.core.presets import preset
from homing.core.request import SendLimits
from homing.making import load

if TYPE_CHECKING:
    from homing.core.templates import CheckReport, TemplateSummary
    from homing.rendering.templates import FolderTemplates
    from homing.rendering.tenants import TenantTemplates


def send_limits(settings: Settings) -> SendLimits:
    """Returns the limits of the size of a request."""
    return SendLimits(
        content_bytes=settings.limits.content_bytes,
        attachments_bytes=settings.limits.attachments_bytes,
        metadata_bytes=settings.limits.metadata_bytes,
        fan_out=settings.limits.fan_out,
    )


def locales(settings: Settings) -> LocalePolicy:
    """Returns the project's locales. If none are declared, the default is the only one."""
    own = settings.templates
    rejects = own.unmatched_locale == "reject"
    if own.unmatched_locale == "preset":
        rejects = preset(settings.preset).reject_unmatched_locale
    return LocalePolicy(
        declared=own.locales or (own.default_locale,),
        default=own.default_locale,
        tenant_defaults=own.tenant_locales,
        reject_unmatched=rejects,
    )


def templates(settings: Settings) -> FolderTemplates:
    """Builds the renderer of the template folder. Raises `ConfigError` if the folder or Jinja is missing."""
    folder = settings.templates.folder
    if not folder:
        raise ConfigError("templates.folder", "is not set; set it to the folder of your templates")
    if not Path(folder).is_dir():
        raise ConfigError("templates.folder", f"{folder!r} is not a folder")
    if not _has_jinja():
        raise ConfigError("templates", "needs jinja2, which is missing: pip install 'homing[templates]'")
    made: FolderTemplates = load("homing.rendering.templates:FolderTemplates")(Path(folder))
    return made


def tenant_templates(settings: Settings, registry: Registry, clock: Clock) -> TenantTemplates | None:
    """Builds the renderer of the tenants' templates and the folder, if there is one. None without Jinja."""
    folder = templates(settings) if settings.templates.folder else None
    if not _has_jinja():
        return None
    made: TenantTemplates = load("homing.rendering.tenants:TenantTemplates")(
        registry, folder, locales=locales(settings), limits=send_limits(settings), clock=clock
    )
    return made


def listed_templates(settings: Settings) -> list[TemplateSummary]:
    """Lists the templates of the folder."""
    library = templates(settings).library()
    summary = load("homing.rendering.tenants:shared_summary")
    return [summary(library, key) for key in library.folder.written]


def check_templates(settings: Settings) -> CheckReport:
    """Checks that all templates of the folder exist in all locales and render with their sample data."""
    made: CheckReport = load("homing.rendering.checking:check")(
        templates(settings).library(), locales(settings).declared, send_limits(settings)
    )
    return made


def _has_jinja() -> bool:
    return importlib.util.find_spec("jinja2") is not None
