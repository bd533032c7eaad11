"""Templates from a folder: read when first used, compiled once, and read again only on `reload`."""

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


_YIELD_EVERY_S = 0.01
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class Turns:
    """Decides when a long series of renders should yield to other tasks.

    A single request may have ten thousand recipients.
    """

    def __init__(self) -> None:
        self._last = 0.0

    @property
    def due(self) -> bool:
        """True if the last yield is more than 10 ms ago; reading it restarts that time."""
        now = time.monotonic()
        if now - self._last <= _YIELD_EVERY_S:
            return False
        self._last = now
        return True


class FolderTemplates:
    """The renderer of a folder. The first render imports Jinja."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._library: Library | None = None
        self._yield_timer = Turns()

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """Returns the content in exactly this locale. All tenants share the folder."""
        found = self.ready(template_key, locale)
        if found is None:  # compiling takes milliseconds, so it runs in a thread
            library = await self.read()
            found = await asyncio.to_thread(library.compiled, template_key, locale or LAST_RESORT)
        made = rendered(found, template_key, channel, data)
        if self._yield_timer.due:
            await asyncio.sleep(0)
        return made

    def ready(self, template_key: str, locale: str | None) -> Compiled | None:
        """Returns the template in exactly this locale if it is already compiled, otherwise None."""
        return self._library.ready(template_key, locale or LAST_RESORT) if self._library else None

    def library(self) -> Library:
        """Returns the content of the folder as of when it was read, reading it if necessary."""
        if self._library is None:
            self._library = Library(read_folder(self._root))
        return self._library

    async def read(self) -> Library:
        """Returns the same as `library`, but reads the folder in a thread: that takes milliseconds."""
        return await asyncio.to_thread(self.library) if self._library is None else self._library

    def reload(self) -> None:
        """Makes the next render read the folder again. Renders in progress keep what they have."""
        self._library = None


class Library:
    """The templates of a folder, or of a tenant, as of one point in time, and those compiled so far."""

    def __init__(self, folder: Folder, beside: Library | None = None) -> None:
        """`beside` is the folder's library whose sandbox and shared files a tenant's templates use."""
        self.folder = folder
        self._beside = beside
        self._sandbox: Sandbox | None = None
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._lock = threading.Lock()

    def ready(self, key: str, locale: str) -> Compiled | None:
        """Returns the template if it is already compiled, otherwise None."""
        return self._compiled.get((key, locale))

    def compiled(self, key: str, locale: str) -> Compiled:
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
        contents = {one: rendered(template, key, one, values).content for one in channels}
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

    def sandbox(self) -> Sandbox:
        """Returns the sandbox of these templates, in which the shared files are compiled once."""
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
