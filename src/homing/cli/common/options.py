"""Code that commands share: flags, global options, registration, opening the engine or the store, files.

A flag that several commands have is defined here, or in a `FlagGroup` together with the flags around it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from homing.cli.common.exit_codes import CliError
from homing.cli.common.flag_groups import FlagGroup, with_flags
from homing.cli.common.masking import RecipientMask
from homing.cli.common.screen import Screen

if TYPE_CHECKING:
    from enum import StrEnum

    from homing.core.ports.observers import Observer
    from homing.core.ports.stores import Backend
    from homing.library import Homing
    from homing.settings import Settings

    E = TypeVar("E", bound=StrEnum)


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Who = Annotated[
    str | None,
    typer.Option("--who", metavar="NAME", help="Your name, for the records; default: the login name."),
]

Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, stored with the change.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]

TypeName = Annotated[
    str | None,
    typer.Option("--type", metavar="NAME", help="The notification's type, e.g. order_confirmed."),
]

PriorityName = Annotated[
    str | None, typer.Option("--priority", metavar="NAME", help="critical, high, medium or low.")
]

Origin = Annotated[
    str | None, typer.Option("--origin", metavar="NAME", help="Name of the service that sends the request.")
]

ForcedProvider = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Use only this provider, without failover.")
]

NotificationId = Annotated[str, typer.Argument(metavar="ID", help="The notification's id.")]


Limit = Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of entries.")]

PageLimit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Entries per page.")]

Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="The cursor that the previous page printed.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(FlagGroup):
    """The global options. They may precede or follow the command; those that follow it win."""

    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="HOMING_CONFIG",
            show_envvar=False,
            help="Settings file; default: $HOMING_CONFIG, or homing.toml.",
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="STORE", help="SQLite file, postgresql:// or mongodb:// URL, or memory:."
        ),
    ] = None
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="The tenant; default: “default”.")
    ] = None
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colors, like NO_COLOR=1.")] = (
        False
    )
    show_recipients: Annotated[
        bool, typer.Option("--show-recipients", help="Show addresses in full instead of masked.")
    ] = False

    @property
    def screen(self) -> Screen:
        return Screen(no_color=self.no_color)

    @property
    def notes(self) -> Screen:
        """The screen on stderr, for progress and remarks, so that stdout has only the result."""
        return Screen(no_color=self.no_color, stderr=True)

    @property
    def privacy(self) -> RecipientMask:
        return RecipientMask(show=self.show_recipients)

    def over(self, before: Options) -> Options:
        """Merges these options, given after the command, with those given before it."""
        return Options(
            config=self.config if self.config is not None else before.config,
            store=self.store if self.store is not None else before.store,
            tenant=self.tenant if self.tenant is not None else before.tenant,
            no_color=self.no_color or before.no_color,
            show_recipients=self.show_recipients or before.show_recipients,
        )

    def settings(self, without_file: Callable[[], Mapping[str, Any]] | None = None, **flags: Any) -> Settings:
        """Loads the settings for this command. `flags` override the file and the environment.

        `without_file` returns further settings that apply only if there is no settings file.
        """
        from homing.settings import load_settings

        given = {"store": self.store, "tenant": self.tenant, **flags}
        database_url = os.environ.get("DATABASE_URL", "")
        return load_settings(
            self.config,
            env=os.environ,
            flags=given,
            database_url=database_url,
            without_file=without_file,
        )


CommandBody = Callable[..., Any]
"""Function `(options, **flags) -> int | None`, possibly async."""


_BRACKETS_TWICE = re.compile(r"\[\[(\w+)\](\.{3})?\](?:\.{3})?")


class _PlainUsage(TyperCommand):
    """A command whose usage line is the same with every release of typer.

    It names a required argument as `ID`, where typer may write `{ID}`, and an optional one as `[ID]`, where
    it may write `[[ID]]`.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage line. Braces remain only around alternatives."""
        pieces = [_BRACKETS_TWICE.sub(r"[\1]\2", piece) for piece in super().collect_usage_pieces(ctx)]
        return [piece if "|" in piece else piece.strip("{}") for piece in pieces]


def command(app: typer.Typer, name: str) -> Callable[[CommandBody], CommandBody]:
    """Registers a function as a command. Its first parameter is `Options`; it returns the exit code."""

    def register(body: CommandBody) -> CommandBody:
        def run(ctx: typer.Context, options: Options, **given: Any) -> None:
            result = body(options.over(ctx.obj or Options()), **given)
            code = run_async(result) if inspect.iscoroutine(result) else result
            raise typer.Exit(int(code or 0))

        options, *own = inspect.signature(body, eval_str=True).parameters.values()
        call = with_flags(run, [*own, options])
        call.__doc__ = body.__doc__
        app.command(name, cls=_PlainUsage)(call)
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
async def open_engine(
    options: Options,
    settings: Settings | None = None,
    observers: Sequence[Observer] = (),
    *,
    sinks: bool = False,
    existing: bool = False,
    or_in_memory: bool = False,
) -> AsyncIterator[Homing]:
    """Opens the engine for one command and closes it afterwards.

    If `sinks` is True, the engine registers the sinks of the settings and publishes their events. Commands
    that only read, or change what exists, leave that to the processes that send.

    If `existing` is True, nothing is created: raises StoreUnavailable if the file is missing, and SchemaError
    for a database without a schema. So a misspelt path does not look like an empty and healthy queue, and no
    such command creates again what `homing db uninstall` has removed. With `or_in_memory`, an empty store in
    memory takes the place of a missing file, for commands that mostly show the settings.
    """
    from msgspec.structs import replace

    from homing.library import Homing

    settings = settings or options.settings()
    if not sinks:
        settings = replace(settings, sinks={})
    new = is_missing_file(settings.store)
    if existing and new and or_in_memory:
        settings, new = replace(settings, store="memory:"), False
    homing = Homing(loaded_settings=settings, observers=observers)
    try:
        if existing:
            require_existing_store(settings.store)
        await homing.open(create=new or not existing)
        if new:
            note = f"note: the store {settings.store} did not exist and was created"
            options.notes.line(note, style="bright_black")
        yield homing
    finally:
        await homing.close()


@asynccontextmanager
async def open_store(
    settings: Settings, *, migrate: bool = True, existing: bool = False
) -> AsyncIterator[Backend]:
    """Opens only the store, without an engine, and closes it afterwards.

    Unless `migrate` is False, its schema is migrated first. If `existing` is True, raises SchemaError if
    there is none.
    """
    from homing import compose

    store = compose.build_store(settings.store, lease_ms=settings.worker.lease_ms)
    try:
        await store.open()
        if migrate:
            await store.migrate(create=not existing)
        yield store
    finally:
        await store.close()


async def record_audit(
    homing: Homing, action: str, target: str = "", *, who: str | None = None, tenant: str = "", **detail: Any
) -> str:
    """Writes the action to the audit trail before it is done. Returns the name of the person doing it."""
    from homing.core.access.scopes import Caller, Scope

    name = who or login_name()
    caller = Caller(tenant=tenant or homing.tenant, who=f"cli:{name}", scopes=frozenset(Scope))
    await homing.audit.note(caller, action, target, {key: value for key, value in detail.items() if value})
    return name


def configure_logging(settings: Settings, *, verbose: bool = False) -> None:
    """Sets up logging to stderr from the settings.

    With `verbose`, the level is info, or debug if the settings ask for debug.
    """
    from homing import compose

    level = settings.log.level
    compose.log_to_stderr(
        settings.log.format,
        "info" if verbose and level != "debug" else level,
        settings.tracing.service_name,
    )


def login_name() -> str:
    """Returns the login name, or `cli` if the user has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return "cli"


def confirm(question: str, *, yes: bool) -> bool:
    """Returns True if the user confirms, or without asking if `yes` is set.

    Raises CliError if there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CliError("--yes: cannot ask for confirmation without a terminal; add --yes to proceed")
    return bool(typer.confirm(question, err=True))


def is_missing_file(address: str) -> bool:
    """Returns True if the store is a file that does not exist yet."""
    path = address.removeprefix("sqlite:")
    return bool(path) and path != "memory:" and "://" not in path and not Path(path).exists()


def require_existing_store(address: str) -> None:
    """Raises StoreUnavailable if the store's file does not exist: a check must not create it.

    If not even its folder exists, opening the store says so.
    """
    from homing.core.errors import StoreUnavailable

    path = Path(address.removeprefix("sqlite:"))
    if is_missing_file(address) and path.parent.exists():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise StoreUnavailable(
            f"the store {path} does not exist{where}; give its address with --store, or create it with "
            "`homing db migrate`"
        )


_LISTEN_URL = re.compile(r"[?&]listen_url=")


def redact_store_url(address: str) -> str:
    """Returns the store's address without user, password and query parameters."""
    scheme, found, rest = address.partition("://")
    own = _LISTEN_URL.split(rest, maxsplit=1)[0]  # the direct URL has a user and a password too
    return f"{scheme}://{own.rpartition('@')[2].partition('?')[0]}" if found else address


_MAX_FILE_BYTES = 16 * 1024 * 1024


def read_text_file(file: str, flag: str) -> str:
    """Returns the text of a UTF-8 file of at most 16 MiB, or of stdin if `file` is `-`."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CliError(f"{flag}: {file}: {error.strerror}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise CliError(f"{flag}: {file} is larger than 16 MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CliError(f"{flag}: {file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def parse_json_object(text: str, flag: str) -> dict[str, Any]:
    """Parses a JSON object. Raises CliError if the text is anything else."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CliError(f"{flag}: is not a JSON object: {error}") from None


def show_cursor(options: Options, cursor: str | None) -> None:
    """Prints how to get the next page, unless this page is the last."""
    if cursor:
        options.notes.line(f"for more, add --cursor {cursor}")


def parse_choice(kind: type[E], name: str | None, flag: str) -> E | None:
    """Returns the member with this name, ignoring case, or None for None. Raises CliError if unknown."""
    if name is None:
        return None
    for member in kind:
        if member.value.lower() == name.strip().lower().replace("-", "_"):
            return member
    allowed = ", ".join(member.value for member in kind)
    raise CliError(f"{flag}: is {name!r}; it must be one of {allowed}")
