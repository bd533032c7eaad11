"""`homing providers`: lists and tests providers, and overrides their breakers."""

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
    open_engine,
    parse_choice,
    record_audit,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_relative_time, parse_delay
from homing.cli.root import add_command_group
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.routing.breaker import Phase
    from homing.core.routing.provider_views import BreakerView, Health, ProviderView, Tried


providers = add_command_group("providers", "List and test providers; hold their breakers open or closed.")


Name = Annotated[str, typer.Argument(metavar="NAME", help="The provider's id.")]


@command(providers, "list")
async def list_(options: Options, json: Json = False) -> int:
    """List providers with their routes, weights, limits and breakers."""
    async with open_engine(options, existing=True) as homing:
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
                p.weight,
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
    async with open_engine(options, existing=True) as homing:
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
    """Use a provider regardless of failures: hold its breaker closed. Undo it with `auto`."""
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
    async with open_engine(options, existing=True) as homing:
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
