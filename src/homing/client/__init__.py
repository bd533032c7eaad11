"""A Python client for Homing's REST API: `Client` and `AsyncClient`, with one method per operation.

`sync_calls` and `async_calls` are generated from the service's routes. The other modules are handwritten:
`requests` encodes requests and decides on retries, and `transport` pools the connections. The client imports
only two other parts of Homing, `homing.core` and `homing.wire`, whose structs it shares with the service.
"""

from homing.client.clients import AsyncClient, Client
from homing.client.errors import (
    Forbidden,
    RateLimited,
    ServiceBusy,
    ServiceRefused,
    ServiceUnreachable,
    Unauthorized,
)
from homing.client.requests import Retries

__all__ = [
    "AsyncClient",
    "Client",
    "Forbidden",
    "RateLimited",
    "Retries",
    "ServiceBusy",
    "ServiceRefused",
    "ServiceUnreachable",
    "Unauthorized",
]
