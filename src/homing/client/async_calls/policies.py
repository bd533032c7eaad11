"""Policies, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.policies import (
    DelayTable,
    HistoryQuery,
    KeysQuery,
    PolicyChangeView,
    PolicyExplanation,
    PolicyFields,
    PolicyList,
    RuleView,
    RuleWritten,
    Simulation,
    WhyQuery,
)
from homing.client.structs.queue import Items
from homing.core.model import Channel, Mode
from homing.core.rehearsal import Outage, RehearsalReport, Traffic


class AsyncPolicies(AsyncCalling):
    """The operations on policies."""

    async def list_policies(self) -> PolicyList:
        """The rules in force, and where each comes from."""
        return await self._ask(PolicyList, "GET", "/api/v1/policies")

    async def policy_history(self, *, limit: int = 50) -> Items[PolicyChangeView]:
        """Who changed which rule, when and why; newest first."""
        return await self._ask(
            Items[PolicyChangeView], "GET", "/api/v1/policies/history", query=HistoryQuery(limit=limit)
        )

    async def explain_policy(
        self,
        *,
        type: str = "message",
        origin: str = "",
        channel: Channel = Channel.EMAIL,
        priority: str = "medium",
        mode: Mode | None = None,
    ) -> PolicyExplanation:
        """Which policy applies to such a notification, and where each of its fields comes from."""
        return await self._ask(
            PolicyExplanation,
            "GET",
            "/api/v1/policies/explain",
            query=KeysQuery(type=type, origin=origin, channel=channel, priority=priority, mode=mode),
        )

    async def policy_table(
        self,
        *,
        type: str = "message",
        origin: str = "",
        channel: Channel = Channel.EMAIL,
        priority: str = "medium",
        mode: Mode | None = None,
    ) -> DelayTable:
        """Every wait of such a notification on the way to the dead letter."""
        return await self._ask(
            DelayTable,
            "GET",
            "/api/v1/policies/table",
            query=KeysQuery(type=type, origin=origin, channel=channel, priority=priority, mode=mode),
        )

    async def simulate_policy(
        self,
        *,
        preset: str | None = None,
        policy: PolicyFields | None = None,
        traffic: Traffic | None = None,
        outages: tuple[Outage, ...] | None = None,
        providers: int = 1,
        latency_ms: int = 200,
        rate_per_second: float | None = None,
        max_in_flight: int = 128,
        notifications: int = 1000,
        seed: int = 1,
    ) -> RehearsalReport:
        """What would happen: the engine's own code under virtual time, with this policy, outage and
        traffic.

        Nothing is sent and nothing is changed. A rehearsal that takes too long is broken off: 422.
        """
        return await self._ask(
            RehearsalReport,
            "POST",
            "/api/v1/policies/simulate",
            body=Simulation(
                preset=preset,
                policy=policy,
                traffic=Traffic(per_second=1.0) if traffic is None else traffic,
                outages=(Outage(),) if outages is None else outages,
                providers=providers,
                latency_ms=latency_ms,
                rate_per_second=rate_per_second,
                max_in_flight=max_in_flight,
                notifications=notifications,
                seed=seed,
            ),
        )

    async def get_policy(self, name: str) -> RuleView:
        """One rule of one's own."""
        return await self._ask(RuleView, "GET", f"/api/v1/policies/{part(name)}")

    async def put_policy(
        self,
        name: str,
        *,
        tenant: str = "*",
        type: str = "*",
        origin: str = "*",
        channel: str = "*",
        priority: str = "*",
        policy: PolicyFields | None = None,
        why: str = "",
    ) -> PolicyChangeView:
        """Add or replace a rule. It holds from the next decision on, in every process."""
        return await self._ask(
            PolicyChangeView,
            "PUT",
            f"/api/v1/policies/{part(name)}",
            body=RuleWritten(
                tenant=tenant,
                type=type,
                origin=origin,
                channel=channel,
                priority=priority,
                policy=PolicyFields() if policy is None else policy,
                why=why,
            ),
        )

    async def delete_policy(self, name: str, *, why: str = "") -> PolicyChangeView:
        """Take a rule out, also one that the settings file has."""
        return await self._ask(
            PolicyChangeView, "DELETE", f"/api/v1/policies/{part(name)}", query=WhyQuery(why=why)
        )
