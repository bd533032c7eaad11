"""Homing: a durable notification delivery engine.

async with Homing("homing.db", worker=True) as homing:
    sent = await homing.send("ada@example.org", channel="email", subject="Hi", body="Hello Ada")
    print(await homing.wait(sent.id))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homing.core.content.templates import Template, TemplateParts
    from homing.core.errors import (
        CallbackRefused,
        CallbackUnreadable,
        CommandRefused,
        ConfigError,
        DeliveryFailed,
        DeliverySkipped,
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
    from homing.core.lifecycle.commands import CommandName
    from homing.core.lifecycle.events import Event
    from homing.core.lifecycle.outcomes import Outcome
    from homing.core.lifecycle.receipts import Callback
    from homing.core.notifications import (
        Channel,
        Content,
        Filter,
        Notification,
        OutcomeKind,
        Priority,
        Reason,
        Recipient,
        Status,
    )
    from homing.core.ports.plug_ins import Directory, Rendered, Renderer
    from homing.core.ports.providers import Delivery, Provider
    from homing.core.recipients.profiles import (
        Device,
        KnownRecipient,
        Preference,
        QuietWindow,
        RecipientProfile,
        Suppression,
    )
    from homing.core.recipients.unsubscribe_links import Subscription, SupportsUnsubscribe
    from homing.core.retry.decide import RecipientFacts
    from homing.core.retry.policy import MatchKeys, PolicyPatch, RetryPolicy, Rule
    from homing.core.routing.breaker import BreakerPolicy
    from homing.core.routing.rate_limits import RateLimit
    from homing.core.send_request import SendRequest
    from homing.core.version import __version__
    from homing.engine.intake.accept import Rejection, SendResult
    from homing.engine.provider_roster import Listed
    from homing.engine.receipts.callbacks import CallbackResult
    from homing.library import Homing
    from homing.sync_library import SyncHoming

# Names are imported on first use, so that `import homing` is quick.
_EXPORTS = {
    "homing.core.content.templates": (
        "Template",
        "TemplateParts",
    ),
    "homing.core.errors": (
        "CallbackRefused",
        "CallbackUnreadable",
        "CommandRefused",
        "ConfigError",
        "DeliveryFailed",
        "DeliverySkipped",
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
    "homing.core.lifecycle.commands": ("CommandName",),
    "homing.core.lifecycle.events": ("Event",),
    "homing.core.lifecycle.outcomes": ("Outcome",),
    "homing.core.lifecycle.receipts": ("Callback",),
    "homing.core.notifications": (
        "Channel",
        "Content",
        "Filter",
        "Notification",
        "OutcomeKind",
        "Priority",
        "Reason",
        "Recipient",
        "Status",
    ),
    "homing.core.ports.plug_ins": (
        "Directory",
        "Rendered",
        "Renderer",
    ),
    "homing.core.ports.providers": (
        "Delivery",
        "Provider",
    ),
    "homing.core.recipients.profiles": (
        "Device",
        "KnownRecipient",
        "Preference",
        "QuietWindow",
        "RecipientProfile",
        "Suppression",
    ),
    "homing.core.recipients.unsubscribe_links": (
        "Subscription",
        "SupportsUnsubscribe",
    ),
    "homing.core.retry.decide": ("RecipientFacts",),
    "homing.core.retry.policy": (
        "MatchKeys",
        "PolicyPatch",
        "RetryPolicy",
        "Rule",
    ),
    "homing.core.routing.breaker": ("BreakerPolicy",),
    "homing.core.routing.rate_limits": ("RateLimit",),
    "homing.core.send_request": ("SendRequest",),
    "homing.core.version": ("__version__",),
    "homing.engine.intake.accept": (
        "Rejection",
        "SendResult",
    ),
    "homing.engine.provider_roster": ("Listed",),
    "homing.engine.receipts.callbacks": ("CallbackResult",),
    "homing.library": ("Homing",),
    "homing.sync_library": ("SyncHoming",),
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
    "DeliverySkipped",
    "DeliveryTimeout",
    "Device",
    "Directory",
    "Event",
    "Filter",
    "Homing",
    "HomingError",
    "IdempotencyConflict",
    "InvalidRequest",
    "KnownRecipient",
    "LinkRefused",
    "Listed",
    "MatchKeys",
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
    "RecipientFacts",
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
    "SupportsUnsubscribe",
    "Suppression",
    "SyncHoming",
    "Template",
    "TemplateFailed",
    "TemplateNotFound",
    "TemplateParts",
    "VersionConflict",
    "__version__",
]
