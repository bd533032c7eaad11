"""`homing policy show|set|unset|history|table`: shows retry policies and changes them at run time.

`homing policy simulate` has its own module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    Json,
    Limit,
    Options,
    Who,
    Why,
    command,
    open_engine,
    parse_choice,
    record_audit,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_local_time
from homing.cli.operations.policy_flags import MatchFlags, PolicyFlags
from homing.cli.operations.policy_output import format_rule, show_policy_fields
from homing.cli.root import add_command_group
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from homing.core.retry.policy import MatchKeys, Preset, Rule
    from homing.core.retry.policy_views import Delay
    from homing.engine.operations.policies import PolicyChange
    from homing.library import Homing


policy = add_command_group("policy", "Show, change, tabulate and simulate retry policies.")


Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule's name.")]


@command(policy, "show")
async def show(
    options: Options,
    match: MatchFlags,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="NAME", help="The mode; default: derived from type and priority."),
    ] = None,
    json: Json = False,
) -> int:
    """Show the policy for a kind of notification. Each field names its source."""
    from homing.core.notifications import Channel, Mode, Priority
    from homing.core.retry.policy import MatchKeys
    from homing.core.routing.delivery_modes import mode_of
    from homing.engine.operations.policies import explain_match_keys

    settings = options.settings()
    keys = MatchKeys(
        settings.tenant,
        match.type or "message",
        match.origin or "",
        parse_choice(Channel, match.channel, "--channel") or Channel.EMAIL,
        _priority(match.priority) or Priority.MEDIUM,
    )
    chosen = parse_choice(Mode, mode, "--mode") or mode_of(
        synchronous=None,
        type_=keys.type,
        priority=keys.priority,
        bulk=False,
        synchronous_types=frozenset(settings.synchronous_types),
    )
    async with _refreshed(options, or_in_memory=True) as homing:
        book = homing.policies.book
    found = book.resolve(keys, chosen)
    if json:
        print_json(explain_match_keys(book, keys, chosen, book.rules))
        return ExitCode.OK
    screen = options.screen
    screen.line(_summary(keys), f"in {chosen.value} mode", style="bold")
    screen.line("rule     ", found.rule or "no rule matches; the preset applies")
    screen.line("preset   ", f"{settings.preset}, rule {found.preset_rule}")
    show_policy_fields(screen, found)
    return ExitCode.OK


@command(policy, "set")
async def set_(
    options: Options,
    name: Name,
    match: MatchFlags,
    fields: PolicyFlags,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the rule of that name instead of changing it.")
    ] = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Add a rule or change some of its fields. All processes use the change within seconds."""
    from homing.core.notifications import Channel
    from homing.settings import build_rule

    keys = {
        "tenant": options.tenant,
        "type": match.type,
        "origin": match.origin,
        "channel": _any_or(match.channel, lambda: parse_choice(Channel, match.channel, "--channel")),
        "priority": _any_or(match.priority, lambda: _priority(match.priority)),
    }
    given = {key: value for key, value in {**keys, **fields.build()}.items() if value is not None}
    async with _refreshed(options, existing=False) as homing:
        policies = homing.policies
        before = next((rule for rule in policies.book.rules if rule.name == name), None)
        if not given and (before is None or not fresh):
            raise CliError(f"{name}: nothing to set; give a match (--type, …) or a field (--base, …)")
        known = {} if before is None or fresh else _flat(before)
        rule = build_rule({**known, **given, "name": name}, "policy")
        await policies.check(rule)
        by = await record_audit(homing, "policy.set", name, who=who, why=why)
        change = await policies.set(rule, who=by, why=why)
    _show_change(options, change, json=json)
    return ExitCode.OK


@command(policy, "unset")
async def unset(options: Options, name: Name, who: Who = None, why: Why = "", json: Json = False) -> int:
    """Remove a rule, even one from the settings file."""
    async with _refreshed(options) as homing:
        by = await record_audit(homing, "policy.unset", name, who=who, why=why)
        change = await homing.policies.remove(name, who=by, why=why)
    _show_change(options, change, json=json)
    return ExitCode.OK


@command(policy, "history")
async def history(options: Options, limit: Limit = 20, json: Json = False) -> int:
    """List the policy changes made at run time, newest first."""
    from homing.engine.operations.policies import change_view

    async with _refreshed(options, or_in_memory=True) as homing:
        changes = await homing.policies.changes(limit)
    if json:
        print_json([change_view(change) for change in changes])
        return ExitCode.OK
    if not changes:
        options.notes.line("no changes: the policies are those of the settings")
        return ExitCode.OK
    options.screen.table(
        ("AT", "RULE", "WHO", "WHY", "BEFORE", "AFTER"),
        [
            (
                format_local_time(_changed_at(c)),
                c.rule,
                c.who,
                c.why,
                format_rule(c.before) or "none",
                format_rule(c.after) or "removed",
            )
            for c in changes
        ],
    )
    return ExitCode.OK


def _show_change(options: Options, change: PolicyChange, *, json: bool) -> None:
    from homing.engine.operations.policies import change_view

    if json:
        print_json(change_view(change))
        return
    screen = options.screen
    screen.line(
        styled(change.rule, "bold"), f"changed by {change.who}" + (f": {change.why}" if change.why else "")
    )
    screen.line("before   ", format_rule(change.before) or "no such rule")
    screen.line("after    ", format_rule(change.after) or "removed")


@asynccontextmanager
async def _refreshed(
    options: Options, *, existing: bool = True, or_in_memory: bool = False
) -> AsyncIterator[Homing]:
    """Opens the engine and loads the policy changes made at run time."""
    async with open_engine(options, existing=existing, or_in_memory=or_in_memory) as homing:
        await homing.policies.refresh()
        yield homing


def _flat(rule: Rule) -> dict[str, Any]:
    keys = {name: getattr(rule, name) for name in rule.__struct_fields__ if name not in ("name", "policy")}
    return {**{name: value for name, value in keys.items() if value != "*"}, **rule.policy.given()}


def _priority(name: str | None) -> Any:
    from homing.core.send_request import priority_of

    return None if name is None else priority_of(name)


def _any_or(given: str | None, parse: Any) -> str | None:
    """Returns the parsed value. None and `*`, which matches anything, are returned unchanged."""
    if given is None or given == "*":
        return given
    return str(parse().value)


def _summary(keys: MatchKeys) -> str:
    origin = f" from {keys.origin}" if keys.origin else ""
    return (
        f"{keys.type}{origin} by {keys.channel.value}, {keys.priority.value} priority, tenant {keys.tenant}"
    )


def _changed_at(change: PolicyChange) -> datetime:
    from homing.core.times import moment

    return moment(change.at)


@command(policy, "table")
def table(
    options: Options,
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET]", help="priority, simple, channel, fixed or broker; default: all presets."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Tabulate the retry delays of one preset, or of all."""
    import msgspec

    from homing.core.retry.presets import PRESETS
    from homing.core.retry.presets import find_preset as named

    chosen = PRESETS.values() if preset is None else (named(preset),)
    rows = [row for one in chosen for row in _preset_delays(one)]
    if json:
        print_json([{"policy": name, **msgspec.to_builtins(delay)} for name, delay in rows])
        return ExitCode.OK
    lines = []
    for name, delay in rows:
        first = styled(name, "bold") if delay.attempt == 1 else ""
        up_to = format_duration(delay.max_ms) if delay.max_ms != delay.min_ms else ""
        lines.append(
            (
                first,
                delay.attempt,
                format_duration(delay.min_ms),
                up_to,
                format_duration(delay.cumulative_min_ms),
            )
        )
    options.screen.table(
        ("POLICY", "AFTER ATTEMPT>", "WAIT>", "WITH JITTER UP TO>", "TOTAL AT LEAST>"), lines
    )
    return ExitCode.OK


def _preset_delays(preset: Preset) -> Iterator[tuple[str, Delay]]:
    """Yields `PRESET/RULE` and the delay for each retry of each rule."""
    from homing.core.retry.policy import RetryPolicy
    from homing.engine.operations.policies import retry_delays

    for rule in preset.rules:
        for delay in retry_delays(RetryPolicy(**rule.policy.given())):
            yield f"{preset.name}/{rule.name}", delay
