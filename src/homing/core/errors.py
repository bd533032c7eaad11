"""The exceptions of Homing. The docstring of a class is its message unless another one is given.

HomingError
├── InvalidRequest        a field of a request or setting is invalid
│   ├── TemplateNotFound
│   └── TemplateFailed    the template does not compile, or cannot be rendered with this data
├── IdempotencyConflict   the key belongs to a different request
├── NotFound
├── VersionConflict       the entry has changed since it was read
├── CommandRefused        not permitted in the notification's status
├── DeliveryFailed        a synchronous send failed
│   ├── DeliverySkipped   the recipient does not want it, or the device is inactive
│   └── DeliveryTimeout
├── CallbackRefused       the signature of a provider's callback is invalid
├── CallbackUnreadable
├── SinkError             raised by sinks that did not publish all events
│   ├── SinkUnavailable   the other system takes no events now
│   └── EventsRefused     the other system refuses certain events
├── LinkRefused           an unsubscribe link that Homing did not create
├── ConfigError           an invalid setting, policy or provider
└── StoreError
    ├── StoreUnavailable  try again later, or spool the request
    │   ├── StoreBusy
    │   ├── StoreFull
    │   └── StoreReadOnly
    ├── StoreRejected     the store cannot store this data; a repetition would fail too
    └── SchemaError       this version of Homing does not support the store's schema
"""

from __future__ import annotations

from collections.abc import Iterable


def printable(text: str) -> str:
    """Returns the text with unpaired surrogates escaped, because no encoder accepts them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(value: object) -> str:
    """Returns the text of an exception or another value of a plug-in, or the name of its type if that fails.

    A class of the user may raise an exception when its text is read.
    """
    try:
        return printable(str(value))
    except Exception:
        return type(value).__name__


class HomingError(Exception):
    """Something went wrong in Homing."""

    code = "INTERNAL_ERROR"

    advice: str | None = None
    """What an operator can do about the problem, for `homing doctor`. It is empty if the message says so
    already, and None if nothing is known."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(printable(message or (self.__doc__ or "").strip()))

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self)


class InvalidRequest(HomingError):
    """A field is invalid. Nothing was stored."""

    code = "INVALID_REQUEST"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = printable(field)


class TemplateNotFound(InvalidRequest):
    """There is no such template for this locale."""

    code = "TEMPLATE_NOT_FOUND"


class TemplateFailed(InvalidRequest):
    """The template cannot be rendered with this data. Nothing was stored."""

    code = "TEMPLATE_FAILED"


class IdempotencyConflict(HomingError):
    """This idempotency key was already used with a different request; nothing was stored."""

    code = "IDEMPOTENCY_CONFLICT"


class NotFound(HomingError):
    """There is no such notification for this tenant."""

    code = "NOT_FOUND"


class VersionConflict(HomingError):
    """The entry has changed since it was read. Nothing was written; read it again."""

    code = "VERSION_CONFLICT"


class CommandRefused(HomingError):
    """The command is not permitted in the notification's status."""

    code = "COMMAND_REFUSED"


class DeliveryFailed(HomingError):
    """Synchronous delivery failed. Notification NOT queued."""

    code = "DELIVERY_FAILED"

    def __init__(self, message: str | None = None, *, notification_id: str = "") -> None:
        super().__init__(message)
        self.notification_id = notification_id


class DeliveryTimeout(DeliveryFailed):
    """Synchronous delivery timed out after 2s. Notification NOT queued."""

    code = "DELIVERY_TIMEOUT"


class DeliverySkipped(DeliveryFailed):
    """The recipient does not want the message, or has no active device. Notification NOT queued."""

    code = "DELIVERY_SKIPPED"


class CallbackRefused(HomingError):
    """The callback's signature is not valid. Nothing was changed."""

    code = "INVALID_SIGNATURE"


class CallbackUnreadable(HomingError):
    """The callback could not be read. Nothing was changed; the provider may send it again."""

    code = "UNREADABLE_CALLBACK"


class SinkError(HomingError):
    """A sink did not publish all events.

    Sinks raise its subclasses. The message is logged, so it contains neither secrets nor recipients.
    """

    code = "SINK_ERROR"

    def __init__(self, message: str | None = None, *, published: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.published = frozenset(published)
        """Ids of the events that were published nevertheless. They are not published again."""


class SinkUnavailable(SinkError):
    """The system to which a sink publishes takes no events now."""

    code = "SINK_UNAVAILABLE"

    def __init__(
        self,
        message: str | None = None,
        *,
        published: Iterable[str] = (),
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message, published=published)
        self.retry_after_ms = retry_after_ms
        """Time for which the other system asks not to be called, if it does."""


class EventsRefused(SinkError):
    """The system to which a sink publishes refuses certain events."""

    code = "EVENTS_REFUSED"

    def __init__(
        self, message: str | None = None, *, refused: Iterable[str] = (), published: Iterable[str] = ()
    ) -> None:
        super().__init__(message, published=published)
        self.refused = frozenset(refused)
        """Ids of the refused events. Events that are neither refused nor published are published again."""


class LinkRefused(HomingError):
    """The link is incomplete or was not created by this service. Nothing was changed."""

    code = "INVALID_LINK"


class ConfigError(HomingError):
    """A setting is invalid."""

    code = "CONFIG_ERROR"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class StoreError(HomingError):
    """The store could not perform the operation."""

    code = "STORE_ERROR"


class StoreUnavailable(StoreError):
    """The store cannot be reached right now. Nothing was changed; try again."""

    code = "STORE_UNAVAILABLE"


class StoreBusy(StoreUnavailable):
    """Another process has locked the store for too long. Nothing was changed; try again."""

    code = "STORE_BUSY"


class StoreFull(StoreUnavailable):
    """The disk is full. Nothing was changed; free some space and try again."""

    code = "STORE_FULL"


class StoreReadOnly(StoreUnavailable):
    """The store is read-only. Check the permissions of the file and its folder."""

    code = "STORE_READ_ONLY"


class StoreRejected(StoreError):
    """The store cannot store this data. Nothing was changed; a repetition would fail too."""

    code = "STORE_REJECTED"


class SchemaError(StoreError):
    """This version of Homing does not support the store's schema."""

    code = "SCHEMA_ERROR"
