"""Global options, command registration, and functions that open the engine or the store."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.mask import Privacy
from homing.cli.screen import Screen

if TYPE_CHECKING:
    from homing.config import Settings
    from homing.core.observing import Observer
    from homing.core.ports import Backend
    from homing.library import Homing

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Who = Annotated[
    str | None,
    typer.Option("--who", metavar="NAME", help="Your name, for the records; default: the login name."),
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, stored with the change.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
NotificationId = Annotated[str, typer.Argument(metavar="ID", help="The notification's id.")]

Config = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", envvar="HOMING_CONFIG", help="Settings file; default: homing.toml."
    ),
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="STORE", help="A SQLite file, a postgresql:// URL, or memory:."),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="The tenant; default: “default”.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="Print without colours, like NO_COLOR=1.")]
ShowRecipients = Annotated[
    bool, typer.Option("--show-recipients", help="Show addresses in full instead of masked.")
]


@dataclass(frozen=True, slots=True)
class Options:
    """The global options. They may precede or follow the command; those that follow it win."""

    config: str | None = None
    store: str | None = None
    tenant: str | None = None
    no_color: bool = False
    show_recipients: bool = False

    @property
    def screen(self) -> Screen:
        return Screen(no_color=self.no_color)

    @property
    def notes(self) -> Screen:
        """The screen on stderr, for progress and remarks, so that stdout has only the result."""
        return Screen(no_color=self.no_color, stderr=True)

    @property
    def privacy(self) -> Privacy:
        return Privacy(show=self.show_recipients)

    def over(self, before: Options) -> Options:
        """Merges these options, given after the command, with those given before it."""
        return Options(
            config=self.config if self.config is not None else before.config,
            store=self.store if self.store is not None else before.store,
            tenant=self.tenant if self.tenant is not None else before.tenant,
            no_color=self.no_color or before.no_color,
            show_recipients=self.show_recipients or before.show_recipients,
        )

    def settings(self, **flags: Any) -> Settings:
        """Loads the settings for this command. `flags` override the file and the environment."""
        from homing import config

        given = {"store": self.store, "tenant": self.tenant, **flags}
        return config.load(self.config, env=os.environ, flags=given)


_SHARED = {
    "config": Config,
    "store": Store,
    "tenant": Tenant,
    "no_color": NoColor,
    "show_recipients": ShowRecipients,
}

Body = Callable[..., Any]
"""Function `(options, **flags) -> int | None`, possibly async."""


def command(app: typer.Typer, name: str) -> Callable[[Body], Body]:
    """Registers a function as a command. Its first parameter is `Options`; it returns the exit code."""

    def register(body: Body) -> Body:
        own = inspect.signature(body, eval_str=True)

        @wraps(body)
        def run(ctx: typer.Context, **given: Any) -> None:
            mine = Options(**{key: given.pop(key) for key in _SHARED})
            result = body(mine.over(ctx.obj or Options()), **given)
            code = run_async(result) if inspect.iscoroutine(result) else result
            raise typer.Exit(int(code or 0))

        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(own.parameters.values())[1:]),
            *(_option(key, kind) for key, kind in _SHARED.items()),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(run)
        return body

    return register


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a command's coroutine and returns its result. Uses uvloop if it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None  # use asyncio's event loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


@asynccontextmanager
async def engine(
    options: Options, settings: Settings | None = None, observers: Sequence[Observer] = ()
) -> AsyncIterator[Homing]:
    """Opens the engine for one command and closes it afterwards."""
    from homing.library import Homing

    settings = settings or options.settings()
    new = is_new(settings.store)
    homing = Homing(loaded_settings=settings, observers=observers)
    try:
        await homing.open()
        if new:  # otherwise a misspelt path looks like an empty queue
            note = f"note: the store {settings.store} did not exist and was created"
            options.notes.line(note, style="bright_black")
        yield homing
    finally:
        await homing.close()


@asynccontextmanager
async def backend(settings: Settings, *, migrate: bool = True) -> AsyncIterator[Backend]:
    """Opens only the store, without an engine, and closes it afterwards."""
    from homing import compose

    store = compose.store(settings.store)
    try:
        await store.open()
        if migrate:
            await store.migrate()
        yield store
    finally:
        await store.close()


async def noted(
    homing: Homing, action: str, target: str = "", *, who: str | None = None, tenant: str = "", **detail: Any
) -> str:
    """Writes the action to the audit trail before it is done. Returns the name of the person doing it."""
    from homing.core.access import Caller, Scope

    name = who or login()
    caller = Caller(tenant=tenant or homing.tenant, who=f"cli:{name}", scopes=frozenset(Scope))
    await homing.audit.note(caller, action, target, {key: value for key, value in detail.items() if value})
    return name


def configure_logging(settings: Settings, *, verbose: bool = False) -> None:
    """Sets up logging to stderr from the settings. `verbose` lowers the level to info."""
    from homing import compose

    level = settings.log.level
    compose.log_to_stderr(settings.log.format, "info" if verbose and level != "debug" else level)


def login() -> str:
    """Returns the login name, or `cli` if the user has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return "cli"


def confirm(question: str, *, yes: bool) -> bool:
    """Asks for confirmation unless `yes` is set. Raises Refused if there is no terminal to ask on."""
    from homing.cli.exits import Refused

    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused("--yes: is required without a terminal; add --yes, or --dry-run for a preview")
    return bool(typer.confirm(question, err=True))


def is_new(address: str) -> bool:
    """Returns True if the store is a file that does not exist yet."""
    path = address.removeprefix("sqlite:")
    return bool(path) and path != "memory:" and "://" not in path and not Path(path).exists()


def shown(address: str) -> str:
    """Returns the store's address without user, password and query parameters."""
    scheme, found, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if found else address


def _option(name: str, kind: Any) -> inspect.Parameter:
    default: Any = False if name in ("no_color", "show_recipients") else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
