"""`homing dead`: lists, groups, acknowledges and resends dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    BatchFlag,
    ChannelFlag,
    Cursor,
    DryRun,
    ErrorCodeFlag,
    Json,
    Limit,
    Options,
    ProviderFlag,
    ReasonFlag,
    SinceFlag,
    TypeFlag,
    UntilFlag,
    Who,
    Why,
    Yes,
    build_filter,
    command,
    confirm,
    login_name,
    open_engine,
    record_audit,
)
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_count, format_local_time, format_relative_time, parse_rate
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.lifecycle.commands import CommandName
    from homing.engine.operations.commands import BulkProgress
    from homing.library import Homing

dead = add_command_group("dead", "List, group, acknowledge and resend dead letters.")


Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of dead letters.")]

All = Annotated[bool, typer.Option("--all", help="All unacknowledged dead letters.")]

Rate = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="Maximum rate, e.g. 20/s; default: no limit.")
]

Acknowledged = Annotated[
    bool | None,
    typer.Option(
        "--acknowledged/--unacknowledged", help="Show only one kind; default: both, unacknowledged first."
    ),
]


@command(dead, "list")
async def list_(
    options: Options,
    channel: ChannelFlag = None,
    type: TypeFlag = None,
    provider: ProviderFlag = None,
    batch: BatchFlag = None,
    reason: ReasonFlag = None,
    error_code: ErrorCodeFlag = None,
    since: SinceFlag = None,
    until: UntilFlag = None,
    acknowledged: Acknowledged = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> int:
    """List dead letters, unacknowledged first, then newest first."""
    import msgspec

    from homing.engine.operations.dead_letters import fetch_dead_letters

    chosen = build_filter(
        channel=channel,
        type=type,
        provider=provider,
        batch=batch,
        reason=reason,
        error_code=error_code,
        since=since,
        until=until,
    )
    async with open_engine(options) as homing:
        page = await fetch_dead_letters(homing, chosen, acknowledged=acknowledged, limit=limit, cursor=cursor)
    items, more = page.items, page.cursor
    if json:
        print_json(options.privacy.wire(msgspec.to_builtins({"items": items, "cursor": more})))
        return ExitCode.OK
    if not items:
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
            for n in items
        ],
    )
    if more:
        options.notes.line(f"for more, add --cursor {more}")
    return ExitCode.OK


@command(dead, "groups")
async def groups(options: Options, limit: Limit = 50, json: Json = False) -> int:
    """Group dead letters by error, largest group first."""
    import msgspec

    async with open_engine(options) as homing:
        found = await homing.error_groups(limit)
    if json:
        print_json(options.privacy.wire(msgspec.to_builtins(found)))
        return ExitCode.OK
    if not found:
        options.notes.line("no dead letters")
        return ExitCode.OK
    options.screen.table(
        ("COUNT>", "UNSEEN>", "REASON", "CODE", "NEWEST", "EXAMPLE", "ERROR~"),
        [
            (
                f"{g.count:,}",
                f"{g.unacknowledged:,}",
                styled(g.reason.value if g.reason else "", "red"),
                g.error_code,
                format_relative_time(g.newest_at),
                g.example_id,
                options.privacy.error(g.last_error),
            )
            for g in found
        ],
    )
    return ExitCode.OK


@command(dead, "ack")
async def ack(
    options: Options,
    ids: Ids = None,
    all_: All = False,
    channel: ChannelFlag = None,
    type: TypeFlag = None,
    provider: ProviderFlag = None,
    batch: BatchFlag = None,
    reason: ReasonFlag = None,
    error_code: ErrorCodeFlag = None,
    since: SinceFlag = None,
    until: UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Mark dead letters as seen, by id or by filter."""
    from homing.core.lifecycle.commands import CommandName

    flags = {
        "channel": channel,
        "type": type,
        "provider": provider,
        "batch": batch,
        "reason": reason,
        "error_code": error_code,
        "since": since,
        "until": until,
    }
    job = DeadLetterCommand(
        CommandName.ACKNOWLEDGE, "acknowledged", ids, flags, who or login_name(), why, rate, all_
    )
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)


@command(dead, "resend")
async def resend(
    options: Options,
    ids: Ids = None,
    all_: All = False,
    channel: ChannelFlag = None,
    type: TypeFlag = None,
    provider: ProviderFlag = None,
    batch: BatchFlag = None,
    reason: ReasonFlag = None,
    error_code: ErrorCodeFlag = None,
    since: SinceFlag = None,
    until: UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Resend dead letters as new notifications, and mark the old ones as seen."""
    from homing.core.lifecycle.commands import CommandName

    flags = {
        "channel": channel,
        "type": type,
        "provider": provider,
        "batch": batch,
        "reason": reason,
        "error_code": error_code,
        "since": since,
        "until": until,
    }
    job = DeadLetterCommand(CommandName.RESEND, "resent", ids, flags, who or login_name(), why, rate, all_)
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)


class DeadLetterCommand:
    """Acknowledges or resends dead letters: ids one by one, or matches of a filter in batches."""

    def __init__(
        self,
        name: CommandName,
        done_word: str,
        ids: Sequence[str] | None,
        flags: dict[str, str | None],
        who: str,
        why: str,
        rate: str | None,
        all_: bool,
    ) -> None:
        given = {key: value for key, value in flags.items() if value is not None}
        if ids and (given or all_):
            raise CliError("ids: give either ids or filter flags, not both")
        if not ids and not given and not all_:
            raise CliError("ids: is empty; give ids, a filter such as --reason BAD_RECIPIENT, or --all")
        self._name, self._word, self._ids = name, done_word, list(ids or ())
        self._filter = build_filter(statuses=["failed"], acknowledged=False, **given)
        self._who, self._why = who, why
        self._action = f"dead_letter.{name.value}"
        self._rate = None if rate is None else parse_rate(rate, "--rate")

    async def run(self, options: Options, *, dry_run: bool, yes: bool, json: bool) -> int:
        """Runs the command and returns the exit code. With a filter, asks for confirmation first."""
        async with open_engine(options) as homing:
            if self._ids:
                return await self._by_ids(options, homing, dry_run=dry_run, json=json)
            would = await self._count(homing)
            if dry_run or not would:
                return self._tell(options, would, 0, None, dry_run=dry_run, json=json)
            question = f"{self._name.value.capitalize()} {format_count(would, 'dead letter')}?"
            if not confirm(question, yes=yes):
                options.notes.line("nothing was changed")
                return ExitCode.NO
            return await self._by_filter(options, homing, would, json=json)

    async def _by_filter(self, options: Options, homing: Homing, would: int, *, json: bool) -> int:
        last: BulkProgress | None = None
        chosen = {key: value for key, value in msgspec.to_builtins(self._filter).items() if value}
        await record_audit(homing, self._action, who=self._who, why=self._why, filter=chosen, count=would)
        with ProgressBar(options, self._name.value, would) as bar:
            steps = homing.bulk(
                self._name, self._filter, who=self._who, why=self._why, rate_per_second=self._rate
            )
            async for last in steps:
                bar.at(last.done, f"{last.done:,} {self._word}")
        done, refused, stopped = (0, 0, None) if last is None else (last.done, last.refused, last.stopped)
        return self._tell(options, done, refused, stopped, json=json)

    async def _by_ids(self, options: Options, homing: Homing, *, dry_run: bool, json: bool) -> int:
        from homing.core.errors import CommandRefused, NotFound

        done = refused = missing = 0
        resent: dict[str, str] = {}
        with ProgressBar(options, self._name.value, len(self._ids)) as bar:
            for number, id in enumerate(dict.fromkeys(self._ids), 1):
                try:
                    new = await self._one(homing, id, dry_run=dry_run)
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
        return self._tell(options, done, refused + missing, None, dry_run=dry_run, json=json, resent=resent)

    async def _one(self, homing: Homing, id: str, *, dry_run: bool) -> str | None:
        from homing.core.errors import CommandRefused
        from homing.core.lifecycle.commands import Command, CommandName
        from homing.core.lifecycle.states import after_command

        if dry_run:
            n = await homing.get(id)
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

    def _tell(
        self,
        options: Options,
        done: int,
        refused: int,
        stopped: str | None,
        *,
        dry_run: bool = False,
        json: bool = False,
        resent: dict[str, str] | None = None,
    ) -> int:
        if refused and not done:
            code = ExitCode.NO
        else:
            code = ExitCode.PARTIAL if stopped or refused else ExitCode.OK
        if json:
            answer: dict[str, Any] = {"done": done, "refused": refused, "stopped": stopped, "dryRun": dry_run}
            print_json({**answer, "resent": resent} if resent else answer)
            return code
        verb = "would be " if dry_run else ""
        options.screen.line(f"{format_count(done, 'dead letter')} {verb}{self._word}")
        for old, new in (resent or {}).items():
            options.screen.line(f"  {old} → {new}")
        if refused and not self._ids:  # with ids, each refusal is already printed
            options.notes.line(f"{refused:,} refused: their status no longer allows it")
        if stopped:
            options.notes.line(f"stopped early: {stopped}; run it again once the breaker is closed")
        return code
