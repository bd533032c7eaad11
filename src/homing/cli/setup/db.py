"""`homing db migrate|check|backup|copy|uninstall`: migrates, checks, copies and removes the store."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    Json,
    Options,
    command,
    open_store,
    redact_store_url,
    require_existing_store,
)
from homing.cli.common.screen import print_json
from homing.cli.common.units import format_count
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.ports.stores import Backend, StoreCheckResult, Uninstallation
    from homing.settings import Settings


db = add_command_group("db", "Migrate, check, back up, copy and uninstall the store.")


@command(db, "migrate")
async def migrate(options: Options, json: Json = False) -> int:
    """Bring the schema up to date. Safe to repeat; there are no downgrades."""
    settings = options.settings()
    store_name = redact_store_url(settings.store)
    async with open_store(settings, migrate=False) as store:
        applied = await store.migrate()
        if applied:
            await _store_sql_delays(store, settings)
        size = await store.size()
    if json:
        print_json({"store": store_name, "applied": applied, "schemaVersion": size["schema_version"]})
        return ExitCode.OK
    screen = options.screen
    for name in applied:
        screen.line(f"applied {name}")
    state = "now" if applied else "already"
    screen.line(f"{store_name} is {state} at schema version {size['schema_version']}")
    return ExitCode.OK


async def _store_sql_delays(store: Backend, settings: Settings) -> None:
    """Writes the retry delays for the new SQL functions, which return them before a worker runs.

    Rules that were set at run time count too. Later, workers keep the delays up to date.
    """
    from homing.core.ports.stores import Inbox
    from homing.core.retry.presets import find_preset
    from homing.engine.operations.policies import Policies
    from homing.engine.operations.sql_schedule import SqlSchedule
    from homing.engine.system_runtime import SystemClock, SystemRandomSource

    if isinstance(store, Inbox):
        policies = Policies(
            find_preset(settings.preset),
            settings.rules,
            registry=store,
            clock=SystemClock(),
            random_source=SystemRandomSource(),
        )
        await policies.refresh()
        await SqlSchedule(store, policies).store()


@command(db, "check")
async def check(options: Options, json: Json = False) -> int:
    """Check that the store is reachable and fits this version. Exit code 4 if not."""
    from homing.core.ports.stores import SupportsChecks

    settings = options.settings()
    require_existing_store(settings.store)
    store_name = redact_store_url(settings.store)
    findings: tuple[StoreCheckResult, ...] = ()
    async with open_store(settings, migrate=False) as store:
        if isinstance(store, SupportsChecks):
            findings = await store.examine(now_ms=time.time_ns() // 1_000_000)
        ok = all(finding.ok for finding in findings)
        size = dict(await store.size()) if ok else {}
    version = size.pop("schema_version", None)
    if json:
        facts = {"schemaVersion": version, **size} if ok else {}
        checks = {"checks": findings} if findings else {}
        print_json({"store": store_name, "ok": ok, **facts, **checks})
        return ExitCode.OK if ok else ExitCode.STORE
    screen = options.screen
    for finding in findings:
        screen.check(finding.ok, f"{finding.name:<8} {finding.detail}", finding.advice, max_columns=80)
    if not ok:
        screen.line(f"{store_name} is not usable; see the failed checks above")
        return ExitCode.STORE
    screen.line(f"{store_name} is fine, at schema version {version}")
    screen.fields((name, f"{number:,}") for name, number in size.items())
    return ExitCode.OK


@command(db, "backup")
async def backup(
    options: Options,
    target: Annotated[str, typer.Argument(metavar="FILE", help="The new file.")],
    json: Json = False,
) -> int:
    """Copy the SQLite store to a new file while it is in use."""
    from homing import compose
    from homing.cli.common.progress import ProgressBar

    settings = options.settings()
    back_up = compose.build_backup(settings.store, target)
    require_existing_store(settings.store)
    stopping = threading.Event()
    with ProgressBar(options, "backup", 100) as bar:

        def on_step(done: int, total: int) -> None:
            if stopping.is_set():
                raise InterruptedError
            bar.at(100 * done // max(1, total), f"{done:,} of {total:,} pages")

        copying = asyncio.ensure_future(asyncio.to_thread(back_up, on_step))
        try:
            result = await asyncio.shield(copying)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(copying, return_exceptions=True)
            raise
    if json:
        print_json({"file": target, "bytes": result.bytes, "notifications": result.notifications})
        return ExitCode.OK
    options.screen.line(
        f"{redact_store_url(settings.store)} is backed up to {target}: "
        f"{format_count(result.notifications, 'notification')}, {result.bytes / 1_048_576:,.1f} MB, verified"
    )
    return ExitCode.OK


@command(db, "copy")
async def copy(
    options: Options,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A SQLite file, or a postgresql:// or mongodb:// store.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The postgresql:// or mongodb:// store to copy to.")
    ],
    page: Annotated[int, typer.Option("--page", metavar="N", min=1, help="Records per transaction.")] = 2000,
    json: Json = False,
) -> int:
    """Copy a whole store to PostgreSQL or MongoDB. Stop all workers first. Run it again to resume."""
    from homing import compose
    from homing.cli.common.progress import ProgressBar

    async with compose.build_copying(source, target, page=page) as copying:
        begun = await copying.begin()
        if 0 < begun.there < begun.total:
            options.notes.line(f"resuming: {begun.there:,} of {begun.total:,} records are already copied")
        with ProgressBar(options, "copying", begun.total) as bar:
            copied = await copying.copy_remaining(
                begun, on_progress=lambda done, part: bar.at(done, f"{done:,} of {begun.total:,}, {part}")
            )
    if json:
        print_json(
            {"target": redact_store_url(target), "ok": True, "copied": copied, "records": begun.counts}
        )
        return ExitCode.OK
    screen = options.screen
    screen.fields((name, f"{number:,}") for name, number in begun.counts.items())
    state = "was already copied" if begun.progress is None else "is copied, and the counts match"
    archived = "the old store" if "://" in source else "the file"
    screen.line(
        f"all of {redact_store_url(source)} {state}; set store to {redact_store_url(target)} and archive "
        f"{archived}"
    )
    return ExitCode.OK


@command(db, "uninstall")
async def uninstall(
    options: Options,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it; without --yes, show what would be removed.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Accept running workers, and functions that would fail.")
    ] = False,
    json: Json = False,
) -> int:
    """Remove Homing and all its data from a PostgreSQL database. Objects of others stay."""
    from homing.core.ports.stores import SupportsUninstall

    settings = options.settings()
    require_existing_store(settings.store)
    async with open_store(settings, migrate=False) as store:
        if not isinstance(store, SupportsUninstall):
            mongo = settings.store.startswith("mongodb")
            instead = "drop the database on MongoDB" if mongo else "delete the file of a SQLite store"
            raise CliError(f"only PostgreSQL is uninstalled; {instead}")
        plan = await store.plan_uninstallation()
        problems = plan.problems(force=force)
        removes = yes and not problems
        if removes:
            plan = await store.uninstall(force=force)
    if json:
        print_json(
            {
                "store": redact_store_url(settings.store),
                "removed": removes,
                "problems": problems,
                "plan": plan,
            }
        )
    else:
        _show_uninstallation(options, plan, removed=removes)
        for problem in problems:
            options.notes.line(f"not possible: {problem}")
        if plan.workers and not force:
            options.notes.line("a worker that was killed, and a run of `homing process`, count for a minute")
        if (plan.workers or plan.callers) and not force:
            options.notes.line("--force accepts running workers, and functions that would fail")
        if not removes and not problems:
            options.screen.line("Nothing was removed. Repeat the command with --yes to remove it.")
    return ExitCode.NO if problems else ExitCode.OK


def _show_uninstallation(options: Options, plan: Uninstallation, *, removed: bool) -> None:
    objects = ", ".join(
        format_count(len(names), kind.removesuffix("s")) for kind, names in plan.objects.items()
    )
    left = f"of which {plan.waiting:,} {'is' if plan.waiting == 1 else 'are'} still to be sent"
    whole = "schema" if plan.drops_schema else "contents of schema"
    lines = [
        ("removed" if removed else "removes", f"{whole} {plan.schema}: {objects}"),
        ("", f"{format_count(plan.notifications, 'notification')}, {left}"),
        ("", f"cron jobs: {', '.join(plan.cron_jobs)}" if plan.cron_jobs else ""),
        ("stays", f"roles of tenants: {', '.join(plan.roles)}" if plan.roles else ""),
        (
            "stays",
            f"callers, which only warn: {', '.join(plan.guarded_callers)}" if plan.guarded_callers else "",
        ),
    ]
    for name, text in lines:
        if text:
            options.screen.line(f"{name:<8} {text}")
