"""Retry policies: the curve of each, the rule that matches, history, changes, and rehearsals of an outage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec import UNSET
from starlette.responses import Response

from homing.charts.small import draw_sparkline, draw_steps
from homing.core.access.scopes import Scope
from homing.core.durations import format_duration, parse_duration
from homing.core.errors import CommandRefused, ConfigError, InvalidRequest, NotFound
from homing.core.notifications import Channel, Mode, Priority
from homing.core.plain_values import enum_member
from homing.core.rehearsal import Outage, OutageKind, Rehearsal, Traffic
from homing.core.retry.policy import (
    Backoff,
    BounceFailover,
    FailoverWait,
    Jitter,
    MatchKeys,
    OnTimeout,
    PolicyBook,
    PolicyPatch,
    Preset,
    RetryPolicy,
    Rule,
)
from homing.core.retry.policy_views import PolicyChangeView, RuleView
from homing.core.routing.delivery_modes import mode_of
from homing.core.send_request import priority_of
from homing.dashboard.rendering import trust
from homing.dashboard.visits import Screens, Visit
from homing.engine.operations.policies import change_view, explain_match_keys, retry_delays, rule_view

screens = Screens()

_MAX_TRAFFIC = 50.0
"""Maximum number of notifications per second in a rehearsal."""

_MAX_RULES = 200
"""Maximum number of rules that the page lists."""

_MAX_POINTS = 50
"""Number of points of a rule's line, about, however many attempts it has."""

_WHOLE = ("max_attempts", "failover_after")

_FRACTIONS = ("factor", "jitter_ratio")

_DURATIONS = ("base_ms", "cap_ms", "jitter_ms", "timeout_ms", "max_age_ms")

_CHOICES: dict[str, list[str]] = {
    "backoff": [one.value for one in Backoff if one is not Backoff.CALLABLE],
    "jitter": list(Jitter),
    "failover_wait": list(FailoverWait),
    "on_timeout": list(OnTimeout),
    "bounce_failover": list(BounceFailover),
}
"""Fields of a rule with a fixed set of values. A delay function can only be set in the settings."""

_RULE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""Names of rules that the API accepts too."""

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
    mode = _mode(visit, keys)
    found = explain_match_keys(book, keys, mode, tuple(visible))
    edited = _edited(visible, visit.query.get("edit", "")) if admin else None
    changes = [change_view(one) for one in await policies.changes(30)] if admin else []
    return visit.page(
        "policies.html",
        preset=book.preset.name,
        rules=[
            (rule_view(rule, policies), *_curve(visit, book.preset, rule)) for rule in visible[:_MAX_RULES]
        ],
        preset_rules=[
            (rule_view(rule, preset=True), *_curve(visit, book.preset, rule, own=True))
            for rule in book.preset.rules
        ],
        complete=len(visible) <= _MAX_RULES,
        edited=edited,
        values={} if edited is None else _form_values(edited),
        choices=_CHOICES,
        callable=Backoff.CALLABLE,
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
    if not name or not why:
        raise InvalidRequest("why" if name else "name", "is missing")
    if not _RULE_NAME.fullmatch(name):
        raise InvalidRequest("name", "must have 1 to 100 letters, digits and . _ : - only")
    rule = Rule(name=name, policy=_patch(form), **{key: form.get(key) or "*" for key in _KEYS})
    await visit.api.policies.check(rule)
    await visit.note("policy.set", name, why=why)
    await visit.api.policies.set(rule, who=visit.caller.who, why=why)
    return visit.go("policies", done="saved")


@screens.post("policies/rules/{name}/remove", Scope.ADMIN)
async def remove_rule(visit: Visit, name: str, form: dict[str, str]) -> Response:
    """Removes a rule."""
    policies = visit.api.policies
    await policies.refresh()
    if name not in {rule.name for rule in policies.book.rules}:
        raise NotFound(f"there is no rule {name!r}")
    await visit.note("policy.unset", name, why=form.get("why", ""))
    await policies.remove(name, who=visit.caller.who, why=form.get("why", ""))
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
                kind=enum_member(OutageKind, form.get("kind") or "down", "kind"),
            ),
        ),
        providers=2 if form.get("providers") == "2" else 1,
    )
    with visit.tools.simulating(visit.caller.tenant):
        report = await simulate(rehearsal)
    (outage,) = rehearsal.outages
    return visit.page(
        "rehearsal.html", report=report, drawing=trust(draw(report)), asked=rehearsal, outage=outage
    )


def _patch(form: dict[str, str]) -> PolicyPatch:
    """Returns the fields of a rule that a form sets."""
    given: dict[str, Any] = {}
    for field in _WHOLE:
        if form.get(field):
            given[field] = _whole(form[field], field)
    for field in _FRACTIONS:
        if form.get(field):
            given[field] = _fraction(form[field], field)
    for field in _DURATIONS:
        if form.get(field):
            given[field] = parse_duration(form[field], field)
    for field in _CHOICES:
        if form.get(field):
            given[field] = form[field]
    if form.get("steps_ms"):
        given["steps_ms"] = tuple(parse_duration(one, "steps_ms") for one in form["steps_ms"].split(","))
    try:
        return msgspec.convert(given, PolicyPatch)
    except msgspec.ValidationError as error:
        raise InvalidRequest("policy", str(error)) from None


def _traffic_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise InvalidRequest("traffic", "is not a number; give notifications per second") from None
    if not 0 < rate <= _MAX_TRAFFIC:
        raise InvalidRequest("traffic", f"must be above 0 and at most {_MAX_TRAFFIC:g} per second")
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


def _fraction(text: str, field: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(field, f"is {text!r}; it must be a number") from None


def _edited(rules: Iterable[Rule], name: str) -> Rule | None:
    """Returns the rule with this name. None if there is none, or if only the settings can change it."""
    found = next((rule for rule in rules if rule.name == name), None)
    return None if found is None or found.policy.call is not UNSET else found


def _form_values(rule: Rule) -> dict[str, str]:
    """Returns the fields of the form that stores a rule, with the values that the rule has now."""
    found = {key: value for key in _KEYS if (value := getattr(rule, key)) != "*"}
    for field, value in rule.policy.given().items():
        if field == "steps_ms":
            found[field] = ", ".join(map(format_duration, value))
        else:
            found[field] = format_duration(value) if field in _DURATIONS else f"{value}"
    return {"name": rule.name, **found}


def _mode(visit: Visit, keys: MatchKeys) -> Mode:
    """Returns the mode in which notifications with these properties are delivered."""
    return mode_of(
        synchronous=None,
        type_=keys.type,
        priority=keys.priority,
        bulk=False,
        synchronous_types=visit.engine.settings.intake.synchronous_types,
    )


def _curve(visit: Visit, preset: Preset, rule: Rule, *, own: bool = False) -> tuple[str, Markup]:
    """Returns in words and as a line when a rule's attempts are made, for notifications that only it matches.

    Where the rule matches all priorities, they have medium priority. `own`: the rule is one of the preset.
    """
    keys = MatchKeys(
        visit.caller.tenant if rule.tenant == "*" else rule.tenant,
        "message" if rule.type == "*" else rule.type,
        "" if rule.origin == "*" else rule.origin,
        Channel.EMAIL if rule.channel == "*" else Channel(rule.channel),
        Priority.MEDIUM if rule.priority == "*" else Priority(rule.priority),
    )
    policy = PolicyBook(preset, () if own else (rule,)).policy(keys, _mode(visit, keys))
    delays = list(retry_delays(policy))
    low, high = sum(one.min_ms for one in delays), sum(one.max_ms for one in delays)
    if not delays:
        return "1", Markup()
    values = [0.0, *accumulate(float(one.max_ms) for one in delays)]
    title = (
        f"{policy.max_attempts} attempts, the last one after {format_duration(low, spaced=True)} to "
        f"{format_duration(high, spaced=True)}"
    )
    text = f"{policy.max_attempts} in up to {format_duration(high, spaced=True)}"
    step = max(1, len(values) // _MAX_POINTS)
    return text, trust(draw_sparkline(values[::step], title=title, width=96))


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
        if name == "steps_ms":
            shown = ", ".join(map(format_duration, value))
        found[_field_name(name)] = shown
    return found


def _field_name(name: str) -> str:
    """Returns the name of a field on the page. `jitter` and `jitter_ms` are two fields."""
    return "additive jitter" if name == "jitter_ms" else name.removesuffix("_ms").replace("_", " ")


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
