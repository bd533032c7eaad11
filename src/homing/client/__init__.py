"""Homing over HTTP from Python: `Client` and `AsyncClient`, a method for each operation of the service."""

from homing.client.asking import Retries
from homing.client.clients import AsyncClient, Client
from homing.client.errors import (
    Forbidden,
    RateLimited,
    ServiceBusy,
    ServiceRefused,
    ServiceUnreachable,
    Unauthorized,
)

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
