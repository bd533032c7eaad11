"""Acknowledges or resends dead letters, by id or by filter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from homing.cli import filters
from homing.cli.exits import ExitCode, Refused
from homing.cli.progress import Bar
from homing.cli.screen import print_json
from homing.cli.shared import Options, confirm, engine, noted
from homing.cli.words import per_second, plural
from homing.core.errors import CommandRefused, NotFound
from homing.core.model import Command, CommandName
from homing.core.states import after_command
from homing.engine.commands import BulkProgress
from homing.library import Homing


class Job:
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
            raise Refused("ids: give either ids or filter flags, not both")
        if not ids and not given and not all_:
            raise Refused("ids: is empty; give ids, a filter such as --reason BAD_RECIPIENT, or --all")
        self._name, self._word, self._ids = name, done_word, list(ids or ())
        self._filter = filters.build(statuses=["failed"], acknowledged=False, **given)
        self._who, self._why = who, why
        self._action = f"dead_letter.{name.value}"
        self._rate = None if rate is None else per_second(rate, "--rate")

    async def run(self, options: Options, *, dry_run: bool, yes: bool, json: bool) -> int:
        """Runs the command, asking first if it uses a filter, and returns the exit code."""
        async with engine(options) as homing:
            if self._ids:
                return await self._by_ids(options, homing, dry_run=dry_run, json=json)
            would = await self._count(homing)
            if dry_run or not would:
                return self._tell(options, would, 0, None, dry_run=dry_run, json=json)
            question = f"{self._name.value.capitalize()} {plural(would, 'dead letter')}?"
            if not confirm(question, yes=yes):
                options.notes.line("nothing was changed")
                return ExitCode.NO
            return await self._by_filter(options, homing, would, json=json)

    async def _by_filter(self, options: Options, homing: Homing, would: int, *, json: bool) -> int:
        last: BulkProgress | None = None
        chosen = {key: value for key, value in msgspec.to_builtins(self._filter).items() if value}
        await noted(homing, self._action, who=self._who, why=self._why, filter=chosen, count=would)
        with Bar(options, self._name.value, would) as bar:
            steps = homing.bulk(
                self._name, self._filter, who=self._who, why=self._why, rate_per_second=self._rate
            )
            async for last in steps:
                bar.at(last.done, f"{last.done:,} {self._word}")
        done, refused, stopped = (0, 0, None) if last is None else (last.done, last.refused, last.stopped)
        return self._tell(options, done, refused, stopped, json=json)

    async def _by_ids(self, options: Options, homing: Homing, *, dry_run: bool, json: bool) -> int:
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
        if dry_run:
            n = await homing.get(id)
            order = Command(name=self._name, who=self._who)
            if after_command(order, n.status, mode=n.mode, resent=n.resent_as is not None) is None:
                raise CommandRefused(f"{self._name.value} is not possible: {id} is {n.status.value}")
            return None
        await noted(homing, self._action, id, who=self._who, why=self._why)
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
        options.screen.line(f"{plural(done, 'dead letter')} {verb}{self._word}")
        for old, new in (resent or {}).items():
            options.screen.line(f"  {old} → {new}")
        if refused and not self._ids:  # with ids, each refusal is already printed
            options.notes.line(f"{refused:,} refused: their status no longer allows it")
        if stopped:
            options.notes.line(f"stopped early: {stopped}; run it again once the breaker is closed")
        return code
