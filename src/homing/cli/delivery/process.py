"""`homing process`: delivers due notifications once, then exits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.masking import RecipientMask, mask_text
from homing.cli.common.options import (
    DryRun,
    Json,
    Options,
    command,
    configure_logging,
    open_engine,
    record_audit,
)
from homing.cli.common.screen import Screen, print_json
from homing.cli.common.units import days_to_ms, format_count, format_local_time
from homing.cli.root import app
from homing.core.durations import format_duration
from homing.core.times import moment

if TYPE_CHECKING:
    from homing.core.lifecycle.claims import Claim
    from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
    from homing.core.ports.stores import Retention
    from homing.core.retry.policy import PolicyBook, Resolution, RetryPolicy, Rule
    from homing.engine.delivery.worker import Processed
    from homing.engine.operations.breaker_holds import BreakerHold
    from homing.engine.operations.queue_overview import QueueOverview
    from homing.library import Homing


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every step with its time.")]


_CHANNEL_NAMES = {
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
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", help="Maximum number of notifications; default: batch_size."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Deliver this notification now. May be repeated."),
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete old ended notifications afterwards.")
    ] = False,
    purge_days: Annotated[
        float | None,
        typer.Option("--purge-days", metavar="N", help="Minimum age for --purge, in days."),
    ] = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    json: Json = False,
) -> int:
    """Deliver due notifications once, then exit. For cron jobs.

    Works for all tenants, unless --tenant names one. Without a worker, it also purges and raises alerts.
    """
    _check_flags(limit, ids)
    retention = _read_retention(options, ids, purge, purge_days)
    settings = options.settings()
    configure_logging(settings)
    async with open_engine(options, settings, sinks=True) as homing:
        if limit is None:
            limit = len(ids) if ids else await homing.stored_settings.batch_size()
        narrator = None
        if verbose:
            narrator = ProcessLog(homing, options.notes if json else options.screen, options.privacy)
        tenant = homing.tenant if ids else options.tenant
        if narrator is not None or dry_run:
            overview = await homing.queue_overview(tenant, limit=limit, ids=ids)
            if narrator is not None:
                await narrator.begin(overview, limit, dry_run=dry_run)
            if dry_run:
                return _show_dry_run(options, overview, narrator, json=json)
        # With --json, the console provider's messages go to stderr.
        with redirect_stdout(sys.stderr if json else sys.stdout):
            done = await homing.process(limit, tenant=tenant, ids=ids)
        if narrator is not None:
            await narrator.end(done)
        purged = None
        if purge:
            await record_audit(homing, "purge.run", days=purge_days)
            purged = await homing.purge(retention)
    if json:
        print_json({**_totals(done), **_details(done), **({} if purged is None else {"purged": purged})})
        return ExitCode.OK
    if narrator is None:
        options.screen.line(format_totals(done))
        for line in _detail_lines(done):
            options.screen.line(line)
    if purged is not None:
        options.screen.line(f"purged {format_count(purged.get('notifications', 0), 'notification')}")
    return ExitCode.OK


def _check_flags(limit: int | None, ids: list[str] | None) -> None:
    from homing.engine.settings import MAX_BATCH_SIZE

    if limit is not None and not 1 <= limit <= MAX_BATCH_SIZE:
        raise CliError(f"--limit: is {limit}; it must be from 1 to {MAX_BATCH_SIZE}")
    if ids and len(ids) > MAX_BATCH_SIZE:
        raise CliError(f"--id: is given {len(ids)} times; at most {MAX_BATCH_SIZE} are allowed")


def _read_retention(
    options: Options, ids: list[str] | None, purge: bool, days: float | None
) -> Retention | None:
    """Returns what --purge-days keeps, or None if the retention settings decide."""
    if purge and (ids or options.tenant is not None):
        raise CliError(
            "--purge: it deletes for all tenants; leave out --tenant and --id, or run `homing purge`"
        )
    if days is None:
        return None
    if not purge:
        raise CliError("--purge-days: needs --purge")
    from homing.core.ports.stores import Retention

    return Retention.of_age(days_to_ms(days, "--purge-days"))


def _totals(done: Processed) -> dict[str, int]:
    names = ("processed", "succeeded", "retried", "failed", "other")
    return {name: getattr(done, name) for name in names}


def _details(found: Processed | QueueOverview) -> dict[str, object]:
    """Returns what a run left out or breakers hold back, for JSON."""
    left_out = {"leftOut": found.left_out} if found.left_out else {}
    return {**left_out, **({"held": found.held} if found.held else {})}


def _detail_lines(found: Processed | QueueOverview) -> list[str]:
    left_out = [f"{id} is {status.value}; left out" for id, status in found.left_out.items()]
    return left_out + [format_hold(hold) for hold in found.held]


def _show_dry_run(
    options: Options, overview: QueueOverview, narrator: ProcessLog | None, *, json: bool
) -> int:
    due = overview.due
    if json:
        from homing.engine.delivery.worker import Processed

        in_inbox = {"inInbox": overview.in_inbox} if overview.in_inbox else {}
        print_json(
            {
                **_totals(Processed()),
                "dryRun": True,
                "found": overview.found,
                **in_inbox,
                **_details(overview),
            }
        )
        return ExitCode.OK
    if narrator is not None:
        narrator.list_only(overview)
        return ExitCode.OK
    screen = options.screen
    ready = overview.due_count - sum(hold.notifications for hold in overview.held)
    requests = format_count(overview.in_inbox, "request")
    inbox = f" and {requests} of the SQL inbox" if overview.in_inbox else ""
    screen.line(f"{format_count(ready, 'notification')}{inbox} would be processed")
    for line in _detail_lines(overview):
        screen.line(line)
    if due:
        several = len({n.tenant for n in due}) > 1
        columns = ("ID", "TYPE", "CHANNEL", "TO", "ATTEMPT>", "PROVIDER", *(("TENANT",) if several else ()))
        screen.table(
            columns,
            [
                (
                    n.id,
                    n.type,
                    n.channel.value,
                    options.privacy.recipient(n),
                    n.attempt_count + 1,
                    n.provider,
                    *((n.tenant,) if several else ()),
                )
                for n in due
            ],
        )
    if overview.due_count > len(due):
        screen.line(f"and {overview.due_count - len(due)} more, which are not listed")
    return ExitCode.OK


def format_totals(done: Processed) -> str:
    """Returns how many notifications were processed, and how they ended."""
    other = f", {done.other} other" if done.other else ""
    return (
        f"processed {done.processed}: {done.succeeded} succeeded, {done.retried} to be retried, "
        f"{done.failed} failed{other}"
    )


def format_hold(hold: BreakerHold) -> str:
    """Returns how many due notifications a breaker holds back, and until when."""
    until = "an operator releases it" if hold.until is None else format_local_time(hold.until)
    number = format_count(hold.notifications, "due notification")
    return f"{number} held by the breaker of {hold.provider} until {until}"


class ProcessLog:
    """Prints each step of a run with its time (`--verbose`). Recipients are masked as in other commands.

    Attempts run at the same time. If lines of another notification were printed since an attempt began, the
    lines of its result begin with one that names the notification again.
    """

    def __init__(self, homing: Homing, screen: Screen, privacy: RecipientMask) -> None:
        self._homing = homing
        self._screen = screen
        self._privacy = privacy
        self._claims: dict[str, Claim] = {}
        """The claims whose attempts have started, by id."""
        self._last = ""
        """Id of the notification that the last line is about. Empty if it is about none."""

    async def begin(self, overview: QueueOverview, limit: int, *, dry_run: bool) -> None:
        """Prints the state of the queue and the retry settings, then starts printing attempts."""
        homing = self._homing
        await homing.policies.refresh()
        self._line("Notification Queue Processor started")
        self._line(f"Limit: {limit}, Dry Run: {'Yes' if dry_run else 'No'}")
        self._line(
            f"Queue status - Pending: {overview.pending}, Processing: {overview.processing}, "
            f"Failed: {overview.failed}"
        )
        for line in _settings_lines(homing):
            self._line(line)
        if overview.in_backoff:
            self._line(f"Notifications waiting for retry backoff: {overview.in_backoff}")
        if overview.average_attempts:
            self._line(f"Average attempts: {overview.average_attempts}")
        if overview.in_inbox:
            self._line(f"Requests in the SQL inbox: {overview.in_inbox}")
        self._line(f"Found {overview.found} pending notification(s) to process")
        if not dry_run:
            homing.on_started = self._print_starts
            homing.on_settled = self._print_settlement

    async def end(self, done: Processed) -> None:
        """Prints the totals, what was left out and what breakers hold back."""
        other = f", Other: {done.other}" if done.other else ""
        self._line(
            f"Processed: {done.processed}, Succeeded: {done.succeeded}, Retried: {done.retried}, "
            f"Failed: {done.failed}{other}"
        )
        for line in _detail_lines(done):
            self._line(line)

    def list_only(self, overview: QueueOverview) -> None:
        """Prints what would be processed, for a dry run."""
        for n in overview.due:
            self._line(f"Would process notification #{n.id} ({n.type}, channel: {n.channel.value})")
            self._line(f"  Attempt {n.attempt_count + 1} to {self._privacy.recipient(n)} via {n.provider}")
        if overview.due_count > len(overview.due):
            self._line(f"Would process {overview.due_count - len(overview.due)} more, which are not listed")
        for line in _detail_lines(overview):
            self._line(line)

    def _print_starts(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._claims[claim.id] = claim
            self._last = claim.id
            self._line(f"Processing notification #{claim.id} {_kind(claim)}")
            channel = _CHANNEL_NAMES[claim.channel.value]
            what = {"SMS": "SMS", "Push": "push notification"}.get(channel, channel.lower())
            self._line(f"  Sending {what} to {self._privacy.address(claim.address)} via {claim.provider}")

    def _print_settlement(self, settlement: Settlement, applied: bool) -> None:
        claim = self._claims.pop(settlement.id, None)
        if not applied:
            return
        if self._last != settlement.id and claim is not None:
            self._line(f"Notification #{claim.id} {_kind(claim)}")
        self._last = settlement.id
        if claim is not None and (made := settlement.attempt) is not None:
            self._line(self._result(claim, made), moment(made.started_at + made.latency_ms))
        self._line(f"  Notification #{settlement.id} {_status_change(settlement)}")

    def _result(self, claim: Claim, made: AttemptRecord) -> str:
        channel = _CHANNEL_NAMES[claim.channel.value]
        if made.outcome.value == "accepted":
            return f"  {channel} sent successfully in {format_duration(made.latency_ms)}"
        error = mask_text(made.error, [claim.address]) if not self._privacy.show else made.error
        return f"  {channel} failed ({made.outcome.value}): {error or made.error_code or ''}"

    def _line(self, text: str, at: datetime | None = None) -> None:
        self._screen.line(f"[{format_local_time(at or datetime.now(UTC))}] {text}")
        sys.stdout.flush()  # a reader of a pipe sees the start of an attempt before its end


def _kind(claim: Claim) -> str:
    return f"({claim.type}, channel: {claim.channel.value})"


def _status_change(settlement: Settlement) -> str:
    reason = f" ({settlement.reason.value})" if settlement.reason else ""
    due = datetime.now(UTC) + timedelta(milliseconds=settlement.delay_ms)
    if settlement.status.value == "retrying" and settlement.attempt is not None:
        again = f"in {format_duration(settlement.delay_ms)}" if settlement.delay_ms else "now"
        return f"will be retried {again} at {format_local_time(due)} via {settlement.provider}"
    if settlement.attempt is None and settlement.status.value in ("retrying", "pending"):
        return f"is postponed until {format_local_time(due)}{reason}"
    return f"marked as {settlement.status.value}{reason}"


def _settings_lines(homing: Homing) -> list[str]:
    """Returns one line per rule that may apply. The first, without a name, is for ordinary notifications."""
    from homing.core.retry.policy import PolicyBook

    book = homing.policies.book
    usual = _resolve(homing, book)
    named = [("", usual.policy)]
    named += [
        (f" (rule {rule.name})", _resolve(homing, PolicyBook(book.preset, [rule]), rule).policy)
        for rule in book.rules
        if rule.name != usual.rule
    ]
    named += [
        (f" ({book.preset.name}/{rule.name})", _resolve(homing, book, rule).policy)
        for rule in book.preset.rules
        if usual.rule is not None or rule.name != usual.preset_rule
    ]
    return [
        f"Retry settings{name} - Max attempts: {policy.max_attempts}, {_backoff(policy)}"
        for name, policy in named
    ]


def _resolve(homing: Homing, book: PolicyBook, rule: Rule | None = None) -> Resolution:
    """Returns the policy for an ordinary notification. The match keys of `rule` replace the usual ones."""
    from homing.core.notifications import Channel, Mode, Priority
    from homing.core.retry.policy import MatchKeys

    keys = {
        "tenant": homing.tenant,
        "type": "message",
        "origin": "",
        "channel": "email",
        "priority": "medium",
    }
    if rule is not None:
        keys |= {name: own for name in keys if (own := getattr(rule, name)) != "*"}
    channel, priority = Channel(keys["channel"]), Priority(keys["priority"])
    return book.resolve(
        MatchKeys(keys["tenant"], keys["type"], keys["origin"], channel, priority), Mode.STANDARD
    )


def _backoff(policy: RetryPolicy) -> str:
    if policy.backoff.value == "fixed":
        return f"Delays: {', '.join(format_duration(step) for step in policy.steps_ms)} (fixed backoff)"
    minutes = policy.base_ms // 60_000
    base = (
        format_count(minutes, "minute")
        if policy.base_ms and policy.base_ms % 60_000 == 0
        else format_duration(policy.base_ms)
    )
    return f"Base delay: {base} ({policy.backoff.value} backoff)"
