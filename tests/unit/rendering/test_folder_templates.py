"""A folder of templates: what is read, what is checked, and when it is read again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from homing.core.content.templates import CheckReport
from homing.core.errors import TemplateFailed, TemplateNotFound
from homing.core.notifications import Channel, Content
from homing.core.send_request import SendLimits
from homing.rendering.deployment_check import check_library
from homing.rendering.folder_templates import MAX_FILE_BYTES, FolderTemplates, read_folder
from support.template_folders import ORDER, write

BOTH = ("en-US", "de")
DATA = {"name": "Ada", "items": [1, 2]}


def checked(root: Path, locales: tuple[str, ...] = BOTH) -> CheckReport:
    return check_library(FolderTemplates(root).library(), locales, SendLimits())


def messages(root: Path, locales: tuple[str, ...] = BOTH) -> list[str]:
    return [finding.message for finding in checked(root, locales).findings]


async def test_a_message_is_rendered_in_exactly_its_locale_and_channel(tmp_path: Path) -> None:
    templates = FolderTemplates(write(tmp_path, ORDER))
    english = await templates.render("t", "order", Channel.EMAIL, "en-US", DATA)
    assert english.content == Content(subject="Your order, Ada", html="<p>Hello Ada</p>")
    german = await templates.render("t", "order", Channel.SMS, "de", DATA)
    assert (german.content, german.locale) == (Content(text="Hallo Ada: 2 unterwegs"), "de")
    assert english.version != german.version
    assert (await templates.render("t", "order", Channel.SMS, None, DATA)).locale == "en-US"


@pytest.mark.parametrize(
    ("key", "channel", "locale", "says"),
    [
        ("orders", Channel.SMS, "de", "'orders' does not exist; did you mean 'order'?"),
        ("../order", Channel.SMS, "de", "'../order' does not exist"),
        ("order", Channel.SMS, "fr", "'order' does not exist in fr, only in de, en-US"),
        ("order", Channel.SMS, "de-AT", "'order' does not exist in de-AT"),
        ("order", Channel.PUSH, "de", "'order' has no content for push in de, only for email, sms"),
    ],
)
async def test_a_missing_template_is_not_replaced_by_another(
    tmp_path: Path, key: str, channel: Channel, locale: str, says: str
) -> None:
    templates = FolderTemplates(write(tmp_path, ORDER))
    with pytest.raises(TemplateNotFound) as caught:
        await templates.render("t", key, channel, locale, DATA)
    assert says in str(caught.value)


async def test_a_change_is_seen_on_demand_and_has_a_new_version(tmp_path: Path) -> None:
    templates = FolderTemplates(write(tmp_path, ORDER))
    before = await templates.render("t", "order", Channel.SMS, "de", DATA)
    write(tmp_path, {"order/de/sms.txt": "Neu"})
    assert await templates.render("t", "order", Channel.SMS, "de", DATA) == before
    templates.reload()
    after = await templates.render("t", "order", Channel.SMS, "de", DATA)
    assert after.content.text == "Neu"
    assert after.version != before.version
    write(tmp_path, {"order/de/sms.txt": ORDER["order/de/sms.txt"]})
    templates.reload()
    assert await templates.render("t", "order", Channel.SMS, "de", DATA) == before


async def test_concurrent_renders_share_one_compilation(tmp_path: Path) -> None:
    templates = FolderTemplates(write(tmp_path, ORDER))
    made = await asyncio.gather(
        *(templates.render("t", "order", Channel.SMS, "de", {"name": n, "items": []}) for n in range(50))
    )
    assert [one.content.text for one in made] == [f"Hallo {n}: 0 unterwegs" for n in range(50)]
    library = templates.library()
    assert library.compiled("order", "de") is library.ready("order", "de")


async def test_a_long_series_of_renders_lets_other_tasks_run(tmp_path: Path) -> None:
    templates = FolderTemplates(write(tmp_path, ORDER))
    await templates.render("t", "order", Channel.SMS, "de", DATA)
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(100_000):  # seconds of rendering, if nothing else ever runs
        await templates.render("t", "order", Channel.EMAIL, "de", DATA)
        if len(turns) >= 2:
            break
    task.cancel()
    assert len(turns) >= 2


def test_a_shared_file_is_part_of_the_version(tmp_path: Path) -> None:
    def version() -> str:
        return read_folder(tmp_path).written["order"]["de"].version

    write(tmp_path, {**ORDER, "_shared/foot.html": "bye"})
    before = version()
    write(tmp_path, {"_shared/foot.html": "goodbye"})
    assert version() != before


def test_keys_may_be_nested_folders_and_editors_temporary_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {f"shop/{name}": text for name, text in ORDER.items()})
    write(
        tmp_path,
        {".git/x": "", "shop/order/de/.sms.txt.swp": "", "shop/order/de/sms.txt~": "", "README.md": ""},
    )
    folder = read_folder(tmp_path)
    assert list(folder.written) == ["shop/order"]
    assert folder.strays == ()
    assert messages(tmp_path) == []


def test_a_correct_folder_passes_the_check(tmp_path: Path) -> None:
    report = checked(write(tmp_path, ORDER))
    assert report.good
    assert (report.keys, report.state("order", "de")) == (("order",), "ok")


@pytest.mark.source("002", "426", "428")
def test_a_missing_locale_fails_the_check(tmp_path: Path) -> None:
    report = checked(write(tmp_path, ORDER), (*BOTH, "fr"))
    assert [one.message for one in report.findings] == ["order/fr: is missing"]
    assert [report.state("order", locale) for locale in (*BOTH, "fr")] == ["ok", "ok", "missing"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"order/de/sms.txt": "{{ nme }}"}, "order/de/sms.txt, line 1: 'nme' is undefined"),
        ({"order/de/sms.txt": "{% if %}"}, "order/de/sms.txt, line 1: "),
        ({"order/de/sms.txt": ""}, "order/de, sms: content: is empty for sms"),
        ({"order/de/email.subject.txt": "a\nb"}, "order/de, email: content.subject: has a line break"),
        ({"order/en-US/push.body.txt": "x"}, "order/de/push.body.txt: is missing; other locales have it"),
        ({"order/sample.json": "[]"}, "order/sample.json: is not a JSON object"),
        ({"order/sample.json": "{}"}, "order/de/sms.txt, line 1: 'name' is undefined"),
        ({"lost/sample.json": "{}"}, "lost/de: is missing"),
        ({"new/de/sms.txt": "x", "new/en-US/sms.txt": "x"}, "new/sample.json: is missing"),
        ({"order/fr/sms.txt": "x"}, "order/fr: fr is not one of the declared locales"),
        ({"order/de/fax.txt": "x"}, "order/de/fax.txt: is not part of a message"),
        ({"order/sms.txt": "x"}, "order/sms.txt: is not in a locale's folder"),
        ({"a b/de/sms.txt": "x"}, "a b/de/sms.txt: has a key that requests cannot use"),
        (
            {"order/de/push.json": "{", "order/en-US/push.json": "{}"},
            "order/de/push.json: is not a JSON object",
        ),
        ({"_f.txt": "{% for %}"}, "_f.txt, line 1: "),
        ({"order/de/sms.txt": "x" * (MAX_FILE_BYTES + 1)}, "order/de/sms.txt: is larger than 256 KiB"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_fails_the_check_with_its_place(tmp_path: Path, files: dict[str, str], says: str) -> None:
    write(tmp_path, ORDER)
    found = messages(write(tmp_path, files))
    assert any(one.startswith(says) for one in found), found


def test_an_error_in_a_shared_file_is_reported_at_most_once_per_locale(tmp_path: Path) -> None:
    found = checked(write(tmp_path, {**ORDER, "_f.txt": "{% for %}"})).findings
    assert len(found) == 2


def test_a_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    write(tmp_path, ORDER)
    (tmp_path / "order/de/sms.txt").write_bytes(b"\xff\xfe")
    assert "order/de/sms.txt: is not UTF-8 text: invalid start byte at byte 0" in messages(tmp_path)


def test_an_empty_folder_fails_the_check(tmp_path: Path) -> None:
    assert messages(tmp_path) == ["there are no templates; they must be at KEY/LOCALE/CHANNEL.PART"]


def test_a_preview_has_all_channels_or_one_and_accepts_other_data(tmp_path: Path) -> None:
    library = FolderTemplates(write(tmp_path, ORDER)).library()
    assert set(library.preview("order", "de").contents) == {Channel.EMAIL, Channel.SMS}
    bob = library.preview("order", "de", Channel.SMS, {"name": "Bob", "items": []})
    assert bob.contents == {Channel.SMS: Content(text="Hallo Bob: 0 unterwegs")}
    (tmp_path / "order/sample.json").unlink()
    with pytest.raises(TemplateFailed, match=r"order/sample\.json: is missing"):
        FolderTemplates(tmp_path).library().preview("order", "de")
