"""Overrides of how a channel's first attempts are split between its providers.

An override is stored with its author, reason and end. It applies to notifications that are accepted from then
on; those accepted before keep the start of their route. Every other process reads it along with the retry
rules, so within five seconds. No process has to remove it: after its end, the settings decide again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from homing.core.errors import InvalidRequest, NotFound
from homing.core.notifications import Channel
from homing.core.plain_values import enum_member, plain_text
from homing.core.ports.stores import Backend, Entry
from homing.core.routing.splits import (
    MAX_OVERRIDE_MS,
    SplitOverride,
    SplitOverrideView,
    SplitView,
    add_override,
    check_shares,
    end_override,
    in_per_cent,
    override_view,
    split_at,
)
from homing.core.times import span_ms
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.provider_roster import ProviderRoster

_KIND = "split"


class SplitOverrides:
    """Reads and changes the overrides in the store, and puts them in force in this process."""

    def __init__(self, backend: Backend, roster: ProviderRoster) -> None:
        self._backend = backend
        self._roster = roster
        self._reads = 0
        self._newest_read = 0
        """Number of the latest read whose result is in force."""

    async def refresh(self) -> None:
        """Reads the overrides of all processes, and puts them in force. Raises `StoreError` if it cannot."""
        self._reads += 1
        number = self._reads
        found = await self._backend.get_many(EVERY_TENANT, _KIND, [channel.value for channel in Channel])
        if number < self._newest_read:
            return  # a read that began later has already been put in force
        self._newest_read = number
        self._roster.overrides = {Channel(key): _decode(entry) for key, entry in found.items()}

    async def list(self) -> tuple[SplitView, ...]:
        """Returns the split of each channel that has several providers, as it is in force now."""
        await self.refresh()
        now = await self._backend.now_ms()
        return tuple(
            self._view(channel, now)
            for channel in self._roster.channels
            if len(self._roster.route(channel)) > 1
        )

    async def in_force(self) -> dict[Channel, SplitOverrideView]:
        """Returns the overrides that are in force now, by channel."""
        return {view.channel: view.override for view in await self.list() if view.override is not None}

    async def set(
        self, channel: Channel | str, shares: Mapping[str, int], *, who: str, why: str, lasting: timedelta
    ) -> SplitView:
        """Splits the first attempts of a channel by these shares for a time, and returns the new split.

        A provider without a share is used only for failover. Raises `InvalidRequest` if the shares do not fit
        the channel's route, if the reason is missing, or if the time is longer than 30 days.
        """
        chosen, given, for_ms = self.check(channel, shares, why=why, lasting=lasting)
        plain_text(who, "who")
        while True:
            now = await self._backend.now_ms()
            new = SplitOverride(shares=given, by=who, why=why, since=now, until=now + for_ms)
            stored = await self._stored(chosen)
            if await self._put(chosen, stored, add_override(_decode(stored), new, now), who):
                return await self._after_change(chosen)

    def check(
        self, channel: Channel | str, shares: Mapping[str, int], *, why: str, lasting: timedelta
    ) -> tuple[Channel, dict[str, int], int]:
        """Returns the channel, the share of each provider and the duration in milliseconds.

        Raises `InvalidRequest` as `set` does. Changes nothing.
        """
        chosen = enum_member(Channel, channel, "channel")
        given = check_shares(shares, chosen, [step.provider for step in self._roster.route(chosen)])
        if not plain_text(why, "why").strip():
            raise InvalidRequest("why", "is missing; say why the split is changed")
        for_ms = span_ms(lasting, "lasting")
        if not 0 < for_ms <= MAX_OVERRIDE_MS:
            raise InvalidRequest("lasting", "must be longer than 0 and at most 30 days")
        return chosen, given, for_ms

    async def reset(self, channel: Channel | str, *, who: str) -> SplitView:
        """Ends the override of a channel before its time. Raises `NotFound` if there is none in force."""
        chosen = enum_member(Channel, channel, "channel")
        plain_text(who, "who")
        while True:
            stored = await self._stored(chosen)
            ended = end_override(_decode(stored), await self._backend.now_ms())
            if ended is None:
                raise NotFound(f"the split of {chosen} is not overridden")
            if await self._put(chosen, stored, ended, who):
                return await self._after_change(chosen)

    async def _stored(self, channel: Channel) -> Entry | None:
        return (await self._backend.get_many(EVERY_TENANT, _KIND, [channel.value])).get(channel.value)

    async def _put(
        self, channel: Channel, stored: Entry | None, overrides: tuple[SplitOverride, ...], who: str
    ) -> bool:
        entry = Entry(
            tenant=EVERY_TENANT,
            kind=_KIND,
            key=channel.value,
            value={"overrides": msgspec.to_builtins(overrides)},
            version=stored.version if stored else 0,
        )
        return await self._backend.put([entry], who=who) is not None

    async def _after_change(self, channel: Channel) -> SplitView:
        await self.refresh()
        return self._view(channel, await self._backend.now_ms())

    def _view(self, channel: Channel, now: int) -> SplitView:
        roster = self._roster
        route = tuple(step.provider for step in roster.route(channel))
        override = split_at(roster.overrides.get(channel, ()), now)
        weights = roster.weights(channel)
        return SplitView(
            channel=channel,
            providers=route,
            shares=in_per_cent(weights if override is None else override.shares, route),
            weights=weights,
            override=None if override is None else override_view(override),
        )


def _decode(entry: Entry | None) -> tuple[SplitOverride, ...]:
    return () if entry is None else msgspec.convert(entry.value["overrides"], tuple[SplitOverride, ...])
