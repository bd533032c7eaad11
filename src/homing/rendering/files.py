"""Reads a folder of templates: KEY/LOCALE/CHANNEL.PART, KEY/sample.json, and shared files in _… folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from homing.core.locale import is_tag
from homing.core.model import Channel

MOST_BYTES = 256 * 1024
"""Maximum size of one file."""
MOST_FILES = 50_000

SAMPLE = "sample.json"

_ENDINGS = {
    "subject": ".subject.txt",
    "title": ".title.txt",
    "body": ".body.txt",
    "text": ".txt",
    "html": ".html",
    "data": ".json",
}
"""The end of the file name, after the channel, for each part of a message."""

_PART_OF = {
    f"{channel.value}{ending}": (channel, part) for channel in Channel for part, ending in _ENDINGS.items()
}
_KEY = re.compile(r"[\w.:/\-]{1,100}")
_IGNORED_NAMES = re.compile(r"\..*|.*~|#.*#|README(\..*)?", re.IGNORECASE)
"""Files that editors, operating systems and people leave in the folder. They are ignored."""


class Source(Struct, frozen=True, kw_only=True):
    """The source text of one part of a message."""

    name: str
    """The path below the folder, as it appears in errors."""
    channel: Channel
    part: str
    text: str


class Written(Struct, frozen=True, kw_only=True):
    """The source files of one template in one locale."""

    sources: tuple[Source, ...]
    version: str
    """A digest of the template's files and of the shared files."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        return tuple(dict.fromkeys(source.channel for source in self.sources))


class Folder(Struct, frozen=True, kw_only=True):
    """All files of a folder of templates."""

    written: dict[str, dict[str, Written]] = field(default_factory=dict)
    """Templates by key and locale."""
    samples: dict[str, str] = field(default_factory=dict)
    """The sample data of each key, as JSON text."""
    partials: dict[str, str] = field(default_factory=dict)
    """Files under `_…` by path, which templates may include, extend or import."""
    strays: tuple[tuple[str, str], ...] = ()
    """(path, reason) of each file that was not used."""


def file_name(channel: Channel, part: str) -> str:
    """Returns the name of the file for a part of a message."""
    return f"{channel.value}{_ENDINGS[part]}"


def read_folder(root: Path) -> Folder:
    """Reads all files in sorted order. A file that is not a template is listed as a stray; nothing raises."""
    samples: dict[str, str] = {}
    partials: dict[str, str] = {}
    parts: dict[str, dict[str, list[Source]]] = {}
    strays: list[tuple[str, str]] = []
    for name, path in _files(root, strays):
        text = _text(root, path)
        if isinstance(text, _StrayReason):
            strays.append((name, str(text)))
        elif name.startswith("_"):
            partials[name] = text
        elif path.name == SAMPLE and "/" in name:
            samples[str(PurePosixPath(name).parent)] = text
        else:
            place = _parse_path(name)
            if isinstance(place, _StrayReason):
                strays.append((name, str(place)))
                continue
            key, locale, (channel, part) = place
            source = Source(name=name, channel=channel, part=part, text=text)
            parts.setdefault(key, {}).setdefault(locale, []).append(source)
    shared = _digest(sorted(partials.items()))
    return Folder(
        written={
            key: {
                locale: Written(sources=tuple(sources), version=_version(sources, shared))
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


def _files(root: Path, strays: list[tuple[str, str]]) -> Iterator[tuple[str, Path]]:
    count = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(one for one in inner if not one.startswith("."))
        for name in sorted(names):
            if _IGNORED_NAMES.fullmatch(name):
                continue
            path = Path(folder, name)
            count += 1
            if count > MOST_FILES:
                strays.append((".", f"has more than {MOST_FILES:,} files; the rest were ignored"))
                return
            yield path.relative_to(root).as_posix(), path


def _text(root: Path, path: Path) -> str | _StrayReason:
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return _StrayReason("is a link that leads outside the folder")
        with path.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            return _StrayReason(f"is larger than {MOST_BYTES // 1024} KiB")
        return raw.decode("utf-8-sig")
    except OSError as error:
        return _StrayReason(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _StrayReason(f"is not UTF-8 text: {error.reason} at byte {error.start}")


def _parse_path(name: str) -> tuple[str, str, tuple[Channel, str]] | _StrayReason:
    *folders, file = name.split("/")
    if file not in _PART_OF:
        return _StrayReason(
            "is not part of a message; its name must be like email.subject.txt, email.html or sms.txt"
        )
    if len(folders) < 2 or not is_tag(folders[-1]):
        return _StrayReason("is not in a locale's folder; it must be at KEY/LOCALE/" + file)
    key = "/".join(folders[:-1])
    if not _KEY.fullmatch(key):
        return _StrayReason(
            "has a key that requests cannot use; only letters, digits, and . _ : / - are allowed"
        )
    return key, folders[-1], _PART_OF[file]


def _version(sources: list[Source], shared: str) -> str:
    return _digest([(source.name, source.text) for source in sources] + [("_", shared)])


def _digest(texts: list[tuple[str, str]]) -> str:
    return sha256("\0".join(part for pair in texts for part in pair).encode()).hexdigest()[:16]
