"""Templates from settings to a stored notification: the locale is resolved and the version stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from homing import ConfigError, Content, Homing, InvalidRequest, TemplateFailed, TemplateNotFound, compose
from homing.settings import load_settings

FILES = {
    "hello/en-US/sms.txt": "Hello {{ name }}",
    "hello/de/sms.txt": "Hallo {{ name }}",
    "only/en-US/sms.txt": "Only here",
}
PHONE = "+15550100"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / "templates" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "templates"


def opened(folder: Path, preset: str = "priority", **more: Any) -> Homing:
    templates = {"folder": str(folder), "locales": ["en-US", "de"], **more}
    return Homing("memory:", preset=preset, templates=templates, sinks={"log": {"events": []}})


@pytest.mark.source("002", "30", "366-367", "395-399")
@pytest.mark.parametrize(
    ("locale", "header", "expected"),
    [
        ("de_AT", "en-US", "Hallo Ada"),
        (None, "fr, de-CH;q=0.9, en-US;q=0.1", "Hallo Ada"),
        (None, "fr", "Hello Ada"),
        (None, None, "Hello Ada"),
        ("fr", None, "Hello Ada"),
    ],
)
async def test_the_order_is_recipient_s_locale_header_default(
    folder: Path, locale: str | None, header: str | None, expected: str
) -> None:
    async with opened(folder) as homing:
        sent = await homing.send(
            {"phone": PHONE, "locale": locale},
            channel="sms", template_key="hello", data={"name": "Ada"}, accept_language=header,
        )  # fmt: skip
        found = await homing.get(sent.id)
    assert found.content == Content(text=expected)
    assert found.locale == ("de" if expected == "Hallo Ada" else "en-US")
    assert found.template_version is not None
    assert found.recipient.locale == locale


@pytest.mark.source("002", "398")
async def test_a_tenant_s_default_precedes_the_project_s(folder: Path) -> None:
    async with opened(folder, tenant_locales={"default": "de"}) as homing:
        sent = await homing.send(PHONE, channel="sms", template_key="hello", data={"name": "Ada"})
        assert (await homing.get(sent.id)).locale == "de"


@pytest.mark.parametrize(("preset", "setting"), [("channel", "preset"), ("priority", "reject")])
async def test_in_strict_mode_a_header_without_a_match_is_refused(
    folder: Path, preset: str, setting: str
) -> None:
    async with opened(folder, preset, unmatched_locale=setting) as homing:
        with pytest.raises(InvalidRequest, match="acceptLanguage: matches none of the available locales"):
            await homing.send(PHONE, channel="sms", template_key="hello", data={}, accept_language="fr")
        assert not (await homing.list()).items


@pytest.mark.source("002", "427")
async def test_in_strict_mode_a_preferred_locale_without_a_match_is_refused(folder: Path) -> None:
    async with opened(folder, "channel") as homing:
        with pytest.raises(InvalidRequest, match=r"recipient\.locale: matches none of the available locales"):
            await homing.send(
                {"phone": PHONE, "locale": "fr-FR"}, channel="sms", template_key="hello", data={}
            )
        with pytest.raises(InvalidRequest, match=r"recipient\.locale: matches none of the available locales"):
            await homing.recipients.put({"id": "ada", "locale": "fr-FR"}, who="ada")
        await homing.recipients.put({"id": "ada", "locale": "en", "phone": PHONE}, who="ada")
        sent = await homing.send({"id": "ada"}, channel="sms", template_key="hello", data={"name": "Ada"})
        assert (await homing.get(sent.id)).locale == "en-US"


@pytest.mark.source("002", "529")
async def test_a_request_without_a_channel_takes_the_only_one_of_its_template(folder: Path) -> None:
    async with opened(folder) as homing:
        sent = await homing.send({"phone": PHONE}, template_key="hello", data={"name": "Ada"})
        assert (await homing.get(sent.id)).channel.value == "sms"
        with pytest.raises(InvalidRequest, match="channel: is missing"):
            await homing.send({"phone": PHONE}, template_key="unknown", data={})
        (folder / "hello/de/email.txt").write_text("Hallo")
    async with opened(folder) as homing:
        with pytest.raises(InvalidRequest, match="channel: is missing"):
            await homing.send({"phone": PHONE}, template_key="hello", data={})


async def test_the_preset_s_strictness_can_be_overridden(folder: Path) -> None:
    async with opened(folder, "channel", unmatched_locale="default") as homing:
        sent = await homing.send(
            PHONE, channel="sms", template_key="hello", data={"name": "A"}, accept_language="fr"
        )
        assert (await homing.get(sent.id)).locale == "en-US"


@pytest.mark.source("002", "363", "370-372", "388", "597")
async def test_a_missing_or_broken_template_stores_nothing(folder: Path) -> None:
    async with opened(folder) as homing:
        with pytest.raises(TemplateNotFound, match="'only' does not exist in de"):
            await homing.send({"phone": PHONE, "locale": "de"}, channel="sms", template_key="only")
        with pytest.raises(TemplateFailed, match=r"hello/en-US/sms\.txt, line 1: 'name' is undefined"):
            await homing.send(PHONE, channel="sms", template_key="hello")
        with pytest.raises(InvalidRequest, match="acceptLanguage: has 1001 characters"):
            await homing.send(PHONE, channel="sms", template_key="only", accept_language="x" * 1001)
        assert not (await homing.list()).items


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        ({"locales": ["en_US"]}, "templates.locales", "locales are like en-US"),
        ({"locales": ["de"]}, "templates.default_locale", "it must be one of the declared locales: de"),
        (
            {"tenant_locales": {"acme": "fr"}},
            "templates.tenant_locales.acme",
            "must be one of the declared locales: en-US",
        ),
        ({"unmatched_locale": "ask"}, "templates.unmatched_locale", "must be one of preset, default, reject"),
        ({"foldr": "x"}, "templates.foldr", "did you mean folder?"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")) as caught:
        load_settings(env={}, flags={"templates": settings})
    assert caught.value.field == field


def test_a_missing_folder_or_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"templates\.folder: is not set"):
        compose.build_folder_renderer(load_settings(env={}))
    with pytest.raises(ConfigError, match=r"templates\.folder: '.*' is not a folder"):
        compose.build_folder_renderer(
            load_settings(env={}, flags={"templates": {"folder": str(tmp_path / "none")}})
        )
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"pip install 'homing\[templates\]'"):
        compose.build_folder_renderer(load_settings(env={}, flags={"templates": {"folder": str(tmp_path)}}))


async def test_without_a_folder_the_default_locale_is_declared_and_tenants_may_write_templates() -> None:
    settings = load_settings(env={})
    assert compose.build_locale_policy(settings).declared == ("en-US",)
    async with Homing("memory:", sinks={"log": {"events": []}}) as homing:
        with pytest.raises(TemplateNotFound, match="'hello' does not exist"):
            await homing.send(PHONE, channel="sms", template_key="hello", data={})


def test_a_custom_renderer_gets_unresolved_locales_unless_they_are_declared() -> None:
    settings = load_settings(env={})
    assert compose.build_engine_settings(settings, own_renderer=True).intake.locales is None
    declared = load_settings(env={}, flags={"templates": {"locales": ["de"], "default_locale": "de"}})
    assert compose.build_engine_settings(declared, own_renderer=True).intake.locales is not None


async def test_without_jinja_templates_cannot_be_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    async with Homing("memory:", sinks={"log": {"events": []}}) as homing:
        with pytest.raises(ConfigError, match="jinja2 is not installed"):
            await homing.templates.list()
