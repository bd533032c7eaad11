"""A folder of templates as it lies on the disk: KEY/LOCALE/CHANNEL.PART, KEY/sample.json, _shared files."""

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
"""Of one file."""
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
"""Part of a message → how its file's name ends, after the channel."""

_PART_OF = {
    f"{channel.value}{ending}": (channel, part) for channel in Channel for part, ending in _ENDINGS.items()
}
_KEY = re.compile(r"[\w.:/\-]{1,100}")
_NOT_OURS = re.compile(r"\..*|.*~|#.*#|README(\..*)?", re.IGNORECASE)
"""Files that editors, systems and people leave beside."""


class Source(Struct, frozen=True, kw_only=True):
    """One part of one message, as it was written."""

    name: str
    """Its path below the folder, as errors tell it."""
    channel: Channel
    part: str
    text: str


class Written(Struct, frozen=True, kw_only=True):
    """One template in one locale."""

    sources: tuple[Source, ...]
    version: str
    """Of all that it is made of: the same files have the same version."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        return tuple(dict.fromkeys(source.channel for source in self.sources))


class Folder(Struct, frozen=True, kw_only=True):
    """Everything in a folder of templates."""

    written: dict[str, dict[str, Written]] = field(default_factory=dict)
    """Key → locale → template."""
    samples: dict[str, str] = field(default_factory=dict)
    """Key → JSON."""
    partials: dict[str, str] = field(default_factory=dict)
    """Files under `_…`, which templates may include, extend or import."""
    strays: tuple[tuple[str, str], ...] = ()
    """(path, why) of what could not be taken."""


def file_name(channel: Channel, part: str) -> str:
    """What the file of a part is called."""
    return f"{channel.value}{_ENDINGS[part]}"


def read_folder(root: Path) -> Folder:
    """Reads all of it, sorted; whatever is not a template is a stray, never an error."""
    samples: dict[str, str] = {}
    partials: dict[str, str] = {}
    parts: dict[str, dict[str, list[Source]]] = {}
    strays: list[tuple[str, str]] = []
    for name, path in _files(root, strays):
        text = _text(root, path)
        if isinstance(text, _Why):
            strays.append((name, str(text)))
        elif name.startswith("_"):
            partials[name] = text
        elif path.name == SAMPLE and "/" in name:
            samples[str(PurePosixPath(name).parent)] = text
        else:
            place = _place(name)
            if isinstance(place, _Why):
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


class _Why(str):
    """Why a file is not taken."""


def _files(root: Path, strays: list[tuple[str, str]]) -> Iterator[tuple[str, Path]]:
    count = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(one for one in inner if not one.startswith("."))
        for name in sorted(names):
            if _NOT_OURS.fullmatch(name):
                continue
            path = Path(folder, name)
            count += 1
            if count > MOST_FILES:
                strays.append((".", f"has more than {MOST_FILES:,} files; the others are left out"))
                return
            yield path.relative_to(root).as_posix(), path


def _text(root: Path, path: Path) -> str | _Why:
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return _Why("is a link that leads out of the folder")
        with path.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            return _Why(f"has more than {MOST_BYTES // 1024} KiB")
        return raw.decode("utf-8-sig")
    except OSError as error:
        return _Why(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _Why(f"is not UTF-8 text: {error.reason} at byte {error.start}")


def _place(name: str) -> tuple[str, str, tuple[Channel, str]] | _Why:
    *folders, file = name.split("/")
    if file not in _PART_OF:
        return _Why("is no part of a message; its name must be like email.subject.txt, email.html or sms.txt")
    if len(folders) < 2 or not is_tag(folders[-1]):
        return _Why("is not in the folder of a locale; it must be at KEY/LOCALE/" + file)
    key = "/".join(folders[:-1])
    if not _KEY.fullmatch(key):
        return _Why("has a key that no request can name; allowed are letters, digits, and . _ : / -")
    return key, folders[-1], _PART_OF[file]


def _version(sources: list[Source], shared: str) -> str:
    return _digest([(source.name, source.text) for source in sources] + [("_", shared)])


def _digest(texts: list[tuple[str, str]]) -> str:
    return sha256("\0".join(part for pair in texts for part in pair).encode()).hexdigest()[:16]
