"""Plans how a request is delivered: type, priority, mode, and the lane and retry policy per channel.

Requests with the same type, channels and other plan fields share a cached plan.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from msgspec import Struct

from homing.core.notifications import Channel, Mode, Priority, lane_of
from homing.core.plain_values import NotPlain
from homing.core.retry.policy import MatchKeys, RetryPolicy
from homing.core.routing.delivery_modes import mode_of
from homing.core.send_request import SendRequest, channels_named, check_names, priority_of
from homing.engine.operations.policies import Policies

_MAX_CACHED_PLANS = 4_096
"""Maximum number of cached plans. A program uses few types, origins and tenants, again and again."""


_plan_fields = attrgetter(
    "channel",
    "channels",
    "type",
    "template_key",
    "category",
    "priority",
    "origin",
    "synchronous",
    "bulk",
    "provider",
)


_TEXT, _OPTIONAL_TEXT = (str,), (str, type(None))

_FIELD_TYPES: tuple[tuple[type, ...], ...] = (
    *(_OPTIONAL_TEXT, (tuple,), _OPTIONAL_TEXT, _OPTIONAL_TEXT, _OPTIONAL_TEXT, _TEXT, _TEXT),
    *((bool, type(None)), (bool,), _OPTIONAL_TEXT),
)
"""Allowed types of the plan fields, in the order of `_plan_fields`."""


class ChannelPlan(Struct, frozen=True):
    """Lane and retry policy of a request on one channel."""

    channel: Channel
    lane: str
    policy: RetryPolicy


class DeliveryPlan(Struct, frozen=True, kw_only=True):
    """How a request is delivered, independent of its recipients and its content."""

    type: str
    category: str
    priority: Priority
    mode: Mode
    provider: str | None
    """Id or alias of the provider that the request names. If None, the route decides."""
    origin: str
    template_key: str | None
    channels: tuple[ChannelPlan, ...]


class Planner:
    """Creates plans and caches them. The cache is cleared when the retry rules change."""

    def __init__(self, policies: Policies, synchronous_types: frozenset[str]) -> None:
        self._policies = policies
        self._synchronous_types = synchronous_types
        self._book = policies.book
        self._plans: dict[tuple[str, tuple[Any, ...]], DeliveryPlan] = {}
        self._last: tuple[str, tuple[Any, ...], DeliveryPlan] | None = None

    def plan(self, tenant: str, request: SendRequest) -> DeliveryPlan:
        """Returns the plan of a request.

        Raises `InvalidRequest` if a name is malformed, or the channel or priority is unknown. Raises
        `NotPlain` if no plan is cached and a value is not of a built-in type, so that no plan keeps a value
        of a foreign type.
        """
        if self._book is not self._policies.book:
            self._book, self._last = self._policies.book, None
            self._plans.clear()
        values, last = _plan_fields(request), self._last
        # Comparing with the last plan is cheaper than hashing the values for a lookup.
        if last is not None and last[1] == values and last[0] == tenant:
            return last[2]
        plan = self._plans.get((tenant, values))
        if plan is None:
            _check_types(values)
            check_names(request)
            plan = self._plan(tenant, *values)
            if len(self._plans) >= _MAX_CACHED_PLANS:
                self._plans.clear()
            self._plans[tenant, values] = plan
        self._last = (tenant, values, plan)
        return plan

    def _plan(
        self,
        tenant: str,
        channel: str | None,
        channels: tuple[str, ...],
        type_: str | None,
        template_key: str | None,
        category: str | None,
        priority: str,
        origin: str,
        synchronous: bool | None,
        bulk: bool,
        provider: str | None,
    ) -> DeliveryPlan:
        type = type_ or template_key or "message"
        named, level = channels_named(channel, channels), priority_of(priority)
        mode = mode_of(
            synchronous=synchronous,
            type_=type,
            priority=level,
            bulk=bulk,
            synchronous_types=self._synchronous_types,
        )

        def channel_plan(one: Channel) -> ChannelPlan:
            return ChannelPlan(
                one, lane_of(mode, one), self._book.policy(MatchKeys(tenant, type, origin, one, level), mode)
            )

        return DeliveryPlan(
            type=type,
            category=category or type,
            priority=level,
            mode=mode,
            provider=provider or None,
            origin=origin,
            template_key=template_key,
            channels=tuple(channel_plan(one) for one in named),
        )


def _check_types(values: tuple[Any, ...]) -> None:
    """Raises `NotPlain` unless all values are of exact built-in types, because a cached plan keeps them."""
    for value, types in zip(values, _FIELD_TYPES, strict=True):
        if type(value) not in types or (type(value) is tuple and not all(type(one) is str for one in value)):
            raise NotPlain
