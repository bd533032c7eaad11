"""`homing keys`: manages the API keys of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.options import (
    Cursor,
    Json,
    Options,
    PageLimit,
    Who,
    command,
    open_engine,
    record_audit,
    show_cursor,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import (
    format_local_time,
    format_relative_time,
    parse_delay,
    parse_duration_ms,
    parse_rate,
)
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.access.api_keys import ApiKey, NewKey


keys = add_command_group("keys", "Create, list, rotate and revoke API keys.")


KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id: the part between the underscores.")]


_COLOURS = {"active": "green", "expired": "bright_black", "revoked": "red"}


@command(keys, "create")
async def create(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for, such as “web shop”.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="NAME",
            help="send, read, operate, manage or admin (all of them); repeatable; default: send and read.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Lifetime, e.g. 90d; default: unlimited."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="RATE", help="Request limit, e.g. 50/s; default: from the settings."),
    ] = None,
    who: Who = None,
    json: Json = False,
) -> int:
    """Create a key for --tenant and print it. A lost key cannot be recovered."""
    lives = parse_delay(expires, "--expires")
    limit = None if rate is None else parse_rate(rate, "--rate")
    scopes = scope or ["send", "read"]
    async with open_engine(options) as homing:
        await homing.tenants.get(homing.tenant)
        by = await record_audit(homing, "key.create", name, who=who, scopes=scopes)
        made = await homing.keys.create(
            homing.tenant,
            name,
            scopes,
            who=f"cli:{by}",
            expires_at=None if lives is None else datetime.now(UTC) + lives,
            rate_per_second=limit,
        )
    _show(options, made, json=json)
    return ExitCode.OK


@command(keys, "list")
async def list_(
    options: Options,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="List the keys of all tenants.")] = False,
    limit: PageLimit = 100,
    cursor: Cursor = None,
    json: Json = False,
) -> int:
    """List keys, including expired and revoked ones. The keys themselves are not shown."""
    async with open_engine(options, existing=True) as homing:
        tenant = None if all_tenants else homing.tenant
        found = await homing.keys.list(tenant, after=cursor or "", limit=limit + 1)
    items, more = found[:limit], len(found) > limit
    if json:
        print_json({"items": items, "cursor": items[-1].id if more else None})
        return ExitCode.OK
    if not items:
        options.notes.line("no keys; create one with `homing keys create NAME`")
        return ExitCode.OK
    options.screen.table(
        ("ID", "TENANT", "STATUS", "SCOPES", "RATE>", "CREATED", "LAST USED", "EXPIRES", "NAME~"),
        [_row(one) for one in items],
    )
    show_cursor(options, items[-1].id if more else None)
    return ExitCode.OK


@command(keys, "revoke")
async def revoke(options: Options, id: KeyId, who: Who = None, json: Json = False) -> int:
    """Revoke a key. Running services reject it within five seconds."""
    async with open_engine(options, existing=True) as homing:
        tenant = (await homing.keys.get(id)).tenant
        by = await record_audit(homing, "key.revoke", id, who=who, tenant=tenant)
        found = await homing.keys.revoke(id, who=f"cli:{by}")
    if json:
        print_json(found)
    else:
        options.screen.line(styled("revoked", "red"), found.id, f"{found.name} ({found.tenant})")
    return ExitCode.OK


@command(keys, "rotate")
async def rotate(
    options: Options,
    id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="DURATION", help="How long the old key stays valid.")
    ] = "24h",
    who: Who = None,
    json: Json = False,
) -> int:
    """Create a replacement for a key and print it. The old key stays valid for the time of --overlap."""
    overlap_ms = parse_duration_ms(overlap, "--overlap")
    async with open_engine(options, existing=True) as homing:
        tenant = (await homing.keys.get(id)).tenant
        by = await record_audit(homing, "key.rotate", id, who=who, tenant=tenant, overlapMs=overlap_ms)
        made = await homing.keys.rotate(id, who=f"cli:{by}", overlap_ms=overlap_ms)
        old = await homing.keys.get(id)
    _show(options, made, json=json)
    if not json:
        options.notes.line(f"the old key {id} is valid until {format_local_time(old.expires_at)}")
    return ExitCode.OK


def _show(options: Options, made: NewKey, *, json: bool) -> None:
    """Prints a new key: only the key on stdout, for scripts, and remarks on stderr.

    With `json`, prints the key and its properties as JSON.
    """
    if json:
        print_json(made)
        return
    options.screen.line(made.text)
    scopes = ", ".join(scope.value for scope in made.key.scopes)
    options.notes.line(
        f"key {made.key.id} of tenant {made.key.tenant}, scopes {scopes}; it is not shown again"
    )


def _row(key: ApiKey) -> tuple[object, ...]:
    rate = key.rate_per_second
    return (
        key.id,
        key.tenant,
        styled(key.status.value, _COLOURS[key.status.value]),
        " ".join(scope.value for scope in key.scopes),
        "" if rate is None else f"{rate:g}/s" if rate else "none",
        format_local_time(key.created_at),
        format_relative_time(key.last_used_at) or "never",
        format_relative_time(key.expires_at),
        key.name + (f" (rotated to {key.replaced_by})" if key.replaced_by else ""),
    )
