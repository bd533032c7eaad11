"""The interfaces of the smaller plug-ins: recipient directory, template renderer and event sink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.events import Event
from homing.core.notifications import Channel, Content, Recipient
from homing.core.retry.decide import RecipientFacts


class Directory(Protocol):
    """Looks up recipients and their preferences.

    By default, the recipients are those in the `Registry`. An application may provide its own directory
    instead.
    """

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        """Returns addresses, locale and time zone by id. An unknown id is absent from the result."""

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
        """Returns reasons to skip or postpone a notification, time zones and quiet hours, by notification id.

        Called once per claimed batch, before the attempts, and once per settled batch with the failed pushes
        that would be retried. A notification without any such facts may be absent from the result.
        """


class Rendered(Struct, frozen=True, gc=False):
    """Content that a renderer has made from a template and data."""

    content: Content
    locale: str | None
    """Locale in which the content is written. None if the renderer does not distinguish locales."""
    version: str | None = None
    """Version of the template, stored with the notification. None if the renderer has no versions."""


class Renderer(Protocol):
    """Renders templates. It is called before a notification is stored."""

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        """Returns the content in exactly this locale.

        If the settings declare locales, `locale` is one of them. Otherwise it is the recipient's own locale,
        or None. Raises `TemplateNotFound` if there is no such template, and `TemplateFailed` if it cannot be
        rendered with the data.
        """


class Sink(Protocol):
    """Publishes events to another system.

    A class may have an attribute `default_events`, the names of the events that it gets unless the settings
    name others. Otherwise it gets dead letters and alerts.
    """

    async def open(self) -> None:
        """Connects. Called before the first `publish`, and again later if it raises."""

    async def close(self) -> None:
        """Disconnects. Called once, after the last `publish`, and only if `open` has succeeded."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Publishes events in the given order. If it raises, the same events are published again later.

        A sink that knows more raises `SinkUnavailable` or `EventsRefused`, which say what was published
        nevertheless, what is refused, and how long to wait. The form of events is that of `event_body` and
        `event_headers` in `homing.core.lifecycle.events`, the same on every sink.
        """


class SubscribedSink(Struct, frozen=True):
    """A sink with the events that it gets."""

    sink: Sink
    events: frozenset[str]
    kind: str = "callback"
    durable: bool = False
    """True if events wait for the sink even while no process uses it.

    False if the sink may be removed with its events once no process has used it for an hour."""


class SinkState(Struct, frozen=True, kw_only=True):
    """What this process has published to a sink."""

    published: int = 0
    """Number of events that this process has published."""
    failures: int = 0
    """Number of rounds in which the sink did not take all events, or could not be opened."""
    available: bool = True
    """False after a round in which the sink took no event, until it takes one."""


EventCallback = Callable[[Event], Awaitable[None] | None]
"""A plain or async function that is called once per event."""
