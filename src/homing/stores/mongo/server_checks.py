"""Checks of the server, the layout and the clock, for `homing doctor` and `homing db check`."""

from __future__ import annotations

from typing import Any

from homing.core.ports.stores import StoreCheckResult
from homing.stores.mongo.schema import SCHEMA_VERSION, missing_indexes, read_version

_MAX_CLOCK_DIFFERENCE_MS = 2_000


async def examine(database: Any, now_ms: int) -> tuple[StoreCheckResult, ...]:
    """Runs all checks. `now_ms` is the time of this machine. Changes nothing."""
    hello = await database.client.admin.command("hello")
    build = await database.client.admin.command("buildInfo")
    return (
        _check_server(hello, build),
        await _check_members(database, hello),
        _check_clock(hello, now_ms),
        await _check_layout(database),
        await _check_indexes(database),
    )


def _check_server(hello: dict[str, Any], build: dict[str, Any]) -> StoreCheckResult:
    kind = "a sharded cluster" if hello.get("msg") == "isdbgrid" else f"replica set {hello.get('setName')}"
    return StoreCheckResult(name="server", ok=True, detail=f"MongoDB {build.get('version')}, {kind}")


async def _check_members(database: Any, hello: dict[str, Any]) -> StoreCheckResult:
    if hello.get("msg") == "isdbgrid":
        return StoreCheckResult(name="members", ok=True, detail="sharded cluster; check each shard")
    members, arbiters = len(hello.get("hosts", ())), len(hello.get("arbiters", ()))
    if arbiters:
        return StoreCheckResult(
            name="members",
            ok=True,
            detail=f"{members} with data, {arbiters} arbiters",
            advice="With an arbiter, the loss of one member stops all writes, because a write needs a "
            "majority of the members with data. Replace the arbiter by a third member with data.",
        )
    if members < 3:
        return StoreCheckResult(
            name="members",
            ok=True,
            detail=f"{members} with data",
            advice="With fewer than three members, the loss of one stops all writes. Use three in "
            "production.",
        )
    return StoreCheckResult(name="members", ok=True, detail=f"{members} with data")


def _check_clock(hello: dict[str, Any], now_ms: int) -> StoreCheckResult:
    local = hello.get("localTime")
    if local is None:
        return StoreCheckResult(name="clock", ok=True, detail="the server does not say its time")
    difference = round(local.timestamp() * 1000) - now_ms
    if abs(difference) > _MAX_CLOCK_DIFFERENCE_MS:
        return StoreCheckResult(
            name="clock",
            ok=True,
            detail=f"differs from this machine by {difference / 1000:.1f} s",
            advice="Synchronize the clocks of all machines, also those of the other members: after an "
            "election another clock counts.",
        )
    return StoreCheckResult(name="clock", ok=True, detail="agrees with this machine")


async def _check_layout(database: Any) -> StoreCheckResult:
    version = await read_version(database)
    if version is None:
        return StoreCheckResult(
            name="layout", ok=False, detail="no collections of Homing", advice="Run `homing db migrate`."
        )
    advice = "Run `homing db migrate`." if version < SCHEMA_VERSION else ""
    return StoreCheckResult(name="layout", ok=True, detail=f"version {version}", advice=advice)


async def _check_indexes(database: Any) -> StoreCheckResult:
    missing = await missing_indexes(database)
    if missing:
        return StoreCheckResult(
            name="indexes",
            ok=False,
            detail=f"missing: {', '.join(missing)}",
            advice="Run `homing db migrate`; without them, claims read the whole backlog.",
        )
    return StoreCheckResult(name="indexes", ok=True, detail="complete")
