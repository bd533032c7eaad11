"""Retry policies: which rules are in force, which one wins, changing them, and rehearsing an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.api.answers import ApiError, Items
from homing.api.notifications import Why
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.errors import ConfigError
from homing.core.model import Channel, Mode, Priority
from homing.core.modes import mode_of
from homing.core.policy import Keys, PolicyBook, Rule
from homing.core.presets import preset as preset_named
from homing.core.reading import camel
from homing.core.rehearsal import Outage, Rehearsal, RehearsalReport, Traffic
from homing.core.request import priority_of
from homing.core.text import check_line
from homing.engine.rule_views import (
    Delay,
    PolicyChangeView,
    PolicyExplanation,
    PolicyFields,
    RuleKeys,
    RuleView,
    change_view,
    delays,
    explained_keys,
    rule_view,
)

routes = Routes("Policies")

RuleName = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_.:-]{1,100}$", description="The rule's name.", examples=["otp-fast"])
]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[^\\x00-\\x1f\\x7f]+$")]

_SIMULATIONS_AT_ONCE = 2


class PolicyList(Struct, frozen=True, kw_only=True, rename="camel"):
    """The preset and the rules over it."""

    preset: str
    fallback: str
    """The preset's rule for what none of its rules matches."""
    rules: tuple[RuleView, ...]
    """One's own; the most specific that matches wins."""
    preset_rules: tuple[RuleView, ...]
    """What a rule leaves out comes from the best of these."""


class RuleWritten(RuleKeys, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A rule whole: what it leaves out comes from the preset."""

    policy: PolicyFields = PolicyFields()
    why: Why = ""


class WhyQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why it is done."""

    why: Why = ""


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far back."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class KeysQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a notification would be matched by; the tenant is the caller's."""

    type: Annotated[Name, Meta(examples=["order_confirmed"])] = "message"
    origin: Annotated[str, Meta(max_length=100)] = ""
    channel: Channel = Channel.EMAIL
    priority: Annotated[str, Meta(pattern=f"^({'|'.join(Priority)}|normal)$")] = "medium"
    mode: Mode | None = None
    """None: as the type and the priority say."""


class DelayTable(Struct, frozen=True, kw_only=True, rename="camel"):
    """Every wait on the way to the dead letter, exactly."""

    rule: str | None
    preset_rule: str
    max_attempts: int
    delays: tuple[Delay, ...]


class Simulation(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A policy, an outage and traffic. What is left out is as in force, or as the default says."""

    preset: Annotated[str, Meta(pattern="^(priority|simple|channel|fixed|broker)$")] | None = None
    """None: the preset and the rules in force."""
    policy: PolicyFields | None = None
    """These fields hold for everything, over the preset; the rules in force are left out then."""
    traffic: Traffic = Traffic(per_second=1.0)
    outages: Annotated[tuple[Outage, ...], Meta(max_length=10)] = (Outage(),)
    providers: Annotated[int, Meta(ge=1, le=2)] = 1
    """1: `primary` alone; 2: `primary` and, after it, `secondary`."""
    latency_ms: Annotated[int, Meta(ge=0, le=60_000)] = 200
    rate_per_second: Annotated[float, Meta(ge=0.1, le=10_000)] | None = None
    """The rate limit of each provider, if it has one."""
    max_in_flight: Annotated[int, Meta(ge=1, le=1000)] = 128
    notifications: Annotated[int, Meta(ge=1, le=2_000)] = 1_000
    """No more than this many are sent, whatever the traffic says."""
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1


@routes.get("/policies", scope=Scope.READ)
async def list_policies(call: Call) -> PolicyList:
    """The rules in force, and where each comes from."""
    policies = call.front.policies
    await policies.refresh()
    book = policies.book
    return PolicyList(
        preset=book.preset.name,
        fallback=book.preset.fallback,
        rules=tuple(rule_view(rule, policies) for rule in _visible(call, book)),
        preset_rules=tuple(rule_view(rule, preset=True) for rule in book.preset.rules),
    )


@routes.get("/policies/history", scope=Scope.ADMIN)
async def policy_history(call: Call, query: HistoryQuery) -> Items[PolicyChangeView]:
    """Who changed which rule, when and why; newest first."""
    return Items(tuple(map(change_view, await call.front.policies.changes(query.limit))))


@routes.get("/policies/explain", scope=Scope.READ)
async def explain_policy(call: Call, query: KeysQuery) -> PolicyExplanation:
    """Which policy applies to such a notification, and where each of its fields comes from."""
    await call.front.policies.refresh()
    book = call.front.policies.book
    return explained_keys(book, *_matched(call, query), tuple(_visible(call, book)))


@routes.get("/policies/table", scope=Scope.READ)
async def policy_table(call: Call, query: KeysQuery) -> DelayTable:
    """Every wait of such a notification on the way to the dead letter."""
    await call.front.policies.refresh()
    found = call.front.policies.book.resolve(*_matched(call, query))
    return DelayTable(
        rule=found.rule,
        preset_rule=found.preset_rule,
        max_attempts=found.policy.max_attempts,
        delays=tuple(delays(found.policy)),
    )


@routes.post("/policies/simulate", scope=Scope.READ, errors=("CONFIG_ERROR",))
async def simulate_policy(call: Call, body: Simulation) -> RehearsalReport:
    """What would happen: the engine's own code under virtual time, with this policy, outage and traffic.

    Nothing is sent and nothing is changed. A rehearsal that takes too long is broken off: 422.
    """
    simulate = call.service.simulate
    if simulate is None:
        raise ApiError("INVALID_REQUEST", "this process has no simulator; use `homing policy simulate`")
    if call.service.simulating >= _SIMULATIONS_AT_ONCE:
        raise ApiError("OVERLOADED", "other simulations are under way; come again in some seconds")
    call.service.simulating += 1  # before anything is awaited: those who ask meanwhile must see it
    try:
        with _wire_names("simulated"):
            return await simulate(await _rehearsal(call, body))
    finally:
        call.service.simulating -= 1


@routes.get("/policies/{name}", scope=Scope.READ, errors=("NOT_FOUND",))
async def get_policy(call: Call, name: RuleName) -> RuleView:
    """One rule of one's own."""
    await call.front.policies.refresh()
    return rule_view(_rule(call, name), call.front.policies)


@routes.put("/policies/{name}", scope=Scope.ADMIN, errors=("CONFIG_ERROR",))
async def put_policy(call: Call, name: RuleName, body: RuleWritten) -> PolicyChangeView:
    """Add or replace a rule. It holds from the next decision on, in every process."""
    check_line(name, "name")
    keys = {key: getattr(body, key) for key in Keys.__struct_fields__}
    policies = call.front.policies
    with _wire_names(name):
        rule = Rule(name=name, policy=body.policy.patch(), **keys)
        await policies.check(rule)  # what is refused is not in the trail
    await call.note("policy.set", name, why=body.why)
    return change_view(await policies.set(rule, who=call.caller.who, why=body.why))


@routes.delete("/policies/{name}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def delete_policy(call: Call, name: RuleName, query: WhyQuery) -> PolicyChangeView:
    """Take a rule out, also one that the settings file has."""
    await call.front.policies.refresh()
    _rule(call, name)
    await call.note("policy.unset", name, why=query.why)
    return change_view(await call.front.policies.remove(name, who=call.caller.who, why=query.why))


def _visible(call: Call, book: PolicyBook) -> list[Rule]:
    """Rules that name another tenant are nobody's business but the administrator's."""
    admin = call.caller.may(Scope.ADMIN)
    return [rule for rule in book.rules if admin or rule.tenant in ("*", call.caller.tenant)]


def _rule(call: Call, name: str) -> Rule:
    for rule in _visible(call, call.front.policies.book):
        if rule.name == name:
            return rule
    raise ApiError("NOT_FOUND", f"there is no rule {name!r}; /api/v1/policies lists them")


@contextmanager
def _wire_names(rule: str) -> Iterator[None]:
    """What the engine refuses is named as the body has it: `policy.capMs`, not `policy.NAME.cap_ms`."""
    try:
        yield
    except ConfigError as error:
        inner = error.field.removeprefix(f"policy.{rule}.")
        own = inner in PolicyFields.__struct_fields__
        field = ".".join(camel(part) for part in (f"policy.{inner}" if own else inner).split("."))
        told = error.message.removeprefix(f"{error.field}: ")
        raise ApiError(error.code, f"{field}: {told}", field=field) from None


def _matched(call: Call, query: KeysQuery) -> tuple[Keys, Mode]:
    keys = Keys(call.caller.tenant, query.type, query.origin, query.channel, priority_of(query.priority))
    mode = query.mode or mode_of(
        synchronous=None,
        type_=keys.type,
        priority=keys.priority,
        bulk=False,
        synchronous_types=call.service.engine.settings.intake.synchronous_types,
    )
    return keys, mode


async def _rehearsal(call: Call, body: Simulation) -> Rehearsal:
    """The rehearsal that is asked for; raises where its parts do not fit together."""
    policies = call.front.policies
    await policies.refresh()
    chosen = preset_named(body.preset) if body.preset else policies.book.preset
    if body.policy is not None:
        rules: tuple[Rule, ...] = (Rule(name="simulated", policy=body.policy.patch()),)
    else:
        rules = () if body.preset else tuple(_visible(call, policies.book))
    PolicyBook(chosen, rules)
    return Rehearsal(
        preset=chosen.name,
        rules=rules,
        traffic=replace(body.traffic, tenant=call.caller.tenant),
        outages=body.outages,
        providers=body.providers,
        latency_ms=body.latency_ms,
        rate_per_second=body.rate_per_second,
        max_in_flight=body.max_in_flight,
        notifications=body.notifications,
        seed=body.seed,
    )
