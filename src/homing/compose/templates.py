"""Builds the renderers, the locales and the limits of requests from the settings, and checks the folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from homing.compose.factories import check_installed, find_missing, import_object
from homing.core.content.locales import LocalePolicy
from homing.core.errors import ConfigError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Registry
from homing.core.retry.presets import find_preset
from homing.settings import Settings

if TYPE_CHECKING:
    from homing.core.content.templates import CheckReport, TemplateSummary
    from homing.rendering.folder_templates import FolderTemplates
    from homing.rendering.tenant_templates import TenantTemplates


def build_locale_policy(settings: Settings) -> LocalePolicy:
    """Returns the project's locales. If none are declared, the default is the only one."""
    own = settings.templates
    rejects = own.unmatched_locale == "reject"
    if own.unmatched_locale == "preset":
        rejects = find_preset(settings.preset).reject_unmatched_locale
    return LocalePolicy(
        declared=own.locales or (own.default_locale,),
        default=own.default_locale,
        tenant_defaults=own.tenant_locales,
        reject_unmatched=rejects,
    )


def build_folder_renderer(settings: Settings) -> FolderTemplates:
    """Builds the renderer of the template folder. Raises `ConfigError` if the folder or Jinja is missing."""
    folder = settings.templates.folder
    if not folder:
        raise ConfigError("templates.folder", "is not set; set it to the folder of your templates")
    if not Path(folder).is_dir():
        raise ConfigError("templates.folder", f"{folder!r} is not a folder")
    check_installed("templates", "templates", "jinja2")
    made: FolderTemplates = import_object("homing.rendering.folder_templates:FolderTemplates")(Path(folder))
    return made


def build_renderer(settings: Settings, registry: Registry, clock: Clock) -> TenantTemplates | None:
    """Builds the renderer for templates of tenants and the folder. Returns None if Jinja is not installed."""
    folder = build_folder_renderer(settings) if settings.templates.folder else None
    if find_missing("jinja2"):
        return None
    made: TenantTemplates = import_object("homing.rendering.tenant_templates:TenantTemplates")(
        registry,
        folder,
        locales=build_locale_policy(settings),
        limits=settings.limits,
        clock=clock,
    )
    return made


def listed_templates(settings: Settings) -> list[TemplateSummary]:
    """Returns a summary of each template in the folder."""
    library = build_folder_renderer(settings).library()
    summary = import_object("homing.rendering.tenant_templates:summarize_shared_template")
    return [summary(library, key) for key in library.folder.written]


def require_complete_templates(settings: Settings) -> None:
    """Raises `ConfigError` if the preset requires every template in every locale, and one is missing."""
    if not settings.templates.folder or not find_preset(settings.preset).requires_all_locales:
        return
    declared = build_locale_policy(settings).declared
    written = build_folder_renderer(settings).library().folder.written
    missing = [f"{key}/{one}" for key, locales in written.items() for one in declared if one not in locales]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ConfigError(
            "templates",
            f"{', '.join(missing[:5])}{more}: missing; the preset {settings.preset} needs every template "
            "in every declared locale, see `homing templates check`",
        )


def check_templates(settings: Settings) -> CheckReport:
    """Checks that all templates of the folder exist in all locales and render with their sample data."""
    made: CheckReport = import_object("homing.rendering.deployment_check:check_library")(
        build_folder_renderer(settings).library(),
        build_locale_policy(settings).declared,
        settings.limits,
    )
    return made
