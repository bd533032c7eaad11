"""What every command shares: its global options, how it opens the engine, how it runs."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Who = Annotated[
    str | None, typer.Option("--who", metavar="NAME", help="Who does this; default: the login name.")
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why; kept with the change.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
NotificationId = Annotated[str, typer.Argument(metavar="ID", help="The notification's id.")]

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", envvar="HOMING_CONFIG", help="Settings; default: homing.toml."),
]
Store = Annotated[
    str | None, typer.Option("--store", metavar="STORE", help="A SQLite file, postgresql://, or memory:.")
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Whose notifications; default: default.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR=1 does the same.")]
ShowRecipients = Annotated[
    bool, typer.Option("--show-recipients", help="Show addresses in full instead of masked.")
]


@dataclass(frozen=True, slots=True)
class Options:
    """The global options. They may stand before the command or after it; the latter win."""

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
        """Stderr: progress and remarks, so that stdout stays what was asked for."""
        return Screen(no_color=self.no_color, stderr=True)

    @property
    def privacy(self) -> Privacy:
        return Privacy(show=self.show_recipients)

    def over(self, before: Options) -> Options:
        return Options(
            config=self.config if self.config is not None else before.config,
            store=self.store if self.store is not None else before.store,
            tenant=self.tenant if self.tenant is not None else before.tenant,
            no_color=self.no_color or before.no_color,
            show_recipients=self.show_recipients or before.show_recipients,
        )

    def settings(self, **flags: Any) -> Settings:
        """The settings in force for this command; `flags` win over the file and the environment."""
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
"""`(options, **flags) -> int | None`, or a coroutine of it."""


def command(app: typer.Typer, name: str) -> Callable[[Body], Body]:
    """Registers a command: its first parameter is `Options`, it may be async, it returns its exit code."""

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
    """Runs a command's coroutine, on uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None  # asyncio's own
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


@asynccontextmanager
async def engine(
    options: Options, settings: Settings | None = None, observers: Sequence[Observer] = ()
) -> AsyncIterator[Homing]:
    """The engine, open, for one command."""
    from homing.library import Homing

    settings = settings or options.settings()
    new = is_new(settings.store)
    homing = Homing(loaded_settings=settings, observers=observers)
    try:
        await homing.open()
        if new:  # a misspelt path would otherwise look like an empty queue
            note = f"note: the store {settings.store} was not there; a new one is made"
            options.notes.line(note, style="bright_black")
        yield homing
    finally:
        await homing.close()


@asynccontextmanager
async def backend(settings: Settings, *, migrate: bool = True) -> AsyncIterator[Backend]:
    """The store alone, for commands about it."""
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
    """Writes into the audit trail what is about to be done; answers who does it, as commands record it."""
    from homing.core.access import Caller, Scope

    name = who or login()
    caller = Caller(tenant=tenant or homing.tenant, who=f"cli:{name}", scopes=frozenset(Scope))
    await homing.audit.note(caller, action, target, {key: value for key, value in detail.items() if value})
    return name


def configure_logging(settings: Settings, *, verbose: bool = False) -> None:
    """Log lines on stderr, as the settings say; `verbose` asks for more."""
    from homing import compose

    level = settings.log.level
    compose.log_to_stderr(settings.log.format, "info" if verbose and level != "debug" else level)


def login() -> str:
    """Who is at the keyboard, as commands record it."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "cli"


def confirm(question: str, *, yes: bool) -> bool:
    """Asks before a change of many; where nobody can answer, `--yes` must have said it."""
    from homing.cli.exits import Refused

    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused("--yes: is missing; without a terminal to ask on, say --yes (or --dry-run to look)")
    return bool(typer.confirm(question, err=True))


def is_new(address: str) -> bool:
    """Whether the store is a file that is not there yet."""
    path = address.removeprefix("sqlite:")
    return bool(path) and path != "memory:" and "://" not in path and not Path(path).exists()


def shown(address: str) -> str:
    """The store's address without the user, the password and the settings in it."""
    scheme, found, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if found else address


def _option(name: str, kind: Any) -> inspect.Parameter:
    default: Any = False if name in ("no_color", "show_recipients") else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
