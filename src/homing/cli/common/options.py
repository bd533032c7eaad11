"""Code that commands share: global options, registration, opening the engine or the store, files, filter
flags.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from homing.cli.common.exit_codes import CliError
from homing.cli.common.masking import RecipientMask
from homing.cli.common.screen import Screen
from homing.cli.common.units import parse_delay, parse_time

if TYPE_CHECKING:
    from enum import StrEnum

    from homing.core.notifications import Filter
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

    def settings(self, **flags: Any) -> Settings:
        """Loads the settings for this command. `flags` override the file and the environment."""
        from homing.settings import load_settings

        given = {"store": self.store, "tenant": self.tenant, **flags}
        return load_settings(self.config, env=os.environ, flags=given)


_SHARED = {
    "config": Config,
    "store": Store,
    "tenant": Tenant,
    "no_color": NoColor,
    "show_recipients": ShowRecipients,
}


CommandBody = Callable[..., Any]
"""Function `(options, **flags) -> int | None`, possibly async."""


def command(app: typer.Typer, name: str) -> Callable[[CommandBody], CommandBody]:
    """Registers a function as a command. Its first parameter is `Options`; it returns the exit code."""

    def register(body: CommandBody) -> CommandBody:
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
async def open_engine(
    options: Options,
    settings: Settings | None = None,
    observers: Sequence[Observer] = (),
    *,
    sinks: bool = False,
) -> AsyncIterator[Homing]:
    """Opens the engine for one command and closes it afterwards.

    If `sinks` is True, the engine registers the sinks of the settings and publishes their events. Commands
    that only read, or change what exists, leave that to the processes that send.
    """
    from msgspec.structs import replace

    from homing.library import Homing

    settings = settings or options.settings()
    if not sinks:
        settings = replace(settings, sinks={})
    new = is_missing_file(settings.store)
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
async def open_store(settings: Settings, *, migrate: bool = True) -> AsyncIterator[Backend]:
    """Opens only the store, without an engine, and closes it afterwards.

    Unless `migrate` is False, its schema is migrated first.
    """
    from homing import compose

    store = compose.build_store(settings.store)
    try:
        await store.open()
        if migrate:
            await store.migrate()
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
    compose.log_to_stderr(settings.log.format, "info" if verbose and level != "debug" else level)


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
    from homing.cli.common.exit_codes import CliError

    if yes:
        return True
    if not sys.stdin.isatty():
        raise CliError("--yes: cannot ask for confirmation without a terminal; add --yes to proceed")
    return bool(typer.confirm(question, err=True))


def is_missing_file(address: str) -> bool:
    """Returns True if the store is a file that does not exist yet."""
    path = address.removeprefix("sqlite:")
    return bool(path) and path != "memory:" and "://" not in path and not Path(path).exists()


def redact_store_url(address: str) -> str:
    """Returns the store's address without user, password and query parameters."""
    scheme, found, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if found else address


def _option(name: str, kind: Any) -> inspect.Parameter:
    default: Any = False if name in ("no_color", "show_recipients") else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


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


Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="NAME", help="Only notifications with this status; repeatable."),
]

ChannelFlag = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Only on this channel.")]

TypeFlag = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only of this type.")]

ProviderFlag = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Only through this provider.")
]

BatchFlag = Annotated[str | None, typer.Option("--batch", metavar="ID", help="Only of this batch.")]

AddressFlag = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="Only to this address.")
]

ReasonFlag = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="NAME", help="Only those that ended for this reason, e.g. BAD_RECIPIENT."
    ),
]

ErrorCodeFlag = Annotated[
    str | None, typer.Option("--error-code", metavar="CODE", help="Only with this error code.")
]

SinceFlag = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Accepted since: a time, or e.g. 2h for two hours ago."),
]

UntilFlag = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Accepted before: a time, or e.g. 30m for 30 minutes ago."),
]

Limit = Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of entries.")]

PageLimit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Entries per page.")]

Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="The cursor that the previous page printed.")
]


def parse_choice(kind: type[E], name: str | None, flag: str) -> E | None:
    """Returns the member with this name, ignoring case, or None for None. Raises CliError if unknown."""
    if name is None:
        return None
    for member in kind:
        if member.value.lower() == name.strip().lower().replace("-", "_"):
            return member
    allowed = ", ".join(member.value for member in kind)
    raise CliError(f"{flag}: is {name!r}; must be one of {allowed}")


def build_filter(
    *,
    statuses: Sequence[str] | None = None,
    channel: str | None = None,
    type: str | None = None,
    provider: str | None = None,
    batch: str | None = None,
    address: str | None = None,
    reason: str | None = None,
    error_code: str | None = None,
    acknowledged: bool | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Filter:
    """Builds a filter from the flags. Raises CliError if a value is invalid."""
    from homing.core.notifications import Channel, Filter, Reason, Status
    from homing.core.send_request import provider_id

    found = [parse_choice(Status, name, "--status") for name in statuses or ()]
    return Filter(
        statuses=tuple(status for status in found if status is not None),
        channel=parse_choice(Channel, channel, "--channel"),
        type=type,
        provider=None if provider is None else provider_id(provider),
        batch_id=batch,
        address=address,
        reason=parse_choice(Reason, reason, "--reason"),
        error_code=error_code,
        acknowledged=acknowledged,
        created_from=_ago(since, "--since"),
        created_until=_ago(until, "--until"),
    )


def _ago(text: str | None, flag: str) -> datetime | None:
    """Parses a point in time. A duration such as `2h` means that long ago."""
    if text is None:
        return None
    if "T" in text or text.count("-") >= 2:
        return parse_time(text, flag)
    back = parse_delay(text, flag)
    assert back is not None, "text is not None"
    return datetime.now(UTC) - back
