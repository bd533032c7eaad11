"""`homing dead`: dead letters, by themselves and by what they died of; acknowledge and resend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli import filters
from homing.cli.exits import ExitCode, Refused
from homing.cli.progress import Bar
from homing.cli.root import app
from homing.cli.screen import print_json, styled
from homing.cli.shared import DryRun, Json, Options, Who, Why, Yes, command, confirm, engine, login
from homing.cli.words import local, per_second, plural, relative

if TYPE_CHECKING:
    from homing.core.model import CommandName, Filter, Notification
    from homing.engine.commands import BulkProgress
    from homing.library import Homing

dead = typer.Typer(help="Dead letters: list, group, acknowledge, resend.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dead, name="dead")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters by id.")]
All = Annotated[bool, typer.Option("--all", help="All unacknowledged ones.")]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="At most so many, e.g. 20/s; default: no limit.")
]
Acknowledged = Annotated[
    bool | None,
    typer.Option("--acknowledged/--unacknowledged", help="Only those; default: unacknowledged first."),
]

_UNSEEN, _SEEN = "u:", "a:"


@command(dead, "list")
async def list_(
    options: Options,
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    acknowledged: Acknowledged = None,
    limit: filters.Limit = 50,
    cursor: filters.Cursor = None,
    json: Json = False,
) -> int:
    """List dead letters, unacknowledged first, then newest first."""
    import msgspec

    def chosen(seen: bool) -> Filter:
        return filters.build(
            statuses=["failed"],
            channel=channel,
            type=type,
            provider=provider,
            batch=batch,
            reason=reason,
            error_code=error_code,
            since=since,
            until=until,
            acknowledged=seen,
        )

    parts = [(_UNSEEN, chosen(False)), (_SEEN, chosen(True))]
    if acknowledged is not None:
        parts = parts[1:] if acknowledged else parts[:1]
    async with engine(options) as homing:
        items, more = await _pages(homing, parts, limit, cursor)
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
                local(n.failed_at),
                styled(n.reason.value if n.reason else "", "red"),
                n.attempt_count,
                n.type,
                options.privacy.recipient(n),
                n.provider,
                n.acknowledged_by or styled("nobody", "yellow"),
                options.privacy.error(n.last_error, n.recipient),
            )
            for n in items
        ],
    )
    if more:
        options.notes.line(f"there are more: --cursor {more}")
    return ExitCode.OK


@command(dead, "groups")
async def groups(options: Options, limit: filters.Limit = 50, json: Json = False) -> int:
    """Group dead letters by what they died of, most first."""
    import msgspec

    async with engine(options) as homing:
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
                relative(g.newest_at),
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
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Acknowledge dead letters: somebody has looked at them."""
    from homing.core.model import CommandName

    flags = dict(
        channel=channel,
        type=type,
        provider=provider,
        batch=batch,
        reason=reason,
        error_code=error_code,
        since=since,
        until=until,
    )
    job = Job(CommandName.ACKNOWLEDGE, "acknowledged", ids, flags, who or login(), why, rate, all_)
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)


@command(dead, "resend")
async def resend(
    options: Options,
    ids: Ids = None,
    all_: All = False,
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Resend dead letters: new notifications with the same message; the old ones are acknowledged."""
    from homing.core.model import CommandName

    flags = dict(
        channel=channel,
        type=type,
        provider=provider,
        batch=batch,
        reason=reason,
        error_code=error_code,
        since=since,
        until=until,
    )
    job = Job(CommandName.RESEND, "resent", ids, flags, who or login(), why, rate, all_)
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)


class Job:
    """Acknowledging or resending many: by id, or by filter in steps."""

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
            raise Refused("ids: and filter flags are both given; give one of them")
        if not ids and not given and not all_:
            raise Refused("ids: none given; name ids, a filter such as --reason BAD_RECIPIENT, or --all")
        self._name, self._word, self._ids = name, done_word, list(ids or ())
        self._filter = filters.build(statuses=["failed"], acknowledged=False, **given)  # type: ignore[arg-type]
        self._who, self._why = who, why
        self._rate = None if rate is None else per_second(rate, "--rate")

    async def run(self, options: Options, *, dry_run: bool, yes: bool, json: bool) -> int:
        async with engine(options) as homing:
            if self._ids:
                return await self._by_ids(options, homing, dry_run=dry_run, json=json)
            would = await self._count(homing)
            if dry_run or not would:
                return self._tell(options, would, 0, None, dry_run=dry_run, json=json)
            question = f"{self._name.value.capitalize()} {plural(would, 'dead letter')}?"
            if not confirm(options, question, yes=yes):
                options.notes.line("nothing was changed")
                return ExitCode.NO
            return await self._by_filter(options, homing, would, json=json)

    async def _by_filter(self, options: Options, homing: Homing, would: int, *, json: bool) -> int:
        last: BulkProgress | None = None
        with Bar(options, self._name.value, would) as bar:
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
        with Bar(options, self._name.value, len(self._ids)) as bar:
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
        from homing.core.model import Command, CommandName
        from homing.core.states import after_command

        if dry_run:
            n = await homing.get(id)
            order = Command(name=self._name, who=self._who)
            if after_command(order, n.status, mode=n.mode, resent=n.resent_as is not None) is None:
                raise CommandRefused(f"{self._name.value} would not be possible: {id} is {n.status.value}")
            return None
        if self._name is CommandName.RESEND:
            return await homing.resend(id, who=self._who, why=self._why)
        await homing.acknowledge(id, who=self._who, why=self._why)
        return None

    async def _count(self, homing: Homing) -> int:
        """How many the command would touch now."""
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
        options.screen.line(f"{plural(done, 'dead letter')} {verb}{self._word}")
        for old, new in (resent or {}).items():
            options.screen.line(f"  {old} → {new}")
        if refused:
            options.notes.line(f"{refused:,} refused: no longer possible in the status they are in")
        if stopped:
            options.notes.line(f"stopped early: {stopped}; run it again when it is closed")
        return code


async def _pages(
    homing: Homing, parts: list[tuple[str, Filter]], limit: int, cursor: str | None
) -> tuple[list[Notification], str | None]:
    """One page over several filters, one after the other; its cursor says in which one it ended."""
    items: list[Notification] = []
    mark, rest = (cursor[:2], cursor[2:] or None) if cursor else (parts[0][0], None)
    names = [name for name, _ in parts]
    if mark not in names:
        raise Refused("--cursor: is not one that this list has given")
    for name, chosen in parts[names.index(mark) :]:
        page = await homing.list(chosen, limit=limit - len(items), cursor=rest)
        items.extend(page.items)
        rest = None
        if page.cursor is not None:
            return items, name + page.cursor
        if len(items) >= limit:
            later = names[names.index(name) + 1 :]
            return items, later[0] if later else None
    return items, None
