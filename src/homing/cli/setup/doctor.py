"""`homing doctor`: checks everything that delivery needs, with advice for each problem."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.disk_space import FULL_DISK_ADVICE, LEAST_FREE_BYTES, free_disk_bytes
from homing.cli.common.exit_codes import CliError, ExitCode, one_line
from homing.cli.common.options import (
    Json,
    Options,
    command,
    open_engine,
    open_store,
    parse_choice,
    record_audit,
    redact_store_url,
    require_existing_store,
)
from homing.cli.common.screen import print_json
from homing.cli.common.units import format_count, format_local_time
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.notifications import Channel
    from homing.core.ports.stores import Backend
    from homing.core.routing.provider_views import Tried
    from homing.library import Homing
    from homing.settings import Settings


_MOST_SKEW_MS = 2_000

_OLDEST_SANE_MS = 1_704_067_200_000  # start of 2024; a clock that was never set is earlier

_MOST_LEASES_PER_TENANT = 2_000

_SCHEDULER_VARIABLE = "RABBITMQ_URL"
"""Without a settings file, this variable means that the variables of the retry scheduler are the settings."""

_PLUG_IN_ADVICE = "check its settings, and that it is reachable"

_STORE_CHECKS = frozenset(
    {"server", "encoding", "commits", "writes", "role", "prepared", "vacuum", "pooler", "listen", "rows"}
)
"""Checks of the store itself that are reported here too. Those of schema and clock have a counterpart."""

_LONG_CHECKS = _STORE_CHECKS | {"provider", "sink", "timer", "bridge", "sending"}
"""Checks whose results are wrapped, because they contain texts of other systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """Result of one check: one line of the report."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestMessageTarget:
    """Address and channel of a test message."""

    address: str
    channel: Channel


@command(app, "doctor")
async def doctor(
    options: Options,
    send: Annotated[
        str | None,
        typer.Option(
            "--send",
            metavar="ADDRESS",
            help="Also send a real test message to ADDRESS through every provider of its channel.",
        ),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel", metavar="NAME", help="With --send: the channel, if it is not clear from the address."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Check everything that delivery needs.

    Covers settings, store, disk, clock, breakers, workers, backlog, leases, events, templates, providers,
    sinks, timers and bridges.
    """
    if send is None and channel is not None:
        raise CliError("--channel: works only with --send ADDRESS")
    target = None if send is None else _target(send, channel)
    findings = []
    async for finding in _examine(options, target):
        findings.append(finding)
        if not json:
            text = f"{finding.name:<9} {finding.detail}"
            max_columns = 80 if finding.name in _LONG_CHECKS else None
            options.screen.check(finding.ok, text, finding.advice, max_columns=max_columns)
    ok = all(finding.ok for finding in findings)
    if json:
        print_json({"ok": ok, "checks": findings})
    return ExitCode.OK if ok else ExitCode.NO


async def _examine(options: Options, target: TestMessageTarget | None) -> AsyncIterator[DoctorFinding]:
    """Runs the checks in order. Skips checks whose precondition has failed."""
    from homing.core.errors import HomingError

    try:
        settings = _load(options)
    except HomingError as error:
        yield DoctorFinding(
            name="settings",
            ok=False,
            detail=str(error),
            advice="fix it, or write a new file with `homing init`",
        )
        return
    source = options.config or _settings_file()
    yield DoctorFinding(
        name="settings", ok=True, detail=f"{source}, preset {settings.preset}, tenant {settings.tenant}"
    )
    has_store = True
    try:
        require_existing_store(settings.store)
        async with open_store(settings, existing=True) as store:
            async for finding in _about_store(settings, store):
                yield finding
    except HomingError as error:
        yield DoctorFinding(name="store", ok=False, detail=one_line(str(error)))
        has_store = False
    if settings.templates.folder:
        yield _about_templates(settings)
    async for finding in _about_plug_ins(settings):
        yield finding
    if target is not None:
        async for finding in _sent(options, settings, target, has_store=has_store):
            yield finding


def _about_templates(settings: Settings) -> DoctorFinding:
    """Checks that all templates of the folder exist in all locales and render with their sample data."""
    from homing.compose import templates
    from homing.core.errors import HomingError

    try:
        report = templates.check_templates(settings)
    except HomingError as error:
        return DoctorFinding(name="templates", ok=False, detail=one_line(str(error)))
    detail = f"{format_count(len(report.keys), 'template')} in {', '.join(report.locales)}"
    if report.good:
        return DoctorFinding(name="templates", ok=True, detail=detail)
    first, number = report.findings[0].message, len(report.findings)
    return DoctorFinding(
        name="templates",
        ok=False,
        detail=f"{detail}: {format_count(number, 'problem')}, first: {one_line(first)}",
        advice="run `homing templates check` and fix them",
    )


def _load(options: Options) -> Settings:
    """Loads the settings. If they have the bridge `rabbitmq`, they are those of `homing bridge rabbitmq`."""
    from homing import compose
    from homing.settings.retry_scheduler import BRIDGE, read_retry_scheduler_variables

    scheduler = partial(read_retry_scheduler_variables, os.environ)
    settings = options.settings(scheduler if os.environ.get(_SCHEDULER_VARIABLE) else None)
    table = settings.bridges.get(BRIDGE)
    is_scheduler = table is not None and table.get("kind", BRIDGE) == BRIDGE
    return compose.add_retry_scheduler(settings) if is_scheduler else settings


def _settings_file() -> str:
    if Path("homing.toml").exists():
        return "homing.toml"
    return "the variables of the retry scheduler" if os.environ.get(_SCHEDULER_VARIABLE) else "the defaults"


async def _about_store(settings: Settings, store: Backend) -> AsyncIterator[DoctorFinding]:
    size = await store.size()
    rows = format_count(size["notifications"], "notification")
    bytes_ = f"{size['bytes'] / 1_048_576:.1f} MB"
    detail = f"{redact_store_url(settings.store)}, schema version {size['schema_version']}, {rows}, {bytes_}"
    yield DoctorFinding(name="store", ok=True, detail=detail)
    async for finding in _own_checks(store):
        yield finding
    for check in (_writable, _clock, _breakers, _late, _backlog, _leases, _outbox):
        yield await _guarded(check, settings, store)
    if (disk := _disk(settings)) is not None:
        yield disk


async def _own_checks(store: Backend) -> AsyncIterator[DoctorFinding]:
    """Runs the checks of a database server, as `homing db check` does."""
    from homing.core.errors import StoreError
    from homing.core.ports.stores import SupportsChecks

    if not isinstance(store, SupportsChecks):
        return
    try:
        results = await store.examine(now_ms=time.time_ns() // 1_000_000)
    except StoreError as error:
        yield DoctorFinding(name="server", ok=False, detail=one_line(str(error)))
        return
    for one in results:
        if one.name in _STORE_CHECKS:
            yield DoctorFinding(name=one.name, ok=one.ok, detail=one.detail, advice=one.advice)


StoreCheck = Callable[["Settings", "Backend"], Awaitable[DoctorFinding]]


async def _guarded(check: StoreCheck, settings: Settings, store: Backend) -> DoctorFinding:
    from homing.core.errors import StoreError

    try:
        return await check(settings, store)
    except StoreError as error:
        return DoctorFinding(name=check.__name__.strip("_"), ok=False, detail=one_line(str(error)))


async def _writable(settings: Settings, store: Backend) -> DoctorFinding:
    began = time.monotonic()
    await store.lead("doctor", "doctor", 1)
    took = (time.monotonic() - began) * 1000
    ok = took < 1_000
    advice = "" if ok else "look for a slow disk, or a process with a long transaction"
    return DoctorFinding(
        name="writing", ok=ok, detail=f"a commit takes {format_duration(took)}", advice=advice
    )


async def _clock(settings: Settings, store: Backend) -> DoctorFinding:
    if (step := await store.suspected_clock_step()) is not None:
        from homing.core.clock_steps import describe_step

        advice = "if the new time is wrong, set it right within ten minutes; Homing accepts it then"
        return DoctorFinding(name="clock", ok=False, detail=describe_step(step), advice=advice)
    now, here = await store.now_ms(), time.time() * 1000
    skew = abs(now - here)
    if min(now, here) < _OLDEST_SANE_MS:
        return DoctorFinding(
            name="clock", ok=False, detail="is set to a year before 2024", advice="synchronise it with NTP"
        )
    if skew > _MOST_SKEW_MS:
        detail = f"the store and this machine differ by {format_duration(skew)}"
        return DoctorFinding(name="clock", ok=False, detail=detail, advice="synchronise both with NTP")
    for tenant in await store.tenants():
        from homing.core.notifications import Filter

        newest = (await store.list(tenant, Filter(), limit=1)).items
        if newest and newest[0].created_at.timestamp() * 1000 > now + _MOST_SKEW_MS:
            ahead = format_duration(newest[0].created_at.timestamp() * 1000 - now)
            detail = f"the newest notification was accepted {ahead} in the future: the clock was set back"
            return DoctorFinding(name="clock", ok=False, detail=detail, advice="synchronise it with NTP")
    return DoctorFinding(name="clock", ok=True, detail="the store and this machine agree")


async def _breakers(settings: Settings, store: Backend) -> DoctorFinding:
    from homing.core.routing.breaker import Phase, phase_now, reopens_at
    from homing.core.times import moment

    stopped, half_open, now = [], [], await store.now_ms()
    for provider, state in sorted((await store.breakers()).items()):
        phase = phase_now(state, now)
        if state.forced is not None:
            stopped.append(f"{provider} is held {state.forced.value} by {state.forced_by}")
        elif phase is Phase.OPEN and (until := reopens_at(state)) is not None:
            stopped.append(f"{provider} is open until {format_local_time(moment(until))}")
        elif phase is not Phase.CLOSED:
            half_open.append(f"{provider} is half open")
    if stopped:
        return DoctorFinding(
            name="breakers",
            ok=False,
            detail="; ".join(stopped + half_open),
            advice="check the provider; `homing list --status pending --status retrying` lists what waits",
        )
    if half_open:  # an idle provider stays so until its next notification
        return DoctorFinding(
            name="breakers",
            ok=True,
            detail="; ".join(half_open),
            advice="the next notification is the trial that closes or opens it",
        )
    return DoctorFinding(name="breakers", ok=True, detail="all closed")


async def _late(settings: Settings, store: Backend) -> DoctorFinding:
    """Detects a missing worker by heartbeats, and by notifications that stay due for too long."""
    from homing.engine.operations.workers import (
        OVERDUE_AFTER_MS,
        count_live_workers,
        find_overdue_ms,
        find_unattended_ms,
    )

    live = await count_live_workers(store)
    if live:
        late_ms, limit_ms = await find_overdue_ms(store), OVERDUE_AFTER_MS
    else:
        limit_ms = settings.thresholds.unattended_ms
        late_ms = await find_unattended_ms(store, enough_ms=limit_ms)
    ok = late_ms <= limit_ms
    workers = f"{format_count(live, 'live worker')}" if live else "no live worker"
    late = "nothing is" if ok else f"the oldest due notification is {format_duration(late_ms)}"
    advice = ""
    if not ok:
        advice = (
            "see `homing workers`: does one of them have a provider for it?"
            if live
            else "start `homing worker`, or run `homing process` from cron"
        )
    return DoctorFinding(name="worker", ok=ok, detail=f"{late} overdue; {workers}", advice=advice)


async def _backlog(settings: Settings, store: Backend) -> DoctorFinding:
    tallies = await store.tallies(None)
    waiting = sum(t.count for t in tallies if t.status.value == "pending")
    retrying = sum(t.count for t in tallies if t.status.value == "retrying")
    limit = settings.thresholds.retry_backlog
    ok = retrying <= limit
    detail = f"{waiting:,} pending, {retrying:,} waiting for a retry"
    advice = "" if ok else f"more than {limit}; see `homing waiting` and `homing health`"
    return DoctorFinding(name="backlog", ok=ok, detail=detail, advice=advice)


async def _leases(settings: Settings, store: Backend) -> DoctorFinding:
    """Detects leases that expired long ago: their worker died and no other worker reclaims them."""
    from homing.core.notifications import Filter, Status

    longest_ms = _lease_ms(settings)
    limit = datetime.fromtimestamp(await store.now_ms() / 1000, UTC) - timedelta(milliseconds=longest_ms)
    overdue = 0
    for tenant in await store.tenants():
        page = await store.list(tenant, Filter(statuses=(Status.SENDING,)), limit=_MOST_LEASES_PER_TENANT)
        overdue += sum(n.updated_at < limit for n in page.items)
    if overdue:
        detail = f"{format_count(overdue, 'lease')} expired and not reclaimed"
        return DoctorFinding(
            name="leases", ok=False, detail=detail, advice="start a worker or run `homing process`"
        )
    return DoctorFinding(name="leases", ok=True, detail="none overdue")


async def _outbox(settings: Settings, store: Backend) -> DoctorFinding:
    """Checks the backlog of each sink, as the alerts do."""
    from homing.engine.operations.health import check_sinks

    sinks = await store.sinks()
    by_sink = check_sinks(sinks, await store.now_ms(), settings.thresholds)
    late = [name for name, checks in by_sink.items() if any(check.exceeded for check in checks)]
    detail = f"{format_count(sum(sink.waiting for sink in sinks), 'event')} waiting to be published"
    if late:
        detail += f"; too many or too old for {', '.join(late)}"
    advice = "see `homing sinks list`; check that a worker runs and the sinks are reachable" if late else ""
    return DoctorFinding(name="events", ok=not late, detail=detail, advice=advice)


def _lease_ms(settings: Settings) -> int:
    from homing import compose
    from homing.core.lifecycle.claims import LEASE_MARGIN_MS
    from homing.core.retry.policy import PolicyBook

    own = compose.build_engine_settings(settings)
    longest = PolicyBook(own.preset, own.rules).longest_timeout_ms
    return 2 * max(settings.worker.lease_ms, longest + LEASE_MARGIN_MS)


def _disk(settings: Settings) -> DoctorFinding | None:
    free = free_disk_bytes(settings.store)
    if free is None:
        return None
    ok = free >= LEAST_FREE_BYTES
    advice = "" if ok else FULL_DISK_ADVICE
    return DoctorFinding(name="disk", ok=ok, detail=f"{free / 1_073_741_824:.1f} GB free", advice=advice)


async def _about_plug_ins(settings: Settings) -> AsyncIterator[DoctorFinding]:
    """Examines providers, sinks, timers and bridges: whether each can be built, and what it reports."""
    from homing import compose
    from homing.core.errors import HomingError
    from homing.core.ports.diagnosis import SupportsDiagnosis
    from homing.engine.health_checks import find_problem

    try:
        roster = compose.build_roster(settings)
    except HomingError as error:
        yield DoctorFinding(name="providers", ok=False, detail=str(error))
    else:
        for listed in roster:
            label = f"{listed.id} ({', '.join(channel.value for channel in listed.channels)})"
            if isinstance(listed.provider, SupportsDiagnosis):
                yield await _diagnosed("provider", label, listed.provider)
                continue
            problem = await find_problem(listed.check)
            advice = _PLUG_IN_ADVICE if problem else ""
            detail = f"{label}: {problem or 'usable'}"
            yield DoctorFinding(name="provider", ok=not problem, detail=detail, advice=advice)
        await roster.close()
    for kind, build in (
        ("sink", lambda: {name: one.sink for name, one in compose.build_sinks(settings).items()}),
        ("timer", lambda: {name: one.timer for name, one in compose.build_timers(settings).items()}),
        ("bridge", lambda: compose.build_bridges(settings)),
    ):
        try:
            built: Mapping[str, object] = build()
        except HomingError as error:
            yield DoctorFinding(name=f"{kind}s", ok=False, detail=str(error))
            continue
        for name, plug_in in built.items():
            yield await _diagnosed(kind, name, plug_in)


async def _diagnosed(kind: str, label: str, plug_in: object) -> DoctorFinding:
    from homing.engine.health_checks import diagnose

    found = await diagnose(plug_in)
    advice = found.advice
    if advice is None:
        advice = "" if found.ok else _PLUG_IN_ADVICE
    return DoctorFinding(name=kind, ok=found.ok, detail=f"{label}: {found.detail}", advice=advice)


# Test messages ---------------------------------------------------------------------------------------


def _target(address: str, channel: str | None) -> TestMessageTarget:
    """Returns the address of `--send`, and its channel from `--channel` or from the form of the address.

    Raises CliError if the address is invalid, or if the channel is not clear.
    """
    from homing.core.errors import InvalidRequest
    from homing.core.notifications import Channel, Recipient
    from homing.core.send_request import ADDRESS_FIELD, address_of

    over = parse_choice(Channel, channel, "--channel") or _channel_of(address)
    try:
        address = address_of(Recipient(**{ADDRESS_FIELD[over]: address}), over)
    except InvalidRequest as error:
        raise CliError(f"--send: {error.message}") from None
    return TestMessageTarget(address=address, channel=over)


def _channel_of(address: str) -> Channel:
    """Returns the channel that the form of an address shows. Raises CliError if it shows none."""
    from homing.core.notifications import Channel

    if address.startswith(("https://", "http://")):
        return Channel.WEBHOOK
    if "@" in address:
        return Channel.EMAIL
    if address.startswith("+"):
        return Channel.SMS
    raise CliError(
        "--channel: is missing; it is optional only for an email address, a phone number like +4930123456 "
        "or an http(s) URL"
    )


async def _sent(
    options: Options, settings: Settings, target: TestMessageTarget, *, has_store: bool
) -> AsyncIterator[DoctorFinding]:
    """Sends a test message through each provider of the channel, one after the other."""
    from homing.core.errors import HomingError

    if not has_store:
        detail = "nothing was sent: the store, which records each test message, is not usable"
        yield DoctorFinding(name="sending", ok=False, detail=detail)
        return
    try:
        async with open_engine(options, settings) as homing:
            serving = [one.id for one in await homing.providers() if target.channel in one.channels]
            if not serving:
                detail = f"nothing was sent: no provider serves {target.channel.value}"
                advice = "add one to the settings under [providers]"
                yield DoctorFinding(name="sending", ok=False, detail=detail, advice=advice)
            for provider in serving:
                yield await _sent_through(options, homing, provider, target)
    except HomingError as error:
        yield DoctorFinding(name="sending", ok=False, detail=one_line(str(error)))


async def _sent_through(
    options: Options, homing: Homing, provider: str, target: TestMessageTarget
) -> DoctorFinding:
    await record_audit(homing, "provider.test", provider, channel=target.channel.value)
    tried = await homing.try_provider(provider, target.address, target.channel)
    to = options.privacy.address(target.address)
    took = format_duration(tried.latency_ms)
    what = f"a test message to {to} over {target.channel.value} through {provider}"
    if tried.outcome.value != "accepted":
        why = _reason(options, tried)
        advice = "check its settings; the provider's reference page explains its error codes"
        return DoctorFinding(
            name="sending", ok=False, detail=f"{what}: {tried.outcome.value} after {took}{why}", advice=advice
        )
    id = f", message id {tried.provider_message_id}" if tried.provider_message_id else ""
    return DoctorFinding(name="sending", ok=True, detail=f"{what}: accepted in {took}{id}")


def _reason(options: Options, tried: Tried) -> str:
    error = options.privacy.error(tried.error, tried.recipient)
    parts = [one for one in (tried.error_code, error) if one]
    return f" ({': '.join(parts)})" if parts else ""
