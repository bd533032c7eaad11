"""What can go wrong, as a small tree. A class's docstring is its message unless one is given.

HomingError
├── InvalidRequest        one field of a request or setting is not acceptable
│   ├── TemplateNotFound
│   └── TemplateFailed    it does not compile, or not render with this data
├── IdempotencyConflict   the key was used with another body
├── NotFound
├── VersionConflict       somebody else has changed it meanwhile
├── CommandRefused        not possible in the status it is in
├── DeliveryFailed        a synchronous send
│   └── DeliveryTimeout
├── CallbackRefused       a provider's callback whose signature is not valid
├── CallbackUnreadable
├── LinkRefused           an unsubscribe link that was not made here
├── ConfigError           settings, policy, provider wiring
└── StoreError
    ├── StoreUnavailable  try again later (or spool)
    │   ├── StoreBusy
    │   └── StoreFull
    ├── StoreReadOnly
    └── SchemaError       this program and the store's schema do not fit
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns text that every encoder accepts: what a request has may not be valid Unicode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class HomingError(Exception):
    """Something went wrong in Homing."""

    code = "INTERNAL_ERROR"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(printable(message or (self.__doc__ or "").strip()))

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(HomingError):
    """A field is not acceptable. Nothing was stored."""

    code = "INVALID_REQUEST"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = printable(field)


class TemplateNotFound(InvalidRequest):
    """No such template for that locale."""

    code = "TEMPLATE_NOT_FOUND"


class TemplateFailed(InvalidRequest):
    """The template does not render with this data. Nothing was stored."""

    code = "TEMPLATE_FAILED"


class IdempotencyConflict(HomingError):
    """This idempotency key was already used with a different request; nothing was stored."""

    code = "IDEMPOTENCY_CONFLICT"


class NotFound(HomingError):
    """There is no such notification for this tenant."""

    code = "NOT_FOUND"


class VersionConflict(HomingError):
    """It was changed meanwhile. Nothing was written; read it again."""

    code = "VERSION_CONFLICT"


class CommandRefused(HomingError):
    """The command is not possible in the notification's status."""

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


class CallbackRefused(HomingError):
    """The callback's signature is not valid. Nothing was changed."""

    code = "INVALID_SIGNATURE"


class CallbackUnreadable(HomingError):
    """The callback could not be read. Nothing was changed; a provider that is told so sends it again."""

    code = "UNREADABLE_CALLBACK"


class LinkRefused(HomingError):
    """The link is not complete, or was not made here. Nothing was changed."""

    code = "INVALID_LINK"


class ConfigError(HomingError):
    """A setting is not acceptable."""

    code = "CONFIG_ERROR"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class StoreError(HomingError):
    """The store could not do it."""

    code = "STORE_ERROR"


class StoreUnavailable(StoreError):
    """The store cannot be reached right now. Nothing was changed; try again."""

    code = "STORE_UNAVAILABLE"


class StoreBusy(StoreUnavailable):
    """The store is locked by another process for too long. Nothing was changed; try again."""

    code = "STORE_BUSY"


class StoreFull(StoreUnavailable):
    """The disk is full. Nothing was changed; free some space and try again."""

    code = "STORE_FULL"


class StoreReadOnly(StoreError):
    """The store is read-only. Check the permissions of the file and its folder."""

    code = "STORE_READ_ONLY"


class SchemaError(StoreError):
    """The store's schema does not fit this version of Homing."""

    code = "SCHEMA_ERROR"
