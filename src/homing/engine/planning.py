"""What follows from the words of a request alone: worked out once for all that use the same words."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from msgspec import Struct

from homing.core.model import Channel, Mode, Priority, lane_of
from homing.core.modes import mode_of
from homing.core.plain import NotPlain
from homing.core.policy import Keys, RetryPolicy
from homing.core.request import SendRequest, channels_named, check_names, priority_of, provider_id
from homing.engine.policies import Policies

_REMEMBERED = 4_096
"""A program has some types, origins and tenants, and uses them again and again."""

_words = attrgetter(
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

_TEXT, _MAYBE = (str,), (str, type(None))
_KINDS: tuple[tuple[type, ...], ...] = (
    *(_MAYBE, (tuple,), _MAYBE, _MAYBE, _MAYBE, _TEXT, _TEXT),
    *((bool, type(None)), (bool,), _MAYBE),
)
"""Types of the words, in their order."""


class Way(Struct, frozen=True):
    """One channel of a request."""

    channel: Channel
    lane: str
    policy: RetryPolicy


class Plan(Struct, frozen=True, kw_only=True):
    """How a request is delivered, whoever it is for and whatever it says."""

    type: str
    category: str
    priority: Priority
    mode: Mode
    provider: str | None
    """The forced one."""
    origin: str
    template_key: str | None
    ways: tuple[Way, ...]


class Planner:
    """Makes plans; anew when the rules have changed."""

    def __init__(self, policies: Policies, synchronous_types: frozenset[str]) -> None:
        self._policies = policies
        self._synchronous_types = synchronous_types
        self._book = policies.book
        self._plans: dict[tuple[str, tuple[Any, ...]], Plan] = {}
        self._last: tuple[str, tuple[Any, ...], Plan] | None = None

    def plan(self, tenant: str, request: SendRequest) -> Plan:
        """Returns the plan of a request.

        Raises `InvalidRequest` if its names are none, or it names a channel or priority that is none; raises
        `NotPlain` if they are new and not of built-in types, so that no plan keeps a foreign value.
        """
        if self._book is not self._policies.book:
            self._book, self._last = self._policies.book, None
            self._plans.clear()
        words, last = _words(request), self._last
        if last is not None and last[1] == words and last[0] == tenant:  # cheaper to see than to look up
            return last[2]
        plan = self._plans.get((tenant, words))
        if plan is None:
            _check_kinds(words)
            check_names(request)
            plan = self._plan(tenant, *words)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[tenant, words] = plan
        self._last = (tenant, words, plan)
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
    ) -> Plan:
        type = type_ or template_key or "message"
        named, level = channels_named(channel, channels), priority_of(priority)
        mode = mode_of(
            synchronous=synchronous,
            type_=type,
            priority=level,
            bulk=bulk,
            synchronous_types=self._synchronous_types,
        )

        def way(one: Channel) -> Way:
            return Way(
                one, lane_of(mode, one), self._book.policy(Keys(tenant, type, origin, one, level), mode)
            )

        return Plan(
            type=type,
            category=category or type,
            priority=level,
            mode=mode,
            provider=provider_id(provider) if provider else None,
            origin=origin,
            template_key=template_key,
            ways=tuple(way(one) for one in named),
        )


def _check_kinds(words: tuple[Any, ...]) -> None:
    """Raises `NotPlain` unless all words are of exact built-in types, as a cached plan must hold them."""
    for word, kinds in zip(words, _KINDS, strict=True):
        if type(word) not in kinds or (type(word) is tuple and not all(type(one) is str for one in word)):
            raise NotPlain
