"""Retry policies: the curve of each, the rule that matches, history, changes, and rehearsals of an outage."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from homing.charts.small import draw_steps
from homing.core.access.scopes import Scope
from homing.core.durations import format_duration, parse_duration
from homing.core.errors import CommandRefused, ConfigError, InvalidRequest
from homing.core.notifications import Channel, Priority
from homing.core.plain_values import check_line
from homing.core.rehearsal import Outage, OutageKind, Rehearsal, Traffic
from homing.core.retry.policy import MatchKeys, PolicyPatch, RetryPolicy, Rule
from homing.core.retry.policy_views import PolicyChangeView, RuleView
from homing.core.routing.delivery_modes import mode_of
from homing.core.send_request import priority_of
from homing.dashboard.rendering import trust
from homing.dashboard.visits import Screens, Visit
from homing.engine.operations.policies import change_view, explain_match_keys, retry_delays, rule_view

screens = Screens()

_MAX_TRAFFIC = 50.0
"""Maximum number of notifications per second in a rehearsal."""

_KEYS = ("tenant", "type", "origin", "channel", "priority")


@screens.get("policies", Scope.READ)
async def show_policies(visit: Visit) -> Response:
    """Shows the rules in force, the one that matches given properties, and the history."""
    policies = visit.api.policies
    await policies.refresh()
    book, admin = policies.book, visit.may(Scope.ADMIN)
    visible = [rule for rule in book.rules if admin or rule.tenant in ("*", visit.caller.tenant)]
    asked = {
        "type": visit.query.get("type") or "message",
        "origin": visit.query.get("origin", ""),
        "channel": visit.query.get("channel") or "email",
        "priority": visit.query.get("priority") or "medium",
    }
    keys = MatchKeys(
        visit.caller.tenant,
        asked["type"],
        asked["origin"],
        _channel(asked["channel"]),
        priority_of(asked["priority"]),
    )
    mode = mode_of(synchronous=None, type_=keys.type, priority=priority_of(asked["priority"]), bulk=False)
    found = explain_match_keys(book, keys, mode, tuple(visible))
    changes = [change_view(one) for one in await policies.changes(30)] if admin else []
    return visit.page(
        "policies.html",
        preset=book.preset.name,
        rules=[rule_view(rule, policies) for rule in visible],
        preset_rules=[rule_view(rule, preset=True) for rule in book.preset.rules],
        asked=asked,
        found=found,
        curve=_draw(book.resolve(keys, mode).policy),
        fields=_fields(found.policy),
        channels=list(Channel),
        priorities=list(Priority),
        changes=[(one, _diff(one)) for one in changes],
        summary=_summary,
        rehearses=visit.tools.simulate is not None,
        outage_kinds=list(OutageKind),
    )


@screens.post("policies/rules", Scope.ADMIN)
async def set_rule(visit: Visit, form: dict[str, str]) -> Response:
    """Adds or replaces a rule."""
    name, why = form.get("name", ""), form.get("why", "")
    check_line(name, "name")
    if not name or not why:
        raise InvalidRequest("why" if name else "name", "is missing")
    given: dict[str, Any] = {}
    for field in ("max_attempts", "failover_after"):
        if form.get(field):
            given[field] = _whole(form[field], field)
    for field in ("base_ms", "cap_ms", "max_age_ms", "timeout_ms"):
        if form.get(field):
            given[field] = parse_duration(form[field], field)
    for field in ("backoff", "jitter"):
        if form.get(field):
            given[field] = form[field]
    try:
        patch = msgspec.convert(given, PolicyPatch)
    except msgspec.ValidationError as error:
        raise InvalidRequest("policy", str(error)) from None
    rule = Rule(name=name, policy=patch, **{key: form.get(key) or "*" for key in _KEYS})
    await visit.api.policies.check(rule)
    await visit.note("policy.set", name, why=why)
    await visit.api.policies.set(rule, who=visit.caller.who, why=why)
    return visit.go("policies", done="saved")


@screens.post("policies/rules/{name}/remove", Scope.ADMIN)
async def remove_rule(visit: Visit, name: str, form: dict[str, str]) -> Response:
    """Removes a rule."""
    await visit.note("policy.unset", name, why=form.get("why", ""))
    await visit.api.policies.remove(name, who=visit.caller.who, why=form.get("why", ""))
    return visit.go("policies", done="removed")


@screens.post("policies/rehearse", Scope.MANAGE)
async def rehearse(visit: Visit, form: dict[str, str]) -> Response:
    """Simulates an outage under the rules in force, and shows the result."""
    simulate, draw = visit.tools.simulate, visit.tools.draw_simulation
    if simulate is None or draw is None:
        raise CommandRefused("simulations are not available in this process; use homing policy simulate")
    policies = visit.api.policies
    await policies.refresh()
    visible = tuple(one for one in policies.book.rules if one.tenant in ("*", visit.caller.tenant))
    both = form.get("providers") == "2"
    try:
        rehearsal = Rehearsal(
            preset=policies.book.preset.name,
            rules=visible,
            traffic=Traffic(
                per_second=_traffic_rate(form.get("rate") or "1"),
                duration_ms=parse_duration(form.get("duration") or "20m", "duration"),
                channel=_channel(form.get("channel") or "email"),
                tenant=visit.caller.tenant,
            ),
            outages=(
                Outage(
                    start_ms=120_000,
                    duration_ms=parse_duration(form.get("outage") or "10m", "outage"),
                    kind=OutageKind(form.get("kind") or "down"),
                ),
            ),
            providers=2 if both else 1,
        )
    except ValueError:
        raise InvalidRequest("rehearsal", "has a value that is not valid") from None
    with visit.tools.simulating(visit.caller.tenant):
        report = await simulate(rehearsal)
    (outage,) = rehearsal.outages
    return visit.page(
        "rehearsal.html", report=report, drawing=trust(draw(report)), asked=rehearsal, outage=outage
    )


def _traffic_rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate <= _MAX_TRAFFIC:
        raise InvalidRequest("rate", f"must be above 0 and at most {_MAX_TRAFFIC:g} per second")
    return rate


def _channel(text: str) -> Channel:
    if text not in tuple(Channel):
        raise InvalidRequest("channel", f"{text!r} is not a channel")
    return Channel(text)


def _whole(text: str, field: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(field, f"is {text!r}; it must be a whole number") from None


def _draw(policy: RetryPolicy) -> Markup:
    """Returns the earliest and latest time of each attempt, as a chart."""
    delays = list(retry_delays(policy))
    low = [0, *accumulate(one.min_ms for one in delays)]
    high = [0, *accumulate(one.max_ms for one in delays)]
    labels = [
        format_duration(a, spaced=True) if a == b else f"{format_duration(a)} to {format_duration(b)}"
        for a, b in zip(low, high, strict=True)
    ]
    steps = list(zip(map(float, low), map(float, high), strict=True))[:30]
    return trust(draw_steps(steps, labels[:30], title=f"times of up to {policy.max_attempts} attempts"))


def _fields(view: object) -> dict[str, str]:
    """Returns the fields of a policy as people read them."""
    found: dict[str, str] = {}
    for name in view.__struct_fields__:  # type: ignore[attr-defined]
        value = getattr(view, name)
        if value in (msgspec.UNSET, (), None):
            continue
        shown = format_duration(value) if name.endswith("_ms") and isinstance(value, int) else str(value)
        found[name.removesuffix("_ms").replace("_", " ")] = shown
    return found


def _summary(rule: RuleView) -> str:
    return ", ".join(f"{name} {value}" for name, value in _fields(rule.policy).items())


def _diff(change: PolicyChangeView) -> list[tuple[str, str, str]]:
    """Returns the fields of a rule that a change has changed: name, before and after."""

    def flat(rule: RuleView | None) -> dict[str, str]:
        if rule is None:
            return {}
        keys = {key: str(getattr(rule, key)) for key in _KEYS if getattr(rule, key) != "*"}
        return {**keys, **_fields(rule.policy)}

    before, after = flat(change.before), flat(change.after)
    return [
        (name, before.get(name, ""), after.get(name, ""))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
