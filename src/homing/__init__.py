"""Homing: a durable notification delivery engine.

async with Homing("homing.db", worker=True) as homing:
    sent = await homing.send("ada@example.org", channel="email", subject="Hi", body="Hello Ada")
    print(await homing.wait(sent.id))
"""

from homing.core.breaker import BreakerPolicy
from homing.core.errors import (
    CommandRefused,
    ConfigError,
    DeliveryFailed,
    DeliveryTimeout,
    HomingError,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    StoreError,
    StoreUnavailable,
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
from homing.core.ports import Delivery, Provider
from homing.core.request import SendRequest
from homing.engine.homing import Rejection, SendResult
from homing.engine.roster import Listed
from homing.library import Homing, SyncHoming

__version__ = "0.1.0"

__all__ = [
    "BreakerPolicy",
    "Channel",
    "CommandName",
    "CommandRefused",
    "ConfigError",
    "Content",
    "Delivery",
    "DeliveryFailed",
    "DeliveryTimeout",
    "Event",
    "Filter",
    "Homing",
    "HomingError",
    "IdempotencyConflict",
    "InvalidRequest",
    "Listed",
    "NotFound",
    "Notification",
    "Outcome",
    "OutcomeKind",
    "PolicyPatch",
    "Priority",
    "Provider",
    "RateLimit",
    "Reason",
    "Recipient",
    "Rejection",
    "RetryPolicy",
    "Rule",
    "SendRequest",
    "SendResult",
    "Status",
    "StoreError",
    "StoreUnavailable",
    "SyncHoming",
    "__version__",
]
