"""Planted bugs in the isolation of items that a store, a sink or intake refuses for good."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from homing.core.errors import StoreRejected, StoreUnavailable
from homing.core.ports.stores import InboxAcceptance
from homing.engine.delivery import settler
from homing.engine.intake import accept, bridges, spool, sql_inbox
from homing.engine.upkeep import outbox_relay
from homing.stores.sqlite.store import SqliteStore
from simulation.plan import NO_FAULTS, BridgePlan, SimulationPlan, plain_plan
from simulation.planted import bugs

BUGS = bugs.BugList()


def poisoned(seed: int) -> SimulationPlan:
    """Returns a plan with poison everywhere and failing providers, but without other faults."""
    return replace(
        bugs.patient(plain_plan(seed, 40)),
        fault_plan=replace(NO_FAULTS, trouble=0.5),
        bridge=BridgePlan(messages=20, fail=0.0),
        poison=True,
        processes=2,
    )


def spooled(seed: int) -> SimulationPlan:
    """Returns a plan with poison in the spool, because the store is often unavailable."""
    plan = replace(poisoned(seed), spools=True, bridge=None)
    return replace(plan, fault_plan=replace(NO_FAULTS, error_per_call=0.2, away_every_ms=15_000))


@BUGS.plant(
    "a refused result is retried for ever",
    "2",
    "14",
    "22",
    on=(SqliteStore, "settle"),
    plan=poisoned,
    seed=1_003,
)
def refusal_counts_as_an_outage(real: Any) -> Any:
    async def settle(self: Any, batch: Any) -> Any:
        try:
            return await real(self, batch)
        except StoreRejected as error:
            raise StoreUnavailable from error

    return settle


@BUGS.plant(
    "a refused result is dropped with its batch",
    "2",
    "5",
    "12",
    "14",
    "22",
    "32",
    on=(settler.Settler, "_write"),
    plan=poisoned,
    seed=1_003,
)
def refused_batch_is_dropped(real: Any) -> Any:
    async def write(self: Any, batch: Any) -> None:
        try:
            refused = await self._settle([settlement for settlement, _ in batch])
        except StoreRejected:
            return
        self._report(batch, refused)

    return write


@BUGS.plant(
    "a refused result is not simplified",
    "12",
    "14",
    "22",
    on=(settler, "simpler_forms"),
    plan=poisoned,
    seed=1_003,
)
def no_simpler_form(real: Any) -> Any:
    return lambda settlement, claim: iter(())


async def _all_or_nothing(items: Any, write: Any, refuse: Any) -> Any:
    return list(await write(items))


@BUGS.plant(
    "a refused request blocks the inbox",
    "12",
    "14",
    "22",
    on=(sql_inbox, "write_isolated"),
    plan=poisoned,
    seed=1_003,
)
def inbox_is_blocked(real: Any) -> Any:
    return _all_or_nothing


@BUGS.plant(
    "a refused request of the inbox is dropped",
    "22",
    on=(sql_inbox.InboxReader, "_bury"),
    plan=poisoned,
    seed=1_003,
)
def inbox_entry_is_dropped(real: Any) -> Any:
    async def bury(self: Any, entry: Any, error: Any) -> InboxAcceptance:
        await self._inbox.remove_inbox([entry])
        return InboxAcceptance(1)

    return bury


@BUGS.plant(
    "an unreadable request stops the inbox",
    "12",
    "14",
    "22",
    on=(sql_inbox.InboxReader, "_accepted"),
    plan=poisoned,
    seed=1_003,
)
def deep_request_stops_the_inbox(real: Any) -> Any:
    async def accepted(self: Any, entry: Any) -> Any:
        found = await real(self, entry)
        if found is not None and found.submission.notifications[0].refused:
            raise RecursionError
        return found

    return accepted


@BUGS.plant(
    "a refused request blocks the spool",
    "14",
    "22",
    on=(spool, "write_isolated"),
    plan=spooled,
)
def spool_is_blocked(real: Any) -> Any:
    return _all_or_nothing


@BUGS.plant(
    "a refused request of the spool is dropped",
    "2",
    on=(spool.Spool, "_bury"),
    plan=spooled,
)
def spooled_request_is_dropped(real: Any) -> Any:
    async def bury(self: Any, store: Any, submission: Any, error: Any) -> None:
        """Does nothing."""

    return bury


@BUGS.plant(
    "the spool is emptied before its requests are stored",
    "2",
    on=(spool.Spool, "_move_to_store"),
    plan=spooled,
)
def spool_emptied_too_early(real: Any) -> Any:
    async def move(self: Any, store: Any) -> int:
        lines = self._lines()
        self._remove_lines(lines)
        await self._accept(store, [self._decoded(line) for line in lines])
        return len(lines)

    return move


@BUGS.plant(
    "a refused request fails its whole batch",
    "2",
    "22",
    on=(accept, "write_isolated"),
    plan=poisoned,
    seed=1_003,
)
def batch_fails_with_its_culprit(real: Any) -> Any:
    async def write_isolated(items: Any, write: Any, refuse: Any) -> Any:
        try:
            return list(await write(items))
        except StoreRejected as error:
            return [await refuse(one, error) for one in items]

    return write_isolated


@BUGS.plant(
    "a refused message is redelivered for ever",
    "14",
    "19",
    "22",
    on=(bridges._MessageAcceptor, "_accept_together"),
    plan=poisoned,
    seed=1_003,
)
def message_comes_again_and_again(real: Any) -> Any:
    async def accept_together(self: Any, bridge: str, messages: Any) -> Any:
        try:
            return await real(self, bridge, messages)
        except StoreRejected as error:
            raise StoreUnavailable from error

    return accept_together


@BUGS.plant(
    "a refused event holds up its sink",
    "14",
    "17",
    "22",
    on=(outbox_relay.OutboxRelay, "_publish_isolated"),
    plan=poisoned,
)
def event_holds_up_its_sink(real: Any) -> Any:
    async def publish(self: Any, one: Any, batch: Any, until_ms: int) -> int:
        try:
            await one.sink.publish(batch)
        except Exception as error:
            await self._pause(one, batch, error)
            return 0
        await self._backend.published(one.name, batch)
        return len(batch)

    return publish


@BUGS.plant(
    "events behind a refused one are parked with it",
    "22",
    on=(outbox_relay.OutboxRelay, "_park"),
    plan=poisoned,
)
def neighbours_are_parked(real: Any) -> Any:
    async def park(self: Any, one: Any, refused: Any, took_others: bool) -> None:
        await real(self, one, refused, took_others)
        if refused:
            batch = await self._backend.outbox(one.name, self._worker, 10, 30_000)
            await self._backend.park_events(one.name, batch)

    return park
