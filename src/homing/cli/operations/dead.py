"""`homing dead`: lists, groups, acknowledges and resends dead letters, and adds to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec.structs import replace

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.filters import FilterFlags
from homing.cli.common.flag_groups import FlagGroup, LeaveOut
from homing.cli.common.options import (
    Cursor,
    DryRun,
    Json,
    Limit,
    NotificationId,
    Options,
    Who,
    Why,
    Yes,
    command,
    confirm,
    login_name,
    open_engine,
    record_audit,
    show_cursor,
)
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_count, format_local_time, format_relative_time, parse_rate
from homing.cli.root import add_command_group
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.lifecycle.commands import CommandName
    from homing.library import Homing

_JOB_POLL_S = 0.1

_RUNNING_JOB_POLL_S = 1

dead = add_command_group("dead", "List, group, acknowledge, resend and add dead letters.")


DeadLetterFilter = Annotated[FilterFlags, LeaveOut("status", "address")]

Acknowledged = Annotated[
    bool | None,
    typer.Option(
        "--acknowledged/--unacknowledged", help="Show only one kind; default: both, unacknowledged first."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFlags(FlagGroup):
    """The flags of the commands that change dead letters."""

    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of dead letters.")] = None
    all_: Annotated[bool, typer.Option("--all", help="All unacknowledged dead letters.")] = False
    filters: DeadLetterFilter
    dry_run: DryRun = False
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Maximum rate, e.g. 20/s; default: no limit.")
    ] = None
    yes: Yes = False
    who: Who = None
    why: Why = ""
    json: Json = False


@command(dead, "list")
async def list_(
    options: Options,
    filters: DeadLetterFilter,
    acknowledged: Acknowledged = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> int:
    """List dead letters, unacknowledged first, then newest first."""
    from homing.engine.operations.dead_letters import fetch_dead_letters

    chosen = filters.build()
    async with open_engine(options, existing=True) as homing:
        page = await fetch_dead_letters(homing, chosen, acknowledged=acknowledged, limit=limit, cursor=cursor)
    if json:
        print_json(options.privacy.wire(page))
        return ExitCode.OK
    if not page.items:
        options.notes.line("no dead letters")
        return ExitCode.OK
    options.screen.table(
        ("ID", "FAILED", "REASON", "ATTEMPTS>", "TYPE", "TO", "PROVIDER", "SEEN BY", "LAST ERROR~"),
        [
            (
                n.id,
                format_local_time(n.failed_at),
                styled(n.reason.value if n.reason else "", "red"),
                n.attempt_count,
                n.type,
                options.privacy.recipient(n),
                n.provider,
                n.acknowledged_by or styled("unseen", "yellow"),
                options.privacy.error(n.last_error, n.recipient),
            )
            for n in page.items
        ],
        first_line=3,
    )
    show_cursor(options, page.cursor)
    return ExitCode.OK


@command(dead, "groups")
async def groups(
    options: Options,
    status: Annotated[
        str,
        typer.Option(
            "--status", metavar="NAME", help="failed (dead letters), or retrying (what waits for a retry)."
        ),
    ] = "failed",
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """Group dead letters by error, largest group first."""
    if status not in ("failed", "retrying"):
        raise CliError(f"--status: is {status!r}; it must be failed or retrying")
    dead_only = status == "failed"
    async with open_engine(options, existing=True) as homing:
        found = await homing.error_groups(limit, status="failed" if dead_only else "retrying")
    if json:
        print_json(options.privacy.wire(found))
        return ExitCode.OK
    if not found:
        options.notes.line("no dead letters" if dead_only else "no notification waits for a retry")
        return ExitCode.OK
    options.screen.table(
        ("COUNT>", *(("UNSEEN>", "REASON") if dead_only else ()), "CODE", "NEWEST", "EXAMPLE", "ERROR~"),
        [
            (
                f"{g.count:,}",
                *((f"{g.unacknowledged:,}", styled(g.reason or "", "red")) if dead_only else ()),
                g.error_code,
                format_relative_time(g.newest_at),
                g.example_id,
                options.privacy.error(g.last_error),
            )
            for g in found
        ],
        first_line=5 if dead_only else 3,
    )
    return ExitCode.OK


@command(dead, "ack")
async def ack(options: Options, flags: DeadLetterFlags) -> int:
    """Mark dead letters as seen, by id or by filter."""
    from homing.core.lifecycle.commands import CommandName

    return await DeadLetterCommand(CommandName.ACKNOWLEDGE, "acknowledged", options, flags).run()


@command(dead, "resend")
async def resend(options: Options, flags: DeadLetterFlags) -> int:
    """Resend dead letters as new notifications. The old ones are marked as seen."""
    from homing.core.lifecycle.commands import CommandName

    return await DeadLetterCommand(CommandName.RESEND, "resent", options, flags).run()


@command(dead, "move")
async def move(
    options: Options, id: NotificationId, who: Who = None, why: Why = "", json: Json = False
) -> int:
    """Move a waiting or in_doubt notification to the dead letters."""
    async with open_engine(options, existing=True) as homing:
        await homing.get(id)
        by = await record_audit(homing, "notification.fail", id, who=who, why=why)
        await homing.move_to_dead_letter(id, who=by, why=why)
    if json:
        print_json({"notificationId": id, "status": "failed"})
    else:
        options.screen.line(styled("failed"), id)
    return ExitCode.OK


class DeadLetterCommand:
    """Acknowledges or resends dead letters: ids one by one, or matches of a filter in batches."""

    def __init__(self, name: CommandName, done_word: str, options: Options, flags: DeadLetterFlags) -> None:
        from homing.core.notifications import Status

        filtered = flags.all_ or flags.filters != FilterFlags()
        if flags.ids and filtered:
            raise CliError("ids: give either ids or filter flags, not both")
        if not flags.ids and not filtered:
            raise CliError("ids: is empty; give ids, a filter such as --reason BAD_RECIPIENT, or --all")
        self._name, self._word, self._ids = name, done_word, list(flags.ids or ())
        self._options, self._flags = options, flags
        self._filter = replace(flags.filters.build(), statuses=(Status.FAILED,), acknowledged=False)
        self._who, self._why = flags.who or login_name(), flags.why
        self._action = f"dead_letter.{name.value}"
        self._rate = None if flags.rate is None else parse_rate(flags.rate, "--rate")

    async def run(self) -> int:
        """Runs the command and returns the exit code. With a filter, asks for confirmation first."""
        async with open_engine(self._options, existing=True) as homing:
            if self._ids:
                return await self._by_ids(homing)
            would = await self._count(homing)
            if self._flags.dry_run or not would:
                return self._tell(would)
            question = f"{self._name.value.capitalize()} {format_count(would, 'dead letter')}?"
            if not confirm(question, yes=self._flags.yes):
                self._options.notes.line("nothing was changed")
                return ExitCode.NO
            return await self._by_filter(homing, would)

    async def _by_filter(self, homing: Homing, would: int) -> int:
        """Runs the command as a job. If it ends early, the same command continues it within an hour."""
        from homing.core.lifecycle.jobs import JobStatus, why_unfinished

        chosen = {key: value for key, value in msgspec.to_builtins(self._filter).items() if value}
        await self._wait_for_running_job(homing)
        continued = await homing.jobs.to_continue(homing.tenant, self._name, self._filter)
        await record_audit(
            homing,
            self._action,
            who=self._who,
            why=self._why,
            filter=chosen,
            count=would,
            continues=continued and continued.id,
        )
        job = await homing.jobs.start_or_resume(
            homing.tenant,
            self._name,
            self._filter,
            who=self._who,
            why=self._why,
            rate_per_second=self._rate,
        )
        before = job
        if continued is not None and job.id == continued.id:
            self._options.notes.line(
                f"continuing job {job.id} of {format_local_time(job.created_at)}, with {job.done:,} done; "
                "later dead letters are not included, run the same command again for them"
            )
        with ProgressBar(self._options, self._name.value, would) as bar:
            while job.status is JobStatus.RUNNING:
                await asyncio.sleep(_JOB_POLL_S)
                job = await homing.jobs.get(homing.tenant, job.id)
                bar.at(job.done - before.done, f"{job.done - before.done:,} {self._word}")
        return self._tell(job.done - before.done, job.refused - before.refused, why_unfinished(job))

    async def _wait_for_running_job(self, homing: Homing) -> None:
        """Waits while a job with the same command and filter runs, or until its process counts as dead."""
        from homing.core.lifecycle.jobs import JobStatus

        noted = False
        while running := [
            job
            for job in await homing.jobs.list(homing.tenant)
            if job.status is JobStatus.RUNNING and (job.command, job.filter) == (self._name, self._filter)
        ]:
            if not noted:
                self._options.notes.line(
                    f"job {running[0].id} in {running[0].worker} does the same; waiting until it has ended"
                )
                noted = True
            await asyncio.sleep(_RUNNING_JOB_POLL_S)

    async def _by_ids(self, homing: Homing) -> int:
        from homing.core.errors import CommandRefused, NotFound

        done = refused = missing = 0
        resent: dict[str, str] = {}
        with ProgressBar(self._options, self._name.value, len(self._ids)) as bar:
            for number, id in enumerate(dict.fromkeys(self._ids), 1):
                try:
                    new = await self._one(homing, id)
                    done += 1
                    resent.update({id: new} if new else {})
                except NotFound as error:
                    missing += 1
                    bar.note(f"error: {error}")
                except CommandRefused as error:
                    refused += 1
                    bar.note(f"error: {error}")
                bar.at(number, f"{done:,} {self._word}")
                if self._rate is not None and number < len(self._ids):
                    await asyncio.sleep(1 / self._rate)
        if missing and not done and not refused:
            return ExitCode.NOT_FOUND
        return self._tell(done, refused + missing, resent=resent)

    async def _one(self, homing: Homing, id: str) -> str | None:
        from homing.core.errors import CommandRefused
        from homing.core.lifecycle.commands import Command, CommandName
        from homing.core.lifecycle.states import after_command

        n = await homing.get(id)
        if self._flags.dry_run:
            order = Command(name=self._name, who=self._who)
            if after_command(order, n.status, mode=n.mode, resent=n.resent_as is not None) is None:
                raise CommandRefused(f"{self._name.value} is not possible: {id} is {n.status.value}")
            return None
        await record_audit(homing, self._action, id, who=self._who, why=self._why)
        if self._name is CommandName.RESEND:
            return await homing.resend(id, who=self._who, why=self._why)
        await homing.acknowledge(id, who=self._who, why=self._why)
        return None

    async def _count(self, homing: Homing) -> int:
        """Returns how many dead letters the command would change now."""
        last = 0
        async for progress in homing.bulk(self._name, self._filter, who=self._who, dry_run=True):
            last = progress.done
        return last

    def _takes_ms(self, number: int) -> int:
        """Returns how long the command takes for this many dead letters at its rate."""
        assert self._rate is not None, "without a rate, the time is unknown"
        return ceil(1000 * number / self._rate)

    def _tell(
        self, done: int, refused: int = 0, stopped: str | None = None, resent: dict[str, str] | None = None
    ) -> int:
        if refused and not done:
            code = ExitCode.NO
        else:
            code = ExitCode.PARTIAL if stopped or refused else ExitCode.OK
        if self._flags.json:
            answer: dict[str, Any] = {
                "done": done,
                "refused": refused,
                "stopped": stopped,
                "dryRun": self._flags.dry_run,
            }
            if self._flags.dry_run and self._rate is not None:
                answer["takesMs"] = self._takes_ms(done)
            print_json({**answer, "resent": resent} if resent else answer)
            return code
        verb = "would be " if self._flags.dry_run else ""
        takes = ""
        if self._flags.dry_run and self._rate is not None and done:
            takes = f", in about {format_duration(self._takes_ms(done))} at {self._rate:g}/s"
        self._options.screen.line(f"{format_count(done, 'dead letter')} {verb}{self._word}{takes}")
        for old, new in (resent or {}).items():
            self._options.screen.line(f"  {old} → {new}")
        if refused and not self._ids:  # with ids, each refusal is already printed
            self._options.notes.line(f"{refused:,} refused: their status no longer allows it")
        if stopped:
            self._options.notes.line(f"stopped early: {stopped}; run the same command again to continue")
        return code
