"""Templates from a folder: read when first used, compiled once, read anew only when asked."""

from __future__ import annotations

import asyncio
import difflib
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from homing.core.errors import InvalidRequest, TemplateFailed, TemplateNotFound
from homing.core.locale import LAST_RESORT
from homing.core.model import Channel, Content
from homing.core.ports import Rendered
from homing.core.templates import Preview
from homing.rendering.files import Folder, read_folder

if TYPE_CHECKING:
    from homing.rendering.compiling import Compiled
    from homing.rendering.sandbox import Sandbox


_TURN_S = 0.01
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class Turns:
    """Ten thousand recipients of one request are rendered in a row: others have a turn in between."""

    def __init__(self) -> None:
        self._last = 0.0

    @property
    def due(self) -> bool:
        """They have not had one for a while."""
        now = time.monotonic()
        if now - self._last <= _TURN_S:
            return False
        self._last = now
        return True


class FolderTemplates:
    """The renderer over a folder. Jinja itself is imported by the first render."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._library: Library | None = None
        self._turns = Turns()

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """The content in exactly this locale; all tenants share the folder."""
        found = self.ready(template_key, locale)
        if found is None:  # compiling takes milliseconds: not on the event loop
            library = await self.read()
            found = await asyncio.to_thread(library.compiled, template_key, locale or LAST_RESORT)
        made = rendered(found, template_key, channel, data)
        if self._turns.due:
            await asyncio.sleep(0)
        return made

    def ready(self, template_key: str, locale: str | None) -> Compiled | None:
        """The template in exactly this locale, if it was used before."""
        return self._library.ready(template_key, locale or LAST_RESORT) if self._library else None

    def library(self) -> Library:
        """What is in the folder, as it was when it was read."""
        if self._library is None:
            self._library = Library(read_folder(self._root))
        return self._library

    async def read(self) -> Library:
        """The same, read on a thread where it was not yet: that takes milliseconds."""
        return await asyncio.to_thread(self.library) if self._library is None else self._library

    def reload(self) -> None:
        """The next render reads the folder anew; those under way end with what they have."""
        self._library = None


class Library:
    """One reading of a folder, with what was compiled of it; or what a tenant has written beside it."""

    def __init__(self, folder: Folder, beside: Library | None = None) -> None:
        """`beside` lends its sandbox, with the files that templates share."""
        self.folder = folder
        self._beside = beside
        self._sandbox: Sandbox | None = None
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._lock = threading.Lock()

    def ready(self, key: str, locale: str) -> Compiled | None:
        """If it was used before."""
        return self._compiled.get((key, locale))

    def compiled(self, key: str, locale: str) -> Compiled:
        """The template in this locale and no other; `TemplateNotFound` where it is not there."""
        locales = self.folder.written.get(key)
        if locales is None:
            raise TemplateNotFound("templateKey", f"{key!r} does not exist{_meant(key, self.folder.written)}")
        if locale not in locales:
            there = ", ".join(locales)
            raise TemplateNotFound("templateKey", f"{key!r} does not exist in {locale}; it does in {there}")
        with self._lock:
            if (key, locale) not in self._compiled:
                self._compiled[key, locale] = self._compile(key, locale)
            return self._compiled[key, locale]

    def preview(
        self, key: str, locale: str, channel: Channel | None = None, data: Mapping[str, Any] | None = None
    ) -> Preview:
        """Rendered for one channel or for all that it has, with this data or its sample."""
        template = self.compiled(key, locale)
        values = self.sample(key) if data is None else data
        channels = template.channels if channel is None else (channel,)
        contents = {one: rendered(template, key, one, values).content for one in channels}
        return Preview(key=key, locale=locale, version=template.version, contents=contents)

    def sample(self, key: str) -> dict[str, Any]:
        """The data that a template is tried with."""
        text = self.folder.samples.get(key)
        if text is None:
            raise TemplateFailed(
                "templateKey", f"{key}/sample.json: is missing; it is what checks render with"
            )
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            told = f"{key}/sample.json: is not a JSON object: {error}"
            raise TemplateFailed("templateKey", told) from None

    def sandbox(self) -> Sandbox:
        """Where its templates run; the shared files are compiled once."""
        from homing.rendering.compiling import compile_partials
        from homing.rendering.sandbox import Sandbox

        if self._beside is not None:
            return self._beside.sandbox()
        if self._sandbox is None:
            made = Sandbox(self.folder.partials)
            compile_partials(made, self.folder.partials)
            self._sandbox = made
        return self._sandbox

    def _compile(self, key: str, locale: str) -> Compiled:
        from homing.rendering.compiling import Compiled

        return Compiled(self.sandbox(), locale, self.folder.written[key][locale])


def rendered(template: Compiled, key: str, channel: Channel, data: Mapping[str, Any]) -> Rendered:
    """Renders with data of any kind that can be written as JSON; templates see it as JSON has it."""
    if channel not in template.channels:
        there = ", ".join(template.channels)
        told = f"{key!r} says nothing for {channel} in {template.locale}; it does for {there}"
        raise TemplateNotFound("templateKey", told)
    try:
        plain = _decode(_encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("data", f"cannot be written as JSON: {error}") from None
    content: Content = template.render(channel, plain)
    return Rendered(content, template.locale, template.version)


def _meant(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
