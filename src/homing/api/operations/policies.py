"""Routes for retry policies: list, explain, change and simulate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from homing.api.http.bodies import ApiError
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import ConfigError
from homing.core.notifications import Mode
from homing.core.plain_values import check_line
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.core.request_decoding import to_camel_case
from homing.core.retry.policy import MatchKeys, PolicyBook, Rule
from homing.core.retry.policy_views import (
    PolicyChangeView,
    PolicyExplanation,
    PolicyFields,
    RuleView,
)
from homing.core.retry.presets import find_preset as preset_named
from homing.core.routing.delivery_modes import mode_of
from homing.core.send_request import priority_of
from homing.engine.operations.policies import change_view, explain_match_keys, retry_delays, rule_view
from homing.wire.common import ItemList
from homing.wire.policies import (
    DelayTable,
    HistoryQuery,
    PolicyList,
    PolicyQuery,
    RuleBody,
    SimulationBody,
    WhyQuery,
)

routes = Routes("Policies")


RuleName = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_.:-]{1,100}$", description="Name of the rule.", examples=["otp-fast"])
]


@routes.get("/policies", scope=Scope.READ)
async def list_policies(call: ApiCall) -> PolicyList:
    """List the active preset and rules, and the source of each rule."""
    policies = call.tenant_api.policies
    await policies.refresh()
    book = policies.book
    return PolicyList(
        preset=book.preset.name,
        fallback=book.preset.fallback,
        rules=tuple(rule_view(rule, policies) for rule in _visible(call, book)),
        preset_rules=tuple(rule_view(rule, preset=True) for rule in book.preset.rules),
    )


@routes.get("/policies/history", scope=Scope.ADMIN)
async def policy_history(call: ApiCall, query: HistoryQuery) -> ItemList[PolicyChangeView]:
    """List changes to the rules, newest first: who changed which rule, when and why."""
    return ItemList(tuple(map(change_view, await call.tenant_api.policies.changes(query.limit))))


@routes.get("/policies/explain", scope=Scope.READ)
async def explain_policy(call: ApiCall, query: PolicyQuery) -> PolicyExplanation:
    """Explain which policy applies to notifications with these properties.

    The response includes the source of each policy field.
    """
    await call.tenant_api.policies.refresh()
    book = call.tenant_api.policies.book
    return explain_match_keys(book, *_matched(call, query), tuple(_visible(call, book)))


@routes.get("/policies/table", scope=Scope.READ)
async def policy_table(call: ApiCall, query: PolicyQuery) -> DelayTable:
    """List the delays between attempts for a notification with these properties."""
    await call.tenant_api.policies.refresh()
    found = call.tenant_api.policies.book.resolve(*_matched(call, query))
    return DelayTable(
        rule=found.rule,
        preset_rule=found.preset_rule,
        max_attempts=found.policy.max_attempts,
        delays=tuple(retry_delays(found.policy)),
    )


@routes.post("/policies/simulate", scope=Scope.MANAGE, errors=("CONFIG_ERROR",))
async def simulate_policy(call: ApiCall, body: SimulationBody) -> RehearsalReport:
    """Simulate a policy, outages and traffic.

    Runs the engine's own code under virtual time. Nothing is sent and nothing is changed. A simulation that
    takes too long is aborted with 422. Each tenant can run one at a time.
    """
    simulate = call.service.simulate
    if simulate is None:
        raise ApiError(
            "INVALID_REQUEST", "simulations are not available in this process; use `homing policy simulate`"
        )
    with (
        call.service.simulating(call.caller.tenant),
        _wire_names("simulated"),
    ):
        return await simulate(await _rehearsal(call, body))


@routes.get("/policies/{name}", scope=Scope.READ, errors=("NOT_FOUND",))
async def get_policy(call: ApiCall, name: RuleName) -> RuleView:
    """Retrieve a custom rule."""
    await call.tenant_api.policies.refresh()
    return rule_view(_rule(call, name), call.tenant_api.policies)


@routes.put("/policies/{name}", scope=Scope.ADMIN, errors=("CONFIG_ERROR",))
async def put_policy(call: ApiCall, name: RuleName, body: RuleBody) -> PolicyChangeView:
    """Create or replace a custom rule. All processes apply it within five seconds."""
    check_line(name, "name")
    keys = {key: getattr(body, key) for key in MatchKeys.__struct_fields__}
    policies = call.tenant_api.policies
    with _wire_names(name):
        rule = Rule(name=name, policy=body.policy.patch(), **keys)
        await policies.check(rule)  # rejected rules must not appear in the audit trail
    await call.note("policy.set", name, why=body.why)
    return change_view(await policies.set(rule, who=call.caller.who, why=body.why))


@routes.delete("/policies/{name}", scope=Scope.ADMIN, errors=("NOT_FOUND",))
async def delete_policy(call: ApiCall, name: RuleName, query: WhyQuery) -> PolicyChangeView:
    """Delete a custom rule, including one from the settings file."""
    await call.tenant_api.policies.refresh()
    _rule(call, name)
    await call.note("policy.unset", name, why=query.why)
    return change_view(await call.tenant_api.policies.remove(name, who=call.caller.who, why=query.why))


def _visible(call: ApiCall, book: PolicyBook) -> list[Rule]:
    """Returns the rules that the caller may see. Only administrators see other tenants' rules."""
    admin = call.caller.may(Scope.ADMIN)
    return [rule for rule in book.rules if admin or rule.tenant in ("*", call.caller.tenant)]


def _rule(call: ApiCall, name: str) -> Rule:
    for rule in _visible(call, call.tenant_api.policies.book):
        if rule.name == name:
            return rule
    raise ApiError("NOT_FOUND", f"there is no rule {name!r}; /api/v1/policies lists all rules")


@contextmanager
def _wire_names(rule: str) -> Iterator[None]:
    """Renames the field of a `ConfigError` as in the body: `policy.NAME.cap_ms` to `policy.capMs`."""
    try:
        yield
    except ConfigError as error:
        inner = error.field.removeprefix(f"policy.{rule}.")
        own = inner in PolicyFields.__struct_fields__
        field = ".".join(to_camel_case(part) for part in (f"policy.{inner}" if own else inner).split("."))
        problem = error.message.removeprefix(f"{error.field}: ")
        raise ApiError(error.code, f"{field}: {problem}", field=field) from None


def _matched(call: ApiCall, query: PolicyQuery) -> tuple[MatchKeys, Mode]:
    keys = MatchKeys(call.caller.tenant, query.type, query.origin, query.channel, priority_of(query.priority))
    mode = query.mode or mode_of(
        synchronous=None,
        type_=keys.type,
        priority=keys.priority,
        bulk=False,
        synchronous_types=call.service.engine.settings.intake.synchronous_types,
    )
    return keys, mode


async def _rehearsal(call: ApiCall, body: SimulationBody) -> Rehearsal:
    """Returns the requested simulation. Raises `ConfigError` if the policy is not valid."""
    policies = call.tenant_api.policies
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
