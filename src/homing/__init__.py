"""Homing: a durable notification delivery engine.

async with Homing("homing.db", worker=True) as homing:
    sent = await homing.send("ada@example.org", channel="email", subject="Hi", body="Hello Ada")
    print(await homing.wait(sent.id))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.core.breaker import BreakerPolicy
    from homing.core.callbacks import Callback
    from homing.core.decide import Facts
    from homing.core.errors import (
        CallbackRefused,
        CallbackUnreadable,
        CommandRefused,
        ConfigError,
        DeliveryFailed,
        DeliveryTimeout,
        HomingError,
        IdempotencyConflict,
        InvalidRequest,
        LinkRefused,
        NotFound,
        StoreError,
        StoreUnavailable,
        TemplateFailed,
        TemplateNotFound,
        VersionConflict,
    )
    from homing.core.limits import RateLimit
    from homing.core.model import (
        Channel,
        CommandName,
        Content,
        Event,
        Filter,
        Notification,
        Outcome,
        OutcomeKind,
        Priority,
        Reason,
        Recipient,
        Status,
    )
    from homing.core.policy import PolicyPatch, RetryPolicy, Rule
    from homing.core.ports import Delivery, Directory, Provider, Rendered, Renderer
    from homing.core.recipients import (
        Device,
        KnownRecipient,
        Preference,
        QuietWindow,
        RecipientProfile,
        Suppression,
    )
    from homing.core.request import SendRequest
    from homing.core.templates import Template, TemplateParts
    from homing.core.unsubscribe import Subscription, Unsubscribes
    from homing.engine.callbacks import CallbackResult
    from homing.engine.roster import Listed
    from homing.engine.sending import Rejection, SendResult
    from homing.library import Homing, SyncHoming

__version__ = "0.1.0"

# Names are imported on first use, so that `import homing` is quick.
_EXPORTS = {
    "homing.core.breaker": ("BreakerPolicy",),
    "homing.core.callbacks": ("Callback",),
    "homing.core.decide": ("Facts",),
    "homing.core.errors": (
        "CallbackRefused",
        "CallbackUnreadable",
        "CommandRefused",
        "ConfigError",
        "DeliveryFailed",
        "DeliveryTimeout",
        "HomingError",
        "IdempotencyConflict",
        "InvalidRequest",
        "LinkRefused",
        "NotFound",
        "StoreError",
        "StoreUnavailable",
        "TemplateFailed",
        "TemplateNotFound",
        "VersionConflict",
    ),
    "homing.core.limits": ("RateLimit",),
    "homing.core.model": (
        "Channel",
        "CommandName",
        "Content",
        "Event",
        "Filter",
        "Notification",
        "Outcome",
        "OutcomeKind",
        "Priority",
        "Reason",
        "Recipient",
        "Status",
    ),
    "homing.core.policy": (
        "PolicyPatch",
        "RetryPolicy",
        "Rule",
    ),
    "homing.core.ports": (
        "Delivery",
        "Directory",
        "Provider",
        "Rendered",
        "Renderer",
    ),
    "homing.core.recipients": (
        "Device",
        "KnownRecipient",
        "Preference",
        "QuietWindow",
        "RecipientProfile",
        "Suppression",
    ),
    "homing.core.request": ("SendRequest",),
    "homing.core.templates": ("Template", "TemplateParts"),
    "homing.core.unsubscribe": ("Subscription", "Unsubscribes"),
    "homing.engine.callbacks": ("CallbackResult",),
    "homing.engine.roster": ("Listed",),
    "homing.engine.sending": ("Rejection", "SendResult"),
    "homing.library": (
        "Homing",
        "SyncHoming",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'homing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "BreakerPolicy",
    "Callback",
    "CallbackRefused",
    "CallbackResult",
    "CallbackUnreadable",
    "Channel",
    "CommandName",
    "CommandRefused",
    "ConfigError",
    "Content",
    "Delivery",
    "DeliveryFailed",
    "DeliveryTimeout",
    "Device",
    "Directory",
    "Event",
    "Facts",
    "Filter",
    "Homing",
    "HomingError",
    "IdempotencyConflict",
    "InvalidRequest",
    "KnownRecipient",
    "LinkRefused",
    "Listed",
    "NotFound",
    "Notification",
    "Outcome",
    "OutcomeKind",
    "PolicyPatch",
    "Preference",
    "Priority",
    "Provider",
    "QuietWindow",
    "RateLimit",
    "Reason",
    "Recipient",
    "RecipientProfile",
    "Rejection",
    "Rendered",
    "Renderer",
    "RetryPolicy",
    "Rule",
    "SendRequest",
    "SendResult",
    "Status",
    "StoreError",
    "StoreUnavailable",
    "Subscription",
    "Suppression",
    "SyncHoming",
    "Template",
    "TemplateFailed",
    "TemplateNotFound",
    "TemplateParts",
    "Unsubscribes",
    "VersionConflict",
    "__version__",
]
