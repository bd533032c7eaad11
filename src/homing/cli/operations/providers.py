"""`homing providers`: lists and tests providers, and overrides their breakers and the split between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    Json,
    Options,
    Who,
    Why,
    Yes,
    command,
    confirm,
    is_missing_file,
    open_engine,
    parse_choice,
    record_audit,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_relative_time, parse_delay
from homing.cli.root import add_command_group
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.notifications import Channel
    from homing.core.routing.breaker import Phase
    from homing.core.routing.provider_views import BreakerView, Health, ProviderView, Tried
    from homing.core.routing.splits import SplitOverrideView, SplitView


providers = add_command_group("providers", "List and test providers; hold their breakers open or closed.")


Name = Annotated[str, typer.Argument(metavar="NAME", help="The provider's id.")]


@command(providers, "list")
async def list_(options: Options, json: Json = False) -> int:
    """List providers with their routes, limits and breakers."""
    async with open_engine(options, existing=True, or_in_memory=True) as homing:
        found = await homing.providers()
    if json:
        print_json(found)
        return ExitCode.OK
    was_cut = options.screen.table(
        ("PROVIDER", "KIND", "ROUTES", "WEIGHT>", "IN FLIGHT>", "RATE>", "OPENS AFTER", "BREAKER~"),
        [
            (
                p.id,
                p.kind,
                _routes(p),
                _weight(p),
                p.max_in_flight,
                _rate(p),
                _opens_after(p),
                _breaker(p.breaker),
            )
            for p in found
        ],
    )
    if was_cut:
        for p in found:
            if p.breaker.forced or p.breaker.until is not None or p.breaker.why:
                options.screen.line(p.id, _breaker(p.breaker))
    for channel, override in {c: one for p in found for c, one in p.splits.items()}.items():
        options.screen.line(f"{channel.value} is split: {_describe(override)}")
    return ExitCode.OK


@command(providers, "test")
async def try_out(
    options: Options,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this provider; default: all.")
    ] = None,
    send: Annotated[
        str | None,
        typer.Option("--send", metavar="ADDRESS", help="Send a real test message to ADDRESS through NAME."),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option("--channel", metavar="NAME", help="With --send: the channel, if NAME serves several."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Check whether providers are usable. With --send, send a real test message."""
    if send is not None:
        return await _send(options, name, send, channel, yes=yes, json=json)
    if channel is not None:
        raise CliError("--channel: works only with --send ADDRESS")
    async with open_engine(options, existing=True, or_in_memory=True) as homing:
        found = await homing.check_providers(name)
    _show_health(options, found, json=json)
    return ExitCode.OK if all(one.usable for one in found) else ExitCode.NO


For = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="Return to automatic control after this time, e.g. 30m."),
]


@command(providers, "open")
async def open_(
    options: Options, name: Name, who: Who = None, why: Why = "", lasting: For = None, json: Json = False
) -> int:
    """Stop sending to a provider: hold its breaker open. Undo it with `close` or `auto`."""
    from homing.core.routing.breaker import Phase

    return await _force(options, name, Phase.OPEN, who, why, lasting, json=json)


@command(providers, "close")
async def close(
    options: Options, name: Name, who: Who = None, why: Why = "", lasting: For = None, json: Json = False
) -> int:
    """Use a provider despite failures: hold its breaker closed. Undo it with `auto`."""
    from homing.core.routing.breaker import Phase

    return await _force(options, name, Phase.CLOSED, who, why, lasting, json=json)


@command(providers, "auto")
async def auto(options: Options, name: Name, who: Who = None, why: Why = "", json: Json = False) -> int:
    """Return a breaker to automatic control. It starts closed, and traffic ramps up."""
    return await _force(options, name, None, who, why, None, json=json)


async def _force(
    options: Options,
    name: str,
    phase: Phase | None,
    who: str | None,
    why: str,
    lasting: str | None,
    *,
    json: bool,
) -> int:
    from homing.core.send_request import find_provider_id

    async with open_engine(options) as homing:
        id = find_provider_id(name, {listed.id for listed in homing.roster})
        chosen = "auto" if phase is None else phase.value
        by = await record_audit(homing, "breaker.set", id, who=who, why=why, phase=chosen)
        await homing.force_breaker(name, phase, who=by, why=why, lasting=parse_delay(lasting, "--for"))
        found = next(one for one in await homing.providers() if one.id == id)
    if json:
        print_json(found)
    else:
        options.screen.line(found.id, _breaker(found.breaker))
        if phase is not None:
            options.notes.line(
                f"return it to automatic control with `homing providers auto {found.id}`",
                style="bright_black",
            )
    return ExitCode.OK


@command(providers, "splits")
async def list_splits(options: Options, json: Json = False) -> int:
    """List how channels are split between their providers."""
    async with open_engine(options, existing=True, or_in_memory=True) as homing:
        found = await homing.splits.list()
    if json:
        print_json(found)
        return ExitCode.OK
    if not found:
        options.notes.line("no channel has several providers")
        return ExitCode.OK
    options.screen.table(
        ("CHANNEL", "SHARES", "OVERRIDE~"),
        [
            (one.channel.value, _per_cent(one), _describe(one.override) if one.override else "")
            for one in found
        ],
    )
    return ExitCode.OK


ChannelName = Annotated[str, typer.Argument(metavar="CHANNEL", help="For example sms.")]


@command(providers, "split")
async def set_split(
    options: Options,
    channel: ChannelName,
    shares: Annotated[
        list[str], typer.Argument(metavar="PROVIDER=SHARE...", help="For example twilio=20 sns=80.")
    ],
    lasting: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long it holds, e.g. 2h; at most 30d.")
    ],
    why: Why = "",
    who: Who = None,
    json: Json = False,
) -> int:
    """Override the split of a channel for a time.

    A reason is required. It applies to notifications accepted from now on, in every process within five
    seconds.
    """
    over, given, duration = _parse_channel(channel), _parse_shares(shares), parse_delay(lasting, "--for")
    assert duration is not None, "the option is required"
    async with open_engine(options) as homing:
        _, checked, for_ms = homing.splits.check(over, given, why=why, lasting=duration)
        by = await record_audit(
            homing, "split.set", over.value, who=who, why=why, shares=checked, forMs=for_ms
        )
        found = await homing.splits.set(over, checked, who=by, why=why, lasting=duration)
    _show_split(options, found, json=json)
    if not json:
        options.notes.line(
            f"end it before with `homing providers reset-split {over.value}`", style="bright_black"
        )
    return ExitCode.OK


@command(providers, "reset-split")
async def reset_split(
    options: Options, channel: ChannelName, why: Why = "", who: Who = None, json: Json = False
) -> int:
    """End the override of a channel's split."""
    over = _parse_channel(channel)
    async with open_engine(options) as homing:
        by = await record_audit(homing, "split.reset", over.value, who=who, why=why)
        found = await homing.splits.reset(over, who=by)
    _show_split(options, found, json=json)
    return ExitCode.OK


async def _send(
    options: Options, name: str | None, address: str, channel: str | None, *, yes: bool, json: bool
) -> int:
    from homing.core.notifications import Channel

    if name is None:
        raise CliError("NAME: is missing; name the provider that sends the test message")
    over = None if channel is None else parse_choice(Channel, channel, "--channel")
    to = options.privacy.address(address)
    if not confirm(f"Send a real test message through {name} to {to}?", yes=yes):
        return ExitCode.NO
    settings = options.settings()
    async with open_engine(options, settings, existing=not is_missing_file(settings.store)) as homing:
        await record_audit(homing, "provider.test", name, channel=channel)
        tried = await homing.try_provider(name, address, over)
    _show_sent(options, tried, json=json)
    return ExitCode.OK if tried.outcome.value == "accepted" else ExitCode.NO


def _show_health(options: Options, found: tuple[Health, ...], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    for one in found:
        options.screen.check(one.usable, f"{one.provider} {one.problem or 'usable'}")


def _show_sent(options: Options, tried: Tried, *, json: bool) -> None:
    if json:
        print_json(options.privacy.wire(tried, tried.recipient))
        return
    took = format_duration(tried.latency_ms)
    options.screen.line(
        styled(tried.outcome.value), f"by {tried.provider} over {tried.channel.value} in {took}"
    )
    options.screen.fields(
        (
            ("message id", tried.provider_message_id),
            ("code", tried.error_code),
            ("error", options.privacy.error(tried.error, tried.recipient)),
        )
    )


def _routes(provider: ProviderView) -> str:
    """Returns the provider's position on each channel's route, as in `sms 1, email –`.

    A dash means that the provider is not on the route.
    """
    return ", ".join(
        f"{channel.value} {provider.routes[channel]}" if channel in provider.routes else f"{channel.value} –"
        for channel in provider.channels
    )


def _weight(provider: ProviderView) -> str:
    """Returns the configured weight, and for each overridden split the provider's share of it."""
    shares = [f"{channel.value} {one.shares.get(provider.id, 0)}" for channel, one in provider.splits.items()]
    return ", ".join(shares) if shares else "" if provider.weight is None else str(provider.weight)


def _parse_channel(text: str) -> Channel:
    from homing.core.notifications import Channel

    found = parse_choice(Channel, text, "CHANNEL")
    assert found is not None, "the argument is required"
    return found


def _parse_shares(texts: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        provider, _, share = text.partition("=")
        if not provider or not share.isdecimal():
            raise CliError(f"PROVIDER=SHARE: is {text!r}; write it like twilio=20")
        if provider in found:
            raise CliError(f"PROVIDER=SHARE: names {provider} twice")
        found[provider] = int(share)
    return found


def _show_split(options: Options, split: SplitView, *, json: bool) -> None:
    if json:
        print_json(split)
        return
    by = split.override
    until = f"by {by.by}, ends {format_relative_time(by.until)}: {by.why}" if by else "as in the settings"
    options.screen.line(split.channel.value, f"{_per_cent(split)}, {until}")


def _per_cent(split: SplitView) -> str:
    return ", ".join(f"{provider} {share:g} %" for provider, share in split.shares.items())


def _describe(override: SplitOverrideView) -> str:
    """Returns the shares of an override, who set it, its end and why."""
    from homing.core.routing.splits import describe_shares

    ends = format_relative_time(override.until)
    return f"{describe_shares(override.shares)} by {override.by}, ends {ends}: {override.why}"


def _rate(provider: ProviderView) -> str:
    return "" if provider.rate_per_second is None else f"{provider.rate_per_second:g}/s"


def _opens_after(provider: ProviderView) -> str:
    """Returns after how many failures the breaker opens, and for how long."""
    policy = provider.breaker_policy
    return f"{policy.failures} for {format_duration(policy.open_ms)}" if policy.failures else "off"


def _breaker(breaker: BreakerView) -> tuple[Any, ...]:
    """Formats a breaker's phase and, as far as they are known, who set it, when, the next trial and why."""
    words = []
    if breaker.forced:
        words.append(f" by {breaker.by}" if breaker.by else "")
    if breaker.since is not None and (breaker.forced or breaker.until is not None):
        words.append(f" {format_relative_time(breaker.since)}")
    if breaker.until is not None:
        words.append(f", next trial {format_relative_time(breaker.until)}")
    if breaker.why:
        words.append(f": {breaker.why}")
    return ("held " if breaker.forced else "", styled(breaker.phase.value), "".join(words))
