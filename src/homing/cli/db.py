"""`homing db migrate|check`: the store's schema."""

from __future__ import annotations

from homing.cli.exits import ExitCode
from homing.cli.root import group
from homing.cli.screen import print_json
from homing.cli.shared import Json, Options, backend, command, is_new

db = group("db", "The store: bring its schema up to date, look at it.")


@command(db, "migrate")
async def migrate(options: Options, json: Json = False) -> int:
    """Bring the schema up to date. Idempotent; never back."""
    settings = options.settings()
    async with backend(settings, migrate=False) as store:
        applied = await store.migrate()
        size = await store.size()
    if json:
        print_json({"store": settings.store, "applied": applied, "schemaVersion": size["schema_version"]})
        return ExitCode.OK
    screen = options.screen
    for name in applied:
        screen.line(f"applied {name}")
    state = "now" if applied else "already"
    screen.line(f"{settings.store} is {state} at schema version {size['schema_version']}")
    return ExitCode.OK


@command(db, "check")
async def check(options: Options, json: Json = False) -> int:
    """Check that the store can be reached and fits this version; exit code 4 where not."""
    settings = options.settings()
    existing_store(settings.store)
    async with backend(settings, migrate=False) as store:
        size = dict(await store.size())
    if json:
        print_json({"store": settings.store, "ok": True, "schemaVersion": size.pop("schema_version"), **size})
        return ExitCode.OK
    screen = options.screen
    screen.line(f"{settings.store} is fine, at schema version {size.pop('schema_version')}")
    screen.fields((name, f"{number:,}") for name, number in size.items())
    return ExitCode.OK


def existing_store(address: str) -> None:
    """A check must not make what it looks for."""
    from homing.core.errors import StoreUnavailable

    if is_new(address):
        raise StoreUnavailable(f"store: {address} does not exist; `homing db migrate` makes it")
