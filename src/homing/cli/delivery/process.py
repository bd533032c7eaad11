"""`homing process`: delivers due notifications once, then exits."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.masking import RecipientMask
from homing.cli.common.options import DryRun, Json, Options, command, configure_logging, open_engine
from homing.cli.common.screen import Screen, print_json
from homing.cli.common.units import format_count, format_local_time, format_relative_time
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.lifecycle.outcomes import Settlement
    from homing.core.notifications import Attempt, History, Notification
    from homing.core.retry.policy import RetryPolicy, Rule
    from homing.engine.delivery.worker import Processed
    from homing.library import Homing


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every step with its time.")]


_MAX_LIMIT = 10_000

_UNITS = {
    "email": "Email",
    "sms": "SMS",
    "push": "Push",
    "webhook": "Webhook",
    "chat": "Chat",
    "queue": "Queue",
}


@command(app, "process")
async def process(
    options: Options,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of notifications.")] = 50,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    json: Json = False,
) -> int:
    """Deliver due notifications once, then exit. For cron jobs."""
    if not 1 <= limit <= _MAX_LIMIT:
        raise CliError(f"--limit: is {limit}; must be from 1 to {_MAX_LIMIT}")
    settings = options.settings()
    configure_logging(settings)
    async with open_engine(options, settings, sinks=True) as homing:
        narrator = (
            ProcessLog(homing, options.notes if json else options.screen, options.privacy)
            if verbose
            else None
        )
        if narrator is not None:
            await narrator.begin(limit, dry_run=dry_run)
        if dry_run:
            ready = await homing.select_pending(limit)
            return _show_dry_run(options, ready, narrator, json=json)
        # With --json, the console provider's messages go to stderr.
        with redirect_stdout(sys.stderr if json else sys.stdout):
            done = await homing.process(limit)
        if narrator is not None:
            await narrator.end(done)
    if json:
        print_json(done)
    elif narrator is None:
        options.screen.line(format_totals(done))
    return ExitCode.OK


def _show_dry_run(options: Options, ready: Any, narrator: ProcessLog | None, *, json: bool) -> int:
    if json:
        import msgspec

        from homing.engine.delivery.worker import Processed

        print_json({**msgspec.to_builtins(Processed()), "dryRun": True, "found": len(ready)})
        return ExitCode.OK
    if narrator is not None:
        narrator.list_only(ready)
        return ExitCode.OK
    screen = options.screen
    screen.line(f"{format_count(len(ready), 'notification')} would be processed")
    if ready:
        screen.table(
            ("ID", "TYPE", "CHANNEL", "TO", "ATTEMPT>", "PROVIDER"),
            [
                (n.id, n.type, n.channel.value, options.privacy.recipient(n), n.attempt_count + 1, n.provider)
                for n in ready
            ],
        )
    return ExitCode.OK


def format_totals(done: Processed) -> str:
    """Returns how many notifications were processed, and how they ended."""
    other = f", {done.other} other" if done.other else ""
    return (
        f"processed {done.processed}: {done.succeeded} succeeded, {done.retried} to be retried, "
        f"{done.failed} failed{other}"
    )


class ProcessLog:
    """Prints each step of a run with its time (`--verbose`). Recipients are masked as in other commands."""

    def __init__(self, homing: Homing, screen: Screen, privacy: RecipientMask) -> None:
        self._homing = homing
        self._screen = screen
        self._privacy = privacy
        self._settled: asyncio.Queue[tuple[Settlement, bool] | None] = asyncio.Queue()
        self._printing: asyncio.Task[None] | None = None

    async def begin(self, limit: int, *, dry_run: bool) -> None:
        """Prints the state of the queue and the retry settings, then starts printing settlements."""
        homing = self._homing
        await homing.policies.refresh()
        counts = await homing.queue_counts()
        health = await homing.health_metrics()
        waiting = await homing.waiting(limit=_MAX_LIMIT)
        pending = counts["pending"] + counts["retrying"]
        self._line("Notification Queue Processor started")
        self._line(f"Limit: {limit}, Dry Run: {'Yes' if dry_run else 'No'}")
        self._line(
            f"Queue status - Pending: {pending}, Processing: {counts['sending']}, Failed: {counts['failed']}"
        )
        for line in _settings_lines(homing):
            self._line(line)
        if waiting:
            more = "+" if len(waiting) == _MAX_LIMIT else ""
            self._line(f"Notifications waiting for retry backoff: {len(waiting)}{more}")
        if health.total_retrying:
            self._line(f"Average attempts: {health.avg_attempts}")
        found = len(await homing.select_pending(limit))
        self._line(f"Found {found} pending notification(s) to process")
        if not dry_run:
            homing.on_settled = lambda settlement, applied: self._settled.put_nowait((settlement, applied))
            self._printing = asyncio.create_task(self._print_settlements())

    async def end(self, done: Processed) -> None:
        """Waits until all settlements are printed, then prints the totals."""
        self._settled.put_nowait(None)
        if self._printing is not None:
            await self._printing
        other = f", Other: {done.other}" if done.other else ""
        self._line(
            f"Processed: {done.processed}, Succeeded: {done.succeeded}, Retried: {done.retried}, "
            f"Failed: {done.failed}{other}"
        )

    def list_only(self, ready: tuple[Notification, ...]) -> None:
        """Prints what would be processed, for a dry run."""
        for n in ready:
            self._line(f"Would process notification #{n.id} ({n.type}, channel: {n.channel.value})")
            self._line(f"  Attempt {n.attempt_count + 1} to {self._privacy.recipient(n)} via {n.provider}")

    async def _print_settlements(self) -> None:
        while (item := await self._settled.get()) is not None:
            settlement, applied = item
            if applied:
                self._print_settlement(await self._homing.history(settlement.id), settlement)

    def _print_settlement(self, history: History, settlement: Settlement) -> None:
        n, tried = history.notification, settlement.attempt
        self._line(f"Processing notification #{n.id} ({n.type}, channel: {n.channel.value})")
        if tried is not None:
            made = next(a for a in history.attempts if a.number == tried.number)
            for line in self._attempt_lines(n, made):
                self._line(line, made.started_at if line.lstrip().startswith("Sending") else made.ended_at)
        self._line(f"  Notification #{n.id} {_status_change(n, settlement)}")

    def _attempt_lines(self, n: Notification, made: Attempt) -> list[str]:
        unit = _UNITS[n.channel.value]
        to = self._privacy.recipient(n)
        lines = [f"  Sending {unit.lower() if unit != 'SMS' else unit} to {to} via {made.provider}"]
        if made.outcome.value == "accepted":
            lines.append(f"  {unit} sent successfully in {format_duration(made.latency_ms)}")
        else:
            error = self._privacy.error(made.error, n.recipient) or made.error_code or ""
            lines.append(f"  {unit} failed ({made.outcome.value}): {error}")
        return lines

    def _line(self, text: str, at: datetime | None = None) -> None:
        self._screen.line(f"[{format_local_time(at or datetime.now(UTC))}] {text}")


def _status_change(n: Notification, settlement: Settlement) -> str:
    reason = f" ({settlement.reason.value})" if settlement.reason else ""
    if settlement.status.value == "retrying" and settlement.attempt is not None:
        again = "now" if not settlement.delay_ms else format_relative_time(n.next_retry_at) or "now"
        return f"will be retried {again} at {format_local_time(n.next_retry_at)} via {settlement.provider}"
    if settlement.attempt is None and settlement.status.value in ("retrying", "pending"):
        return f"is postponed until {format_local_time(n.next_retry_at)}{reason}"
    return f"marked as {settlement.status.value}{reason}"


def _settings_lines(homing: Homing) -> list[str]:
    """Returns one line per rule that may apply, configured rules before those of the preset."""
    from homing.core.retry.policy import RetryPolicy

    book = homing.policies.book
    named = [(f"rule {rule.name}", _resolved(homing, rule)) for rule in book.rules]
    named += [(f"{book.preset.name}/{r.name}", RetryPolicy(**r.policy.given())) for r in book.preset.rules]
    lines = []
    for name, policy in named:
        label = "Retry settings" if len(named) == 1 else f"Retry settings ({name})"
        lines.append(f"{label} - Max attempts: {policy.max_attempts}, {_backoff(policy)}")
    return lines


def _resolved(homing: Homing, rule: Rule) -> RetryPolicy:
    """Returns the policy that a rule yields. Keys that the rule leaves open get default values."""
    from homing.core.notifications import Channel, Mode, Priority
    from homing.core.retry.policy import MatchKeys, PolicyBook

    usual = {
        "tenant": homing.tenant,
        "type": "message",
        "origin": "",
        "channel": "email",
        "priority": "medium",
    }
    keys = {
        name: value if getattr(rule, name) == "*" else getattr(rule, name) for name, value in usual.items()
    }
    alone = PolicyBook(homing.policies.book.preset, [rule])  # no other rule may take precedence
    channel, priority = Channel(keys["channel"]), Priority(keys["priority"])
    return alone.policy(
        MatchKeys(keys["tenant"], keys["type"], keys["origin"], channel, priority), Mode.STANDARD
    )


def _backoff(policy: RetryPolicy) -> str:
    if policy.backoff.value == "fixed":
        return f"Delays: {', '.join(format_duration(step) for step in policy.steps_ms)} (fixed backoff)"
    minutes = policy.base_ms / 60_000
    base = (
        f"{minutes:g} minutes"
        if policy.base_ms and policy.base_ms % 60_000 == 0
        else format_duration(policy.base_ms)
    )
    return f"Base delay: {base} ({policy.backoff.value} backoff)"
