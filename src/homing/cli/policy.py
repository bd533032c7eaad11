"""`homing policy show|set|unset|history`: shows retry policies and changes them at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli import filters
from homing.cli.exits import ExitCode, Refused
from homing.cli.policy_flags import (
    BackoffFlag,
    BaseFlag,
    BounceFlag,
    CapFlag,
    FactorFlag,
    FailoverFlag,
    JitterFlag,
    JitterMsFlag,
    JitterRatioFlag,
    MaxAgeFlag,
    MaxAttemptsFlag,
    OnTimeoutFlag,
    StepsFlag,
    TimeoutFlag,
    patch_from,
)
from homing.cli.policy_view import policy_fields, rule_words
from homing.cli.root import group
from homing.cli.screen import print_json, styled
from homing.cli.shared import Json, Options, Who, Why, command, engine, noted
from homing.cli.words import local

if TYPE_CHECKING:
    from datetime import datetime

    from homing.core.policy import Keys, Rule
    from homing.engine.policies import PolicyChange
    from homing.library import Homing

policy = group("policy", "Show, change, tabulate and simulate retry policies.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule's name.")]
TypeKey = Annotated[str | None, typer.Option("--type", metavar="NAME", help="The notification's type.")]
OriginKey = Annotated[str | None, typer.Option("--origin", metavar="NAME", help="The service that sends it.")]
ChannelKey = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="The channel.")]
PriorityKey = Annotated[str | None, typer.Option("--priority", metavar="NAME", help="The priority.")]


@command(policy, "show")
async def show(
    options: Options,
    type: TypeKey = None,
    origin: OriginKey = None,
    channel: ChannelKey = None,
    priority: PriorityKey = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="NAME", help="The mode; default: derived from type and priority."),
    ] = None,
    json: Json = False,
) -> int:
    """Show the policy for a kind of notification, and the source of each field."""
    from homing.core.model import Channel, Mode, Priority
    from homing.core.modes import mode_of
    from homing.core.policy import Keys
    from homing.engine.rule_views import explained_keys

    settings = options.settings()
    keys = Keys(
        settings.tenant,
        type or "message",
        origin or "",
        filters.one_of(Channel, channel, "--channel") or Channel.EMAIL,
        _priority(priority) or Priority.MEDIUM,
    )
    chosen = filters.one_of(Mode, mode, "--mode") or mode_of(
        synchronous=None,
        type_=keys.type,
        priority=keys.priority,
        bulk=False,
        synchronous_types=frozenset(settings.synchronous_types),
    )
    async with _refreshed(options) as homing:
        book = homing.policies.book
    found = book.resolve(keys, chosen)
    if json:
        print_json(explained_keys(book, keys, chosen, book.rules))
        return ExitCode.OK
    screen = options.screen
    screen.line(_summary(keys), f"in {chosen.value} mode", style="bold")
    screen.line("rule     ", found.rule or "no rule matches; the preset applies")
    screen.line("preset   ", f"{settings.preset}, rule {found.preset_rule}")
    policy_fields(screen, found)
    return ExitCode.OK


@command(policy, "set")
async def set_(
    options: Options,
    name: Name,
    type: TypeKey = None,
    origin: OriginKey = None,
    channel: ChannelKey = None,
    priority: PriorityKey = None,
    max_attempts: MaxAttemptsFlag = None,
    backoff: BackoffFlag = None,
    base: BaseFlag = None,
    factor: FactorFlag = None,
    steps: StepsFlag = None,
    cap: CapFlag = None,
    jitter: JitterFlag = None,
    jitter_ratio: JitterRatioFlag = None,
    jitter_max: JitterMsFlag = None,
    failover_after: FailoverFlag = None,
    timeout: TimeoutFlag = None,
    on_timeout: OnTimeoutFlag = None,
    max_age: MaxAgeFlag = None,
    bounce_failover: BounceFlag = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the rule of that name instead of changing it.")
    ] = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Add a rule or change some of its fields. Every process uses it from its next decision on."""
    from homing import config
    from homing.core.model import Channel

    match = {
        "tenant": options.tenant,
        "type": type,
        "origin": origin,
        "channel": _any_or(channel, lambda: filters.one_of(Channel, channel, "--channel")),
        "priority": _any_or(priority, lambda: _priority(priority)),
    }
    patch = patch_from(
        max_attempts=max_attempts,
        backoff=backoff,
        base=base,
        factor=factor,
        steps=steps,
        cap=cap,
        jitter=jitter,
        jitter_ratio=jitter_ratio,
        jitter_max=jitter_max,
        failover_after=failover_after,
        timeout=timeout,
        on_timeout=on_timeout,
        max_age=max_age,
        bounce_failover=bounce_failover,
    )
    given = {key: value for key, value in {**match, **patch}.items() if value is not None}
    async with _refreshed(options) as homing:
        policies = homing.policies
        before = next((rule for rule in policies.book.rules if rule.name == name), None)
        if not given and (before is None or not fresh):
            raise Refused(f"{name}: nothing to set; give a match (--type, …) or a field (--base, …)")
        known = {} if before is None or fresh else _flat(before)
        rule = config.rule_from({**known, **given, "name": name}, "policy")
        await policies.check(rule)
        by = await noted(homing, "policy.set", name, who=who, why=why)
        change = await policies.set(rule, who=by, why=why)
    _tell(options, change, json=json)
    return ExitCode.OK


@command(policy, "unset")
async def unset(options: Options, name: Name, who: Who = None, why: Why = "", json: Json = False) -> int:
    """Remove a rule, even one from the settings file."""
    async with _refreshed(options) as homing:
        by = await noted(homing, "policy.unset", name, who=who, why=why)
        change = await homing.policies.remove(name, who=by, why=why)
    _tell(options, change, json=json)
    return ExitCode.OK


@command(policy, "history")
async def history(options: Options, limit: filters.Limit = 20, json: Json = False) -> int:
    """List the changes made at run time, newest first."""
    from homing.engine.rule_views import change_view

    async with _refreshed(options) as homing:
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
                local(_at(c)),
                c.rule,
                c.who,
                c.why,
                rule_words(c.before) or "none",
                rule_words(c.after) or "removed",
            )
            for c in changes
        ],
    )
    return ExitCode.OK


def _tell(options: Options, change: PolicyChange, *, json: bool) -> None:
    from homing.engine.rule_views import change_view

    if json:
        print_json(change_view(change))
        return
    screen = options.screen
    screen.line(
        styled(change.rule, "bold"), f"changed by {change.who}" + (f": {change.why}" if change.why else "")
    )
    screen.line("before   ", rule_words(change.before) or "no such rule")
    screen.line("after    ", rule_words(change.after) or "removed")


@asynccontextmanager
async def _refreshed(options: Options) -> AsyncIterator[Homing]:
    """Opens the engine and loads the policy changes made at run time."""
    async with engine(options) as homing:
        await homing.policies.refresh()
        yield homing


def _flat(rule: Rule) -> dict[str, Any]:
    keys = {name: getattr(rule, name) for name in rule.__struct_fields__ if name not in ("name", "policy")}
    return {**{name: value for name, value in keys.items() if value != "*"}, **rule.policy.given()}


def _priority(name: str | None) -> Any:
    from homing.core.request import priority_of

    return None if name is None else priority_of(name)


def _any_or(given: str | None, parse: Any) -> str | None:
    """Parses the value unless it is missing or `*`, which matches anything."""
    if given is None or given == "*":
        return given
    return str(parse().value)


def _summary(keys: Keys) -> str:
    origin = f" from {keys.origin}" if keys.origin else ""
    return (
        f"{keys.type}{origin} by {keys.channel.value}, {keys.priority.value} priority, tenant {keys.tenant}"
    )


def _at(change: PolicyChange) -> datetime:
    from homing.core.times import moment

    return moment(change.at)
