"""The operations of one tenant: send, read and manage notifications, recipients and templates.

The engine itself offers the operations of its default tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from homing.core.content.templates import ManagedRenderer
from homing.core.lifecycle.claims import Submission
from homing.core.ports.observers import Observer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.timers import Timers
from homing.engine.intake.accept import SendOperations, SendResult
from homing.engine.intake.requests import Intake
from homing.engine.intake.spool import Spool
from homing.engine.operations.commands import Commands
from homing.engine.operations.policies import Policies
from homing.engine.operations.recipients import Recipients
from homing.engine.operations.statistics import QueueOperations
from homing.engine.operations.templates import Templates
from homing.engine.provider_roster import ProviderRoster
from homing.engine.system_runtime import LocalWaker
from homing.engine.upkeep.upkeep import Upkeep


class EngineServices(Struct, frozen=True, kw_only=True):
    """Objects that the tenants of one engine share."""

    backend: Backend
    roster: ProviderRoster
    clock: Clock
    random_source: RandomSource
    policies: Policies
    breakers: Breakers
    intake: Intake
    upkeep: Upkeep
    observer: Observer
    spool: Spool | None
    spool_waker: LocalWaker
    send_synchronously: Callable[[Submission, int], Coroutine[Any, Any, SendResult]]
    queue_name: Callable[[Submission], str]
    timers: Timers
    press: ManagedRenderer | None
    """Renderer that can also manage templates. None if the configured renderer cannot."""


class TenantApi(SendOperations, QueueOperations, Commands):
    """The operations of one tenant. No call reads or changes data of another tenant, except `purge`."""

    def __init__(self, tools: EngineServices, tenant: str) -> None:
        self._tools = tools
        self.tenant = tenant
        self._backend = tools.backend
        self._roster = tools.roster
        self._clock = tools.clock
        self._random_source = tools.random_source
        self._policies = tools.policies
        self._breakers = tools.breakers
        self._intake = tools.intake
        self._upkeep = tools.upkeep
        self._observer = tools.observer
        self._spool = tools.spool
        self._spool_waker = tools.spool_waker
        self._submit_now = tools.send_synchronously
        self._queue_name = tools.queue_name
        self._timers = tools.timers
        self._recipients = Recipients(tools.backend, tenant)
        self._templates = Templates(tools.backend, tenant, tools.press)

    def of(self, tenant: str) -> TenantApi:
        """Returns the operations of another tenant, with the same store and providers."""
        return TenantApi(self._tools, tenant)

    @property
    def policies(self) -> Policies:
        """Retry rules in force, and the operations that change them at runtime."""
        return self._policies

    @property
    def recipients(self) -> Recipients:
        """Recipients, devices, preferences and suppressions that are kept in the store."""
        return self._recipients

    @property
    def templates(self) -> Templates:
        """The tenant's own templates, together with those of the shared folder."""
        return self._templates
