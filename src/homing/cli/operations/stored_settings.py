"""`homing settings`: shows and changes the settings that are kept in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import Json, Options, Who, Why, command, open_engine, record_audit
from homing.cli.common.screen import print_json
from homing.cli.root import add_command_group

if TYPE_CHECKING:
    from homing.engine.operations.stored_settings import StoredSetting

settings = add_command_group("settings", "List and change the settings that are kept in the store.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The setting, e.g. batch_size.")]


@command(settings, "list")
async def list_settings(options: Options, json: Json = False) -> int:
    """List the settings that can be changed at run time."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.stored_settings.list()
    if json:
        print_json({"items": found})
        return ExitCode.OK
    for one in found:
        options.screen.line(_format(one))
    return ExitCode.OK


@command(settings, "set")
async def set_setting(
    options: Options,
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value.")],
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Store a value, which overrides the settings file in all processes."""
    if not value.strip().isdecimal():
        raise CliError(f"{name}: is {value!r}; it must be a whole number")
    async with open_engine(options) as homing:
        homing.stored_settings.check(name, int(value))
        by = await record_audit(homing, "setting.set", name, who=who, why=why, value=int(value))
        changed = await homing.stored_settings.set(name, int(value), who=by)
    return _show(options, changed, json=json)


@command(settings, "reset")
async def reset_setting(
    options: Options, name: Name, who: Who = None, why: Why = "", json: Json = False
) -> int:
    """Remove the stored value, so that the settings file decides."""
    async with open_engine(options) as homing:
        await homing.stored_settings.get(name)
        await record_audit(homing, "setting.reset", name, who=who, why=why)
        changed = await homing.stored_settings.reset(name)
    return _show(options, changed, json=json)


def _show(options: Options, changed: StoredSetting, *, json: bool) -> int:
    if json:
        print_json(changed)
    else:
        options.screen.line(_format(changed))
    return ExitCode.OK


def _format(one: StoredSetting) -> str:
    by = "" if one.changed_by is None else f", changed by {one.changed_by} (default: {one.default})"
    return f"{one.name} = {one.value}{by}"
