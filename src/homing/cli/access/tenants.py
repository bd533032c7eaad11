"""`homing tenants`: lists, creates, disables and enables tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

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
from homing.cli.common.units import format_local_time
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.core.access.tenants import Tenant


tenants = add_command_group("tenants", "List, create, disable and enable tenants.")


Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]


@command(tenants, "list")
async def list_(options: Options, limit: PageLimit = 100, cursor: Cursor = None, json: Json = False) -> int:
    """List tenants by name. This includes tenants that sent notifications without being created."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.tenants.list(after=cursor or "", limit=limit + 1)
    items, more = found[:limit], len(found) > limit
    if json:
        print_json({"items": items, "cursor": items[-1].name if more else None})
        return ExitCode.OK
    options.screen.table(
        ("NAME", "STATUS", "CREATED", "BY"),
        [(one.name, _status(one), format_local_time(one.created_at), one.created_by) for one in items],
    )
    show_cursor(options, items[-1].name if more else None)
    return ExitCode.OK


@command(tenants, "create")
async def create(options: Options, name: Name, who: Who = None, json: Json = False) -> int:
    """Create a tenant. Its name may contain letters (capitals matter), digits and . _ -"""
    made = await _changed(options, "create", name, who)
    _tell(options, made, json=json)
    if not json:
        options.notes.line(f"create a key for it with `homing keys create NAME --tenant {made.name}`")
    return ExitCode.OK


@command(tenants, "disable")
async def disable(options: Options, name: Name, who: Who = None, json: Json = False) -> int:
    """Reject a tenant's keys and tokens. Notifications already accepted are still delivered."""
    _tell(options, await _changed(options, "disable", name, who), json=json)
    return ExitCode.OK


@command(tenants, "enable")
async def enable(options: Options, name: Name, who: Who = None, json: Json = False) -> int:
    """Allow a tenant's keys and tokens again."""
    _tell(options, await _changed(options, "enable", name, who), json=json)
    return ExitCode.OK


async def _changed(
    options: Options, action: Literal["create", "disable", "enable"], name: str, who: str | None
) -> Tenant:
    """Records the action in the audit trail, performs it and returns the tenant."""
    async with open_engine(options) as homing:
        of = homing.tenants
        if action != "create":
            await of.get(name)
        by = await record_audit(homing, f"tenant.{action}", name, who=who)
        perform = {"create": of.create, "disable": of.disable, "enable": of.enable}[action]
        return await perform(name, who=f"cli:{by}")


def _tell(options: Options, tenant: Tenant, *, json: bool) -> None:
    if json:
        print_json(tenant)
    else:
        options.screen.line(tenant.name, _status(tenant))


def _status(tenant: Tenant) -> object:
    if tenant.enabled:
        return styled("enabled", "green")
    return (styled("disabled", "red"), f" by {tenant.disabled_by}, {format_local_time(tenant.disabled_at)}")
