"""Templates written by tenants: checked, versioned, and used next to those of the folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from homing import Homing, InvalidRequest, NotFound, TemplateFailed, TemplateNotFound, VersionConflict
from homing.core.content.templates import MAX_PART_BYTES, Locales, Template, TemplateOrigin, TemplateParts
from homing.core.notifications import Channel
from homing.engine.operations import templates as engine_templates
from homing.engine.tenant_api import TenantApi
from homing.rendering import tenant_templates
from homing.rendering.tenant_templates import TEMPLATE_FRESH_MS
from homing.stores.sqlite import SqliteStore
from homing.testing.manual_clock import ManualClock
from support import template_attacks as attacks
from support.template_attacks import LEAKED, SECRET

PHONE = "+15550100"


def sms(*texts: str) -> Locales:
    """Returns one text for each of en-US and de."""
    return {
        locale: {Channel.SMS: TemplateParts(text=text)}
        for locale, text in zip(("en-US", "de"), texts, strict=False)
    }


def hello(english: str = "Hello {{ name }}", german: str = "Hallo {{ name }}", version: int = 0) -> Template:
    return Template(key="hello", locales=sms(english, german), sample={"name": "Ada"}, version=version)


class TemplateProcesses:
    """Engines on one store and one clock, each standing for a process."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = SqliteStore(":memory:", clock=self.clock.now_ms)
        for name, text in {
            "hello/sample.json": '{"name": "Ada"}',
            "hello/en-US/sms.txt": "Folder: {{ name }}",
            "hello/de/sms.txt": "Ordner: {{ name }}",
            "_shared/foot.txt": "-- us",
        }.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.settings = {"folder": str(folder), "locales": ["en-US", "de"]}

    def process(self) -> Homing:
        return Homing(self.store, clock=self.clock, templates=self.settings, sinks={"log": {"events": []}})


@pytest.fixture
def world(tmp_path: Path) -> TemplateProcesses:
    return TemplateProcesses(tmp_path)


@pytest.fixture
async def engine(world: TemplateProcesses) -> AsyncIterator[Homing]:
    async with world.process() as homing:
        yield homing


async def said(front: TenantApi, key: str = "hello", locale: str = "en-US", **data: Any) -> str:
    """Returns the text of a message rendered now."""
    from homing.core.request_decoding import read_request

    sent = await front.submit(
        read_request(
            {
                "recipient": {"phone": PHONE, "locale": locale},
                "channel": "sms",
                "template_key": key,
                "data": data or {"name": "Bob"},
            }
        )
    )
    text = (await front.get(sent.id)).content.text
    assert text is not None
    return text


async def test_a_tenant_s_template_overrides_the_folder_s_until_it_is_deleted(engine: Homing) -> None:
    assert await said(engine) == "Folder: Bob"
    written = await engine.templates.put(hello(), who="ada")
    assert (written.version, written.origin, written.updated_by) == (1, TemplateOrigin.OWN, "ada")
    assert await said(engine) == "Hello Bob"
    assert await said(engine, locale="de") == "Hallo Bob"
    assert await said(engine.of("other")) == "Folder: Bob"
    assert await engine.templates.delete("hello")
    assert await said(engine) == "Folder: Bob"
    assert not await engine.templates.delete("hello")


async def test_a_notification_stores_the_version_which_can_be_read_again(engine: Homing) -> None:
    await engine.templates.put(hello(), who="ada")
    await engine.templates.put(hello(english="Good day {{ name }}"), who="ada")
    await said(engine)
    (found,) = (await engine.list()).items
    assert found.template_version == "2"
    then = await engine.templates.version("hello", int(found.template_version))
    assert then.locales["en-US"][Channel.SMS].text == "Good day {{ name }}"


async def test_versions_are_listed_and_restored_and_continue_after_a_deletion(engine: Homing) -> None:
    for text in ("One {{ name }}", "Two {{ name }}"):
        await engine.templates.put(hello(english=text), who="ada")
    assert [one.version for one in await engine.templates.versions("hello")] == [2, 1]
    assert [one.version for one in await engine.templates.versions("hello", before=2)] == [1]
    restored = await engine.templates.restore("hello", 1, who="bob")
    assert (restored.version, restored.updated_by) == (3, "bob")
    assert await said(engine) == "One Bob"
    await engine.templates.delete("hello")
    assert (await engine.templates.restore("hello", 2, who="bob")).version == 4
    assert await said(engine) == "Two Bob"
    with pytest.raises(NotFound, match="no version 9"):
        await engine.templates.restore("hello", 9, who="bob")


async def test_a_write_over_another_version_is_refused(engine: Homing) -> None:
    first = await engine.templates.put(hello(), who="a")
    await engine.templates.put(hello(english="B {{ name }}"), who="b")
    with pytest.raises(VersionConflict, match="version 1"):
        await engine.templates.put(hello(english="late", version=first.version), who="a")
    assert await said(engine) == "B Bob"


async def test_concurrent_writers_each_get_a_version(engine: Homing) -> None:
    made = await asyncio.gather(
        *(engine.templates.put(hello(english=f"{n} {{{{ name }}}}"), who="x") for n in range(5))
    )
    assert sorted(one.version for one in made) == [1, 2, 3, 4, 5]
    assert (await engine.templates.get("hello")).version == 5


async def test_another_process_sees_a_change_within_seconds(world: TemplateProcesses, engine: Homing) -> None:
    async with world.process() as other:
        assert await said(other) == "Folder: Bob"
        await engine.templates.put(hello(), who="ada")
        world.clock.advance(TEMPLATE_FRESH_MS)
        assert await said(other) == "Hello Bob"
        await engine.templates.delete("hello")
        world.clock.advance(TEMPLATE_FRESH_MS)
        assert await said(other) == "Folder: Bob"


async def test_the_number_of_compiled_templates_is_limited(
    engine: Homing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_templates, "MAX_CACHED_TEMPLATES", 3)
    for n in range(5):
        await engine.templates.put(Template(key=f"t{n}", locales=sms(f"{n}", f"{n}")), who="x")
    for n in (0, 1, 2, 3, 4, 0):
        assert await said(engine, key=f"t{n}") == str(n)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (Template(key="hello", locales=sms("only english")), "hello/de: is missing"),
        (hello(german="{{ nme }}"), "hello/de/sms.txt, line 1: 'nme' is undefined"),
        (hello(german="{% if %}"), "hello/de/sms.txt, line 1"),
        (hello(german=""), "content: is empty for sms"),
        (hello(german="{% for x in range(99999999) %}{% endfor %}"), "uses a range of more than"),
        (hello(german="{{ ''.__class__ }}"), "hello/de/sms.txt, line 1"),
        (hello(german="{% include '/etc/passwd' %}"), "is not a shared file"),
        (
            Template(key="hello", locales={**sms("a", "b"), "fr": {Channel.SMS: TemplateParts(text="c")}}),
            "fr is not one of the declared locales",
        ),
        (
            Template(
                key="hello",
                locales={**sms("a"), "de": {Channel.PUSH: TemplateParts(title="t", data={"n": "{{ n }}"})}},
                sample={"n": 7},
            ),
            "hello/de/sms.txt: is missing; other locales have it",
        ),
    ],
)
async def test_a_faulty_template_is_refused_with_its_errors_and_not_written(
    engine: Homing, template: Template, says: str
) -> None:
    with pytest.raises(TemplateFailed) as refused:
        await engine.templates.put(template, who="ada")
    assert says in str(refused.value)
    assert await engine.templates.versions("hello") == ()
    report = await engine.templates.check(template)
    assert any(says in one.message for one in report.findings)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (Template(key="no good", locales=sms("a", "b")), "key"),
        (Template(key="_shared", locales=sms("a", "b")), "key"),
        (Template(key="hello", locales={}), "locales"),
        (Template(key="hello", locales={"en_US": {}}), "locales"),
        (hello(german="x" * (MAX_PART_BYTES + 1)), "locales.de.sms.text"),
        (hello(german="a\x00b"), "locales.de.sms.text"),
        (Template(key="hello", locales={"de": {Channel.SMS: TemplateParts()}}), "locales.de.sms"),
        (Template(key="hello", locales=sms("a", "b"), sample={"n": 2**70}), "sample.n"),
        (Template(key="hello", locales=sms("a", "b"), sample={"n": "x" * 300_000}), "locales"),
    ],
)
async def test_an_invalid_field_is_refused_by_name(engine: Homing, template: Template, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await engine.templates.put(template, who="ada")
    assert refused.value.field == field


async def test_own_and_shared_templates_are_listed_together_page_by_page(engine: Homing) -> None:
    for key in ("a", "hello", "z"):
        await engine.templates.put(Template(key=key, locales=sms("x", "x")), who="ada")
    other = engine.of("other").templates
    await other.put(Template(key="b", locales=sms("x", "x")), who="ada")
    assert [(one.key, one.origin) for one in await engine.templates.list()] == [
        ("a", "own"),
        ("hello", "own"),
        ("z", "own"),
    ]
    assert [(one.key, one.origin) for one in await other.list()] == [("b", "own"), ("hello", "folder")]
    first = await other.list(limit=1)
    assert [one.key for one in await other.list(after=first[-1].key, limit=1)] == ["hello"]
    assert await other.list(after="hello") == ()
    assert (await other.get("hello")).locales["de"][Channel.SMS].text == "Ordner: {{ name }}"


async def test_own_templates_may_use_the_folder_s_shared_files_and_data_keeps_its_types(
    engine: Homing,
) -> None:
    template = Template(
        key="news",
        locales={
            locale: {
                Channel.SMS: TemplateParts(text="Hi{% include '_shared/foot.txt' %}"),
                Channel.PUSH: TemplateParts(title="News", data={"count": "{{ n }}", "to": "{{ name }}!"}),
            }
            for locale in ("en-US", "de")
        },
        sample={"n": 3, "name": "Ada"},
    )
    await engine.templates.put(template, who="ada")
    preview = await engine.templates.preview("news", locale="de_AT")
    assert preview.contents[Channel.SMS].text == "Hi-- us"
    assert preview.contents[Channel.PUSH].data == {"count": 3, "to": "Ada!"}
    assert (preview.locale, preview.version) == ("de", "1")
    with pytest.raises(InvalidRequest, match="declared locales: en-US, de"):
        await engine.templates.preview("news", locale="fr")
    with pytest.raises(NotFound):
        await engine.templates.preview("nothing")


async def test_a_missing_locale_or_channel_fails_the_send(engine: Homing) -> None:
    await engine.templates.put(hello(), who="ada")
    with pytest.raises(TemplateNotFound, match="has no content for email"):
        await engine.send("ada@example.org", channel="email", template_key="hello", data={"name": "A"})
    with pytest.raises(TemplateNotFound, match="'unknown' does not exist"):
        await engine.send(PHONE, channel="sms", template_key="unknown")


async def test_a_check_covers_own_and_folder_templates_except_replaced_ones(
    engine: Homing, tmp_path: Path
) -> None:
    assert (await engine.templates.check()).good
    (tmp_path / "hello/de/sms.txt").write_text("{{ nme }}")
    async with TemplateProcesses(tmp_path).process() as fresh:
        (tmp_path / "hello/de/sms.txt").write_text("{{ nme }}")
        assert not (await fresh.templates.check()).good
        await fresh.templates.put(hello(), who="ada")
        report = await fresh.templates.check()
        assert (report.good, report.keys) == (True, ("hello",))


async def test_versions_and_number_of_templates_are_limited(
    engine: Homing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_templates, "MAX_VERSIONS", 3)
    monkeypatch.setattr(engine_templates, "MAX_TEMPLATES", 2)
    for n in range(5):
        await engine.templates.put(hello(english=f"{n} {{{{ name }}}}"), who="x")
    assert [one.version for one in await engine.templates.versions("hello")] == [5, 4, 3]
    await engine.templates.put(Template(key="second", locales=sms("x", "x")), who="x")
    with pytest.raises(InvalidRequest, match="would exceed the limit of 2 templates"):
        await engine.templates.put(Template(key="third", locales=sms("x", "x")), who="x")
    await engine.templates.put(hello(), who="x")


async def test_attacks_through_tenants_templates_achieve_no_more_than_through_the_folder(
    engine: Homing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMING_SECRET", SECRET)
    hostile = [*attacks.chains(), *attacks.includes(), *attacks.formats()[::3]]
    assert len(hostile) > 200
    for source, data in hostile:
        source = source.replace("'_m.txt'", "'_shared/foot.txt'")
        assert not LEAKED.search(await told(engine, source, data)), source


async def told(engine: Homing, source: str, data: dict[str, Any]) -> str:
    """Returns what a tenant learns from a template: its text, or the error."""
    template = Template(key="evil", locales=sms(source, source), sample=data)
    try:
        await engine.templates.put(template, who="mallory")
    except InvalidRequest as error:
        return SECRET if SECRET in str(error) else ""
    return (await engine.templates.preview("evil")).contents[Channel.SMS].text or ""
