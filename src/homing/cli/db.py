"""`homing db migrate|check|copy`: the store's schema, and moving to another store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.exits import ExitCode, one_line
from homing.cli.root import group
from homing.cli.screen import print_json, styled
from homing.cli.shared import Json, Options, backend, command, is_new, shown

if TYPE_CHECKING:
    from homing.core.examining import Finding

db = group("db", "The store: bring its schema up to date, look at it, move to another.")


@command(db, "migrate")
async def migrate(options: Options, json: Json = False) -> int:
    """Bring the schema up to date. Idempotent; never back."""
    settings = options.settings()
    store_name = shown(settings.store)
    async with backend(settings, migrate=False) as store:
        applied = await store.migrate()
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


@command(db, "check")
async def check(options: Options, json: Json = False) -> int:
    """Check that the store can be reached and fits this version; exit code 4 where not."""
    from homing.core.examining import Examines

    settings = options.settings()
    existing_store(settings.store)
    store_name = shown(settings.store)
    findings: tuple[Finding, ...] = ()
    async with backend(settings, migrate=False) as store:
        if isinstance(store, Examines):
            findings = await store.examine(now_ms=time.time_ns() // 1_000_000)
        ok = all(finding.ok for finding in findings)
        size = dict(await store.size()) if ok else {}
    version = size.pop("schema_version", None)
    if json:
        told = {"schemaVersion": version, **size} if ok else {}
        checks = {"checks": findings} if findings else {}
        print_json({"store": store_name, "ok": ok, **told, **checks})
        return ExitCode.OK if ok else ExitCode.STORE
    screen = options.screen
    for finding in findings:
        mark = styled("✓", "green") if finding.ok else styled("✗", "red")
        advice = f" → {finding.advice}" if finding.advice else ""
        screen.line(mark, one_line(f"{finding.name:<6} {finding.detail}{advice}"))
    if not ok:
        screen.line(f"{store_name} cannot be used like this")
        return ExitCode.STORE
    screen.line(f"{store_name} is fine, at schema version {version}")
    screen.fields((name, f"{number:,}") for name, number in size.items())
    return ExitCode.OK


@command(db, "copy")
async def copy(
    options: Options,
    source: Annotated[str, typer.Argument(metavar="FILE", help="The SQLite file to copy from.")],
    target: Annotated[str, typer.Argument(metavar="URL", help="The postgresql:// store to copy to.")],
    page: Annotated[
        int, typer.Option("--page", metavar="N", min=1, help="Records in one transaction.")
    ] = 2000,
    json: Json = False,
) -> int:
    """Copy a whole SQLite file to PostgreSQL. Workers must be stopped; run it again to go on after a stop."""
    from homing import compose
    from homing.cli.progress import Bar

    async with compose.copying(source, target, page=page) as copying:
        begun = await copying.begin()
        if 0 < begun.there < begun.total:
            options.notes.line(f"going on: {begun.there:,} of {begun.total:,} records are there")
        with Bar(options, "copying", begun.total) as bar:
            copied = await copying.go_on(
                begun, heard=lambda done, part: bar.at(done, f"{done:,} of {begun.total:,}, {part}")
            )
    if json:
        print_json({"target": shown(target), "ok": True, "copied": copied, "records": begun.counts})
        return ExitCode.OK
    screen = options.screen
    screen.fields((name, f"{number:,}") for name, number in begun.counts.items())
    before = "was there already" if begun.progress is None else "is there, and counted on both sides"
    screen.line(f"all of {source} {before}: set store to {shown(target)} and put the file away")
    return ExitCode.OK


def existing_store(address: str) -> None:
    """A check must not make what it looks for."""
    from homing.core.errors import StoreUnavailable

    if is_new(address):
        raise StoreUnavailable(f"store: {address} does not exist; `homing db migrate` makes it")
