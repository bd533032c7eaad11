"""`homing audit`: lists the audit trail and verifies its hash chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import Cursor, Json, Options, PageLimit, command, open_engine, show_cursor
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_count, format_local_time
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.access.audit import ChainFault
    from homing.engine.access.audit import VerificationStep
    from homing.library import Homing


audit = add_command_group("audit", "List the audit trail, and verify that it was not changed.")


_HASH_LENGTH = 64


@command(audit, "list")
async def list_(
    options: Options,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="List entries of no tenant: policies, providers, settings, sinks, tenants, purges.",
        ),
    ] = False,
    limit: PageLimit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> int:
    """List the audit entries of --tenant, newest first."""
    import msgspec

    from homing.engine.operations.policies import EVERY_TENANT

    async with open_engine(options, existing=True) as homing:
        page = await homing.audit.list(EVERY_TENANT if shared else homing.tenant, cursor=cursor, limit=limit)
    if json:
        print_json(page)
        return ExitCode.OK
    if not page.items:
        options.notes.line("no audit entries")
        return ExitCode.OK
    options.screen.table(
        ("NUMBER>", "AT", "WHO", "ACTION", "TARGET", "DETAIL~"),
        [
            (
                one.number,
                format_local_time(one.at),
                one.who,
                one.action,
                one.target,
                msgspec.json.encode(one.detail).decode() if one.detail else "",
            )
            for one in page.items
        ],
    )
    show_cursor(options, page.cursor)
    return ExitCode.OK


@command(audit, "verify")
async def verify(
    options: Options,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", metavar="HASH", help="A head hash printed by an earlier check; repeatable."),
    ] = None,
    json: Json = False,
) -> int:
    """Verify every hash chain, newest entry first. Exit code 1 if an entry was changed or is missing."""
    kept = [_hash(one) for one in head or ()]
    async with open_engine(options, existing=True) as homing:
        chains = await _walked(options, homing, kept)
    seen = {one for chain in chains for one in chain.seen}
    missing = [one for one in kept if one not in seen]
    sound = not missing and not any(chain.faults for chain in chains)
    if json:
        print_json({"sound": sound, "chains": [_chain(one) for one in chains], "missingHeads": missing})
    else:
        _tell(options, chains, missing)
    return ExitCode.OK if sound else ExitCode.NO


async def _walked(options: Options, homing: Homing, kept: Sequence[str]) -> list[VerificationStep]:
    """Verifies all chains and returns the final result of each, with all its faults."""
    from msgspec.structs import replace

    found: list[VerificationStep] = []
    with ProgressBar(options, "verifying") as bar:
        before = 0
        for tenant in await homing.audit.chains():
            faults: list[ChainFault] = []
            async for step in homing.audit.verify(tenant, kept):
                faults += step.faults
                bar.at(before + step.entries, f"{before + step.entries:,} entries, {tenant}")
                if step.done:
                    before += step.entries
                    found.append(replace(step, faults=tuple(faults)))
    return found


def _tell(options: Options, chains: Sequence[VerificationStep], missing: Sequence[str]) -> None:
    screen = options.screen
    for chain in chains:
        for fault in chain.faults:
            where = f"{fault.number}" if fault.until is None else f"{fault.number} to {fault.until}"
            screen.line(styled(fault.kind.value, "red"), f"entry {where} of {fault.tenant}: {fault.what}")
    for one in missing:
        screen.line(
            styled("missing", "red"), f"no entry has the hash {one}: a chain was truncated or rewritten"
        )
    total = sum(chain.entries for chain in chains)
    if missing or any(chain.faults for chain in chains):
        screen.line(styled("NOT SOUND", "red"), f"({format_count(total, 'entry', 'entries')} verified)")
        return
    screen.table(
        ("CHAIN", "ENTRIES>", "HEAD"),
        [(chain.tenant, chain.entries, chain.head.hash) for chain in chains],
        empty="no chains",
    )
    screen.line(styled("sound", "green"), format_count(total, "entry", "entries"))
    if total:
        options.notes.line(
            "store the heads elsewhere: `homing audit verify --head HASH` then detects a truncated chain"
        )


def _chain(chain: VerificationStep) -> dict[str, object]:
    return {
        "tenant": chain.tenant,
        "entries": chain.entries,
        "head": {"number": chain.head.number, "hash": chain.head.hash},
        "faults": chain.faults,
    }


def _hash(text: str) -> str:
    if len(text) != _HASH_LENGTH or not text.isalnum():
        raise CliError(
            f"--head: is {text!r}; it must be a hash of 64 characters, as printed by `audit verify`"
        )
    return text.lower()
