"""The operations of one tenant: send, read and manage notifications, recipients and templates.

The engine itself offers the operations of its default tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from homing.core.content.locales import LocalePolicy
from homing.core.content.templates import ManagedRenderer
from homing.core.notifications import Mode
from homing.core.ports.observers import Observer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.core.routing.provider_views import ProviderView
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.timers import Timers
from homing.engine.intake.accept import SendOperations, SendResult
from homing.engine.intake.requests import Intake, PreparedRequest
from homing.engine.intake.spool import Spool
from homing.engine.operations.commands import Commands
from homing.engine.operations.overview import OverviewOperations
from homing.engine.operations.policies import Policies
from homing.engine.operations.providers import ProviderOperations
from homing.engine.operations.recipients import Recipients
from homing.engine.operations.searches import SearchOperations
from homing.engine.operations.split_overrides import SplitOverrides
from homing.engine.operations.statistics import QueueOperations
from homing.engine.operations.templates import Templates
from homing.engine.provider_roster import ProviderRoster
from homing.engine.settings import AlertThresholds
from homing.engine.system_runtime import LocalWaker
from homing.engine.upkeep.lost_commits import LostCommits
from homing.engine.upkeep.upkeep import Upkeep


class EngineServices(Struct, frozen=True, kw_only=True):
    """Objects that the tenants of one engine share."""

    backend: Backend
    roster: ProviderRoster
    clock: Clock
    random_source: RandomSource
    policies: Policies
    splits: SplitOverrides
    breakers: Breakers
    intake: Intake
    upkeep: Upkeep
    observer: Observer
    spool: Spool | None
    spool_waker: LocalWaker
    send_synchronously: Callable[[PreparedRequest, int], Coroutine[Any, Any, SendResult]]
    queue_name: Callable[[Mode], str]
    timers: Timers
    lost_commits: LostCommits
    store_timeout_ms: int
    thresholds: AlertThresholds
    locales: LocalePolicy | None
    """The project's locales. None if there are no templates."""
    press: ManagedRenderer | None
    """Renderer that can also manage templates. None if the configured renderer cannot."""


_T = TypeVar("_T")
_P = ParamSpec("_P")
_Whole = TypeVar("_Whole")
_Part = TypeVar("_Part")


def delegate(
    part: Callable[[_Whole], _Part], method: Callable[Concatenate[_Part, _P], _T]
) -> Callable[Concatenate[_Whole, _P], _T]:
    """Returns a method that calls the same method of a part of the object, with the same arguments.

    The method keeps its signature and docstring, and it is a coroutine function if the original is one.
    """

    original: Any = method

    def call(self: _Whole, /, *args: Any, **kwargs: Any) -> Any:
        return original(part(self), *args, **kwargs)

    async def call_async(self: _Whole, /, *args: Any, **kwargs: Any) -> Any:
        return await original(part(self), *args, **kwargs)

    delegating: Any = call_async if iscoroutinefunction(method) else call
    made: Callable[Concatenate[_Whole, _P], _T] = update_wrapper(delegating, method)
    return made


def _sends(api: TenantApi) -> SendOperations:
    return api._sends


def _queue(api: TenantApi) -> QueueOperations:
    return api._queue


def _overview(api: TenantApi) -> OverviewOperations:
    return api._overview


def _searches(api: TenantApi) -> SearchOperations:
    return api._searches


def _commands(api: TenantApi) -> Commands:
    return api._commands


class TenantApi:
    """The operations of one tenant. No call reads or changes data of another tenant, except `purge`.

    The operations are implemented by `SendOperations`, `QueueOperations`, `SearchOperations`,
    `OverviewOperations` and `Commands`.
    """

    def __init__(self, tools: EngineServices, tenant: str) -> None:
        self._tools = tools
        self.tenant = tenant
        self._sends = SendOperations(
            tenant,
            backend=tools.backend,
            intake=tools.intake,
            spool=tools.spool,
            spool_waker=tools.spool_waker,
            queue_name=tools.queue_name,
            send_synchronously=tools.send_synchronously,
            clock=tools.clock,
            observer=tools.observer,
            timers=tools.timers,
            lost_commits=tools.lost_commits,
            store_timeout_ms=tools.store_timeout_ms,
        )
        self._queue = QueueOperations(
            tenant,
            backend=tools.backend,
            policies=tools.policies,
            roster=tools.roster,
            breakers=tools.breakers,
            clock=tools.clock,
            random_source=tools.random_source,
            thresholds=tools.thresholds,
        )
        self._commands = Commands(
            tenant,
            backend=tools.backend,
            sends=self._sends,
            queue=self._queue,
            breakers=tools.breakers,
            roster=tools.roster,
            clock=tools.clock,
            random_source=tools.random_source,
            upkeep=tools.upkeep,
            timers=tools.timers,
        )
        self._searches = SearchOperations(tenant, backend=tools.backend)
        self._overview = OverviewOperations(
            tenant,
            backend=tools.backend,
            roster=tools.roster,
            breakers=tools.breakers,
            splits=tools.splits,
            list_providers=lambda: self._list_providers(),
        )
        self.recipients = Recipients(tools.backend, tenant, tools.locales)
        """Recipients, devices, preferences and suppressions that are kept in the store."""
        self.templates = Templates(tools.backend, tenant, tools.press)
        """The tenant's own templates, together with those of the shared folder."""
        self.policies = tools.policies
        """Retry rules in force, and the operations that change them at runtime."""

    async def _list_providers(self) -> tuple[ProviderView, ...]:
        tools = self._tools
        return await ProviderOperations(
            self.tenant,
            roster=tools.roster,
            breakers=tools.breakers,
            splits=tools.splits,
            clock=tools.clock,
            random_source=tools.random_source,
        ).providers()

    def of(self, tenant: str) -> TenantApi:
        """Returns the operations of another tenant, with the same store and providers."""
        return TenantApi(self._tools, tenant)

    # Sending -------------------------------------------------------------------------------------

    submit = delegate(_sends, SendOperations.submit)
    submit_many = delegate(_sends, SendOperations.submit_many)

    # Reading -------------------------------------------------------------------------------------

    get = delegate(_queue, QueueOperations.get)
    history = delegate(_queue, QueueOperations.history)
    list = delegate(_queue, QueueOperations.list)
    explain = delegate(_queue, QueueOperations.explain)
    find_hold = delegate(_queue, QueueOperations.find_hold)
    select_pending = delegate(_queue, QueueOperations.select_pending)
    waiting = delegate(_queue, QueueOperations.waiting)
    retry_info = delegate(_queue, QueueOperations.retry_info)
    calculate_delay = delegate(_queue, QueueOperations.calculate_delay)
    should_retry = delegate(_queue, QueueOperations.should_retry)
    next_retry_time = delegate(_queue, QueueOperations.next_retry_time)
    is_ready = delegate(_queue, QueueOperations.is_ready)
    queue_counts = delegate(_queue, QueueOperations.queue_counts)
    retry_statistics = delegate(_queue, QueueOperations.retry_statistics)
    success_by_attempt = delegate(_queue, QueueOperations.success_by_attempt)
    health = delegate(_queue, QueueOperations.health)
    health_metrics = delegate(_queue, QueueOperations.health_metrics)
    error_groups = delegate(_queue, QueueOperations.error_groups)
    dead_letter_groups = delegate(_queue, QueueOperations.dead_letter_groups)
    roll_ups = delegate(_queue, QueueOperations.roll_ups)
    overview = delegate(_overview, OverviewOperations.overview)
    waiting_histogram = delegate(_overview, OverviewOperations.waiting_histogram)
    provider_overview = delegate(_overview, OverviewOperations.provider_overview)
    batch = delegate(_searches, SearchOperations.batch)
    batches = delegate(_searches, SearchOperations.batches)
    find = delegate(_searches, SearchOperations.find)
    find_all = delegate(_searches, SearchOperations.find_all)

    # Commands ------------------------------------------------------------------------------------

    cancel = delegate(_commands, Commands.cancel)
    retry = delegate(_commands, Commands.retry)
    resend = delegate(_commands, Commands.resend)
    acknowledge = delegate(_commands, Commands.acknowledge)
    reschedule = delegate(_commands, Commands.reschedule)
    move_to_dead_letter = delegate(_commands, Commands.move_to_dead_letter)
    resolve = delegate(_commands, Commands.resolve)
    bulk = delegate(_commands, Commands.bulk)
    dry_run = delegate(_commands, Commands.dry_run)
    why_stopped = delegate(_commands, Commands.why_stopped)
    purge = delegate(_commands, Commands.purge)
