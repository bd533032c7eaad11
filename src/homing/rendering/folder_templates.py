"""Templates from a folder: read when first used, compiled once, and read again only on `reload`.

`FolderTemplates` renders them. `read_folder` reads the folder's files.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from homing.core.content.locales import LAST_RESORT, is_language_tag
from homing.core.content.templates import Preview
from homing.core.errors import InvalidRequest, TemplateFailed, TemplateNotFound
from homing.core.notifications import Channel, Content
from homing.core.ports.plug_ins import Rendered

if TYPE_CHECKING:
    from homing.rendering.compilation import CompiledTemplate
    from homing.rendering.sandbox import TemplateSandbox


_YIELD_EVERY_S = 0.01

_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class YieldTimer:
    """Decides when a long series of renders should yield to other tasks.

    A single request may have ten thousand recipients.
    """

    def __init__(self) -> None:
        self._last = 0.0

    @property
    def due(self) -> bool:
        """True if more than 10 ms have passed since this property was last True."""
        now = time.monotonic()
        if now - self._last <= _YIELD_EVERY_S:
            return False
        self._last = now
        return True


class FolderTemplates:
    """The renderer of the templates in a folder. The first render imports Jinja."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._library: TemplateLibrary | None = None
        self._yield_timer = YieldTimer()

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """Returns the content in exactly this locale. All tenants share the folder."""
        found = self.ready(template_key, locale)
        if found is None:  # compiling takes milliseconds, so it runs in a thread
            library = await self.read()
            found = await asyncio.to_thread(library.compiled, template_key, locale or LAST_RESORT)
        made = render_with_json_data(found, template_key, channel, data)
        if self._yield_timer.due:
            await asyncio.sleep(0)
        return made

    def ready(self, template_key: str, locale: str | None) -> CompiledTemplate | None:
        """Returns the template in exactly this locale if it is already compiled, otherwise None."""
        return self._library.ready(template_key, locale or LAST_RESORT) if self._library else None

    def library(self) -> TemplateLibrary:
        """Returns the content of the folder as of when it was read, reading it if necessary."""
        if self._library is None:
            self._library = TemplateLibrary(read_folder(self._root))
        return self._library

    async def read(self) -> TemplateLibrary:
        """Returns the same as `library`, but reads the folder in a thread, as that takes milliseconds."""
        return await asyncio.to_thread(self.library) if self._library is None else self._library

    def reload(self) -> None:
        """Makes the next render read the folder again. Renders in progress still use the old templates."""
        self._library = None


class TemplateLibrary:
    """The templates of a folder, or of a tenant, as of one point in time, and those compiled so far."""

    def __init__(self, folder: TemplateFolder, beside: TemplateLibrary | None = None) -> None:
        """`beside` is the folder's library whose sandbox and shared files a tenant's templates use."""
        self.folder = folder
        self._beside = beside
        self._sandbox: TemplateSandbox | None = None
        self._compiled: dict[tuple[str, str], CompiledTemplate] = {}
        self._lock = threading.Lock()

    def ready(self, key: str, locale: str) -> CompiledTemplate | None:
        """Returns the template if it is already compiled, otherwise None."""
        return self._compiled.get((key, locale))

    def compiled(self, key: str, locale: str) -> CompiledTemplate:
        """Returns the template in exactly this locale. Raises `TemplateNotFound` if it does not exist."""
        locales = self.folder.written.get(key)
        if locales is None:
            raise TemplateNotFound(
                "templateKey", f"{key!r} does not exist{_suggest(key, self.folder.written)}"
            )
        if locale not in locales:
            there = ", ".join(locales)
            message = f"{key!r} does not exist in {locale}, only in {there}"
            raise TemplateNotFound("templateKey", message)
        with self._lock:
            if (key, locale) not in self._compiled:
                self._compiled[key, locale] = self._compile(key, locale)
            return self._compiled[key, locale]

    def preview(
        self, key: str, locale: str, channel: Channel | None = None, data: Mapping[str, Any] | None = None
    ) -> Preview:
        """Renders one channel, or all channels of the template, with this data or the sample data."""
        template = self.compiled(key, locale)
        values = self.sample(key) if data is None else data
        channels = template.channels if channel is None else (channel,)
        contents = {one: render_with_json_data(template, key, one, values).content for one in channels}
        return Preview(key=key, locale=locale, version=template.version, contents=contents)

    def sample(self, key: str) -> dict[str, Any]:
        """Returns the sample data of a template. Raises `TemplateFailed` if it is missing or not valid."""
        text = self.folder.samples.get(key)
        if text is None:
            raise TemplateFailed("templateKey", f"{key}/sample.json: is missing; checks and previews need it")
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            message = f"{key}/sample.json: is not a JSON object: {error}"
            raise TemplateFailed("templateKey", message) from None

    def sandbox(self) -> TemplateSandbox:
        """Returns the sandbox of these templates, in which the shared files are compiled once."""
        from homing.rendering.compilation import compile_partials
        from homing.rendering.sandbox import TemplateSandbox

        if self._beside is not None:
            return self._beside.sandbox()
        if self._sandbox is None:
            made = TemplateSandbox(self.folder.partials)
            compile_partials(made, self.folder.partials)
            self._sandbox = made
        return self._sandbox

    def _compile(self, key: str, locale: str) -> CompiledTemplate:
        from homing.rendering.compilation import CompiledTemplate

        return CompiledTemplate(self.sandbox(), locale, self.folder.written[key][locale])


def render_with_json_data(
    template: CompiledTemplate, key: str, channel: Channel, data: Mapping[str, Any]
) -> Rendered:
    """Renders with data of any type that can be encoded as JSON. Templates see the decoded JSON."""
    if channel not in template.channels:
        there = ", ".join(template.channels)
        message = f"{key!r} has no content for {channel} in {template.locale}, only for {there}"
        raise TemplateNotFound("templateKey", message)
    try:
        plain = _decode(_encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("data", f"cannot be encoded as JSON: {error}") from None
    content: Content = template.render(channel, plain)
    return Rendered(content, template.locale, template.version)


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


MAX_FILE_BYTES = 256 * 1024
"""Maximum size of one template file."""

MAX_FILES = 50_000


SAMPLE_FILE_NAME = "sample.json"


_ENDINGS = {
    "subject": ".subject.txt",
    "title": ".title.txt",
    "body": ".body.txt",
    "text": ".txt",
    "html": ".html",
    "data": ".json",
}
"""The end of the file name, after the channel, for each part of a message."""


_PART_BY_FILE_NAME = {
    f"{channel.value}{ending}": (channel, part) for channel in Channel for part, ending in _ENDINGS.items()
}

_VALID_KEY = re.compile(r"[\w.:/\-]{1,100}")

_IGNORED_NAMES = re.compile(r"\..*|.*~|#.*#|README(\..*)?", re.IGNORECASE)
"""Names of files that editors, operating systems and people leave in the folder. They are ignored."""


class TemplateFile(Struct, frozen=True, kw_only=True):
    """The source text of one part of a message."""

    name: str
    """The path below the folder, as it appears in errors."""
    channel: Channel
    part: str
    text: str


class TemplateSources(Struct, frozen=True, kw_only=True):
    """The source files of one template in one locale."""

    sources: tuple[TemplateFile, ...]
    version: str
    """A digest of the template's files and the shared files, or the number of a tenant's own version."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        return tuple(dict.fromkeys(source.channel for source in self.sources))


class TemplateFolder(Struct, frozen=True, kw_only=True):
    """All files of a folder of templates."""

    written: dict[str, dict[str, TemplateSources]] = field(default_factory=dict)
    """Templates by key and locale."""
    samples: dict[str, str] = field(default_factory=dict)
    """The sample data of each key, as JSON text."""
    partials: dict[str, str] = field(default_factory=dict)
    """Files whose path starts with `_`, by path. Templates may include, extend or import them."""
    strays: tuple[tuple[str, str], ...] = ()
    """(path, reason) of each file that was not used."""


def part_file_name(channel: Channel, part: str) -> str:
    """Returns the name of the file for a part of a message."""
    return f"{channel.value}{_ENDINGS[part]}"


def read_folder(root: Path) -> TemplateFolder:
    """Reads all files in sorted order. A file that cannot be used is listed in `strays` with the reason."""
    samples: dict[str, str] = {}
    partials: dict[str, str] = {}
    parts: dict[str, dict[str, list[TemplateFile]]] = {}
    strays: list[tuple[str, str]] = []
    for name, path in _walk_files(root, strays):
        text = _read_text(root, path)
        if isinstance(text, _StrayReason):
            strays.append((name, str(text)))
        elif name.startswith("_"):
            partials[name] = text
        elif path.name == SAMPLE_FILE_NAME and "/" in name:
            samples[str(PurePosixPath(name).parent)] = text
        else:
            place = _parse_path(name)
            if isinstance(place, _StrayReason):
                strays.append((name, str(place)))
                continue
            key, locale, (channel, part) = place
            source = TemplateFile(name=name, channel=channel, part=part, text=text)
            parts.setdefault(key, {}).setdefault(locale, []).append(source)
    shared = _digest(sorted(partials.items()))
    return TemplateFolder(
        written={
            key: {
                locale: TemplateSources(sources=tuple(sources), version=_version(sources, shared))
                for locale, sources in locales.items()
            }
            for key, locales in parts.items()
        },
        samples=samples,
        partials=partials,
        strays=tuple(strays),
    )


class _StrayReason(str):
    """The reason why a file is not used."""


def _walk_files(root: Path, strays: list[tuple[str, str]]) -> Iterator[tuple[str, Path]]:
    count = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(one for one in inner if not one.startswith("."))
        for name in sorted(names):
            if _IGNORED_NAMES.fullmatch(name):
                continue
            path = Path(folder, name)
            count += 1
            if count > MAX_FILES:
                strays.append((".", f"has more than {MAX_FILES:,} files; the rest were ignored"))
                return
            yield path.relative_to(root).as_posix(), path


def _read_text(root: Path, path: Path) -> str | _StrayReason:
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return _StrayReason("is a link that leads outside the folder")
        with path.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            return _StrayReason(f"is larger than {MAX_FILE_BYTES // 1024} KiB")
        return raw.decode("utf-8-sig")
    except OSError as error:
        return _StrayReason(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _StrayReason(f"is not UTF-8 text: {error.reason} at byte {error.start}")


def _parse_path(name: str) -> tuple[str, str, tuple[Channel, str]] | _StrayReason:
    *folders, file = name.split("/")
    if file not in _PART_BY_FILE_NAME:
        return _StrayReason(
            "is not part of a message; its name must be like email.subject.txt, email.html or sms.txt"
        )
    if len(folders) < 2 or not is_language_tag(folders[-1]):
        return _StrayReason("is not in a locale's folder; it must be at KEY/LOCALE/" + file)
    key = "/".join(folders[:-1])
    if not _VALID_KEY.fullmatch(key):
        return _StrayReason(
            "has a key that requests cannot use; only letters, digits, and . _ : / - are allowed"
        )
    return key, folders[-1], _PART_BY_FILE_NAME[file]


def _version(sources: list[TemplateFile], shared: str) -> str:
    return _digest([(source.name, source.text) for source in sources] + [("_", shared)])


def _digest(texts: list[tuple[str, str]]) -> str:
    return sha256("\0".join(part for pair in texts for part in pair).encode()).hexdigest()[:16]
