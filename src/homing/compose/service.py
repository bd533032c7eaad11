"""Builds the HTTP service from the settings, and creates the first admin key."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from homing.api.access.authentication import ApiGatekeeper, VerifiesTokens
from homing.api.all_routes import all_routes
from homing.api.http.app import App
from homing.api.http.bodies import ApiError
from homing.api.service import Service
from homing.compose.factories import import_object
from homing.compose.reload import ReloadablePart
from homing.core.access.scopes import Caller, Scope
from homing.core.errors import CommandRefused, ConfigError
from homing.core.version import __version__
from homing.dashboard.home_page import HomePage
from homing.dashboard.pages import PATHS, PREFIX, Pages
from homing.dashboard.screens.all_screens import all_screens
from homing.dashboard.sign_in import SignIn
from homing.dashboard.visits import DashboardTools, DemoEvent, TenantLimit
from homing.engine.engine import Engine
from homing.engine.system_runtime import SystemClock, SystemRandomSource
from homing.http_server.asgi import PrefixSwitch, RequestObserver
from homing.http_server.listen_address import ListenAddress, parse_listen_address
from homing.http_server.server import HttpServer, open_listener
from homing.net.secrets import read_secret
from homing.settings import Settings

FOLDER = ".homing"
"""Name of the folder for files that must not be published."""


def build_service(settings: Settings, engine: Engine) -> Service:
    """Builds the `Service` object that all route handlers use."""
    return Service(
        engine=engine,
        gatekeeper=build_gate(settings, engine),
        trail=engine.audit,
        settings=settings.service,
    )


def build_gate(settings: Settings, engine: Engine) -> ApiGatekeeper:
    """Builds the access check for API keys, and for JWTs of the issuers in the settings."""
    own, clock = settings.service, SystemClock()
    return ApiGatekeeper(
        keys=engine.keys,
        tenants=engine.tenants,
        shared=engine.shared,
        clock=clock,
        rate_per_second=own.rate_per_second,
        rate_burst=own.rate_burst,
        tokens=_build_verifier(settings),
    )


def _build_verifier(settings: Settings) -> VerifiesTokens | None:
    """Builds the verifier of JWTs. Returns None if the settings have no issuer."""
    if not settings.service.jwt:
        return None
    issuers = import_object("homing.api.access.authentication:read_issuers")(
        settings.service.jwt, lambda field, given: read_secret(field, given).reveal()
    )
    made: VerifiesTokens = import_object("homing.api.access.authentication:TokenVerifier")(
        issuers, SystemClock()
    )
    return made


def reloadable_issuers(served: Service) -> ReloadablePart:
    """Returns the part of a running service that takes new issuers of JWTs and their keys."""

    def prepare(settings: Settings) -> Callable[[], None]:
        gate, verifier = served.gatekeeper, _build_verifier(settings)
        assert isinstance(gate, ApiGatekeeper), "build_service makes it"
        return lambda: gate.use_tokens(verifier)

    return ReloadablePart("service.jwt", prepare)


def build_server(
    settings: Settings,
    served: Service,
    watchers: Sequence[RequestObserver] = (),
    demo: Mapping[str, DemoEvent] | None = None,
) -> HttpServer:
    """Builds the HTTP server with all routes and pages. Its sockets are passed in when it is started.

    `demo` has the events that the dashboard of `homing demo` can start.
    """
    api = App(served, all_routes(), random_source=SystemRandomSource(), watchers=watchers)
    pages = build_pages(settings, served, watchers, demo)
    server = HttpServer(
        PrefixSwitch(pages, api, paths=PATHS, prefix=PREFIX),
        replace(settings.service, stop_ms=settings.service.answer_ms),
    )
    pages.feed.stopping = lambda: server.should_exit
    return server


def build_pages(
    settings: Settings,
    served: Service,
    watchers: Sequence[RequestObserver] = (),
    demo: Mapping[str, DemoEvent] | None = None,
) -> Pages:
    """Builds the pages that the service shows to people."""
    clock, public_url = SystemClock(), settings.service.public_url
    home = HomePage(served.engine, clock, version=__version__, public_url=public_url)
    home.has_dashboard = True
    tools = DashboardTools(
        engine=served.engine,
        clock=clock,
        settings=settings.dashboard,
        version=__version__,
        public_url=public_url,
        simulate=served.simulate,
        draw_simulation=import_object("homing.rehearsal.chart:draw_svg") if served.simulate else None,
        simulating=_refusing(served.simulating),
        rendering=_refusing(served.rendering),
        demo=demo,
    )
    return Pages(
        home,
        random_source=SystemRandomSource(),
        watchers=watchers,
        tools=tools,
        sign_in=SignIn(tools, served.gatekeeper.caller, public_url=public_url),
        screens=all_screens(),
    )


def _refusing(limit: TenantLimit) -> TenantLimit:
    """Returns a limit of the API for the pages, which know the errors of the engine only."""

    @contextmanager
    def count(tenant: str) -> Iterator[None]:
        try:
            counted = limit(tenant)
            counted.__enter__()
        except ApiError as error:
            raise CommandRefused(str(error)) from None
        try:
            yield
        finally:
            counted.__exit__(None, None, None)

    return count


def listen_address(settings: Settings) -> ListenAddress:
    """Returns the address on which the service listens."""
    return parse_listen_address(settings.service.listen, "service.listen")


def metrics_address(settings: Settings) -> ListenAddress:
    """Returns the address on which metrics are served without a key."""
    return parse_listen_address(settings.metrics.listen, "metrics.listen")


def bind_socket(where: ListenAddress) -> socket.socket:
    """Returns a listening socket. Raises `OSError` if the address is not available."""
    return open_listener(where.host, where.port)


async def ensure_first_key(settings: Settings, engine: Engine) -> bool:
    """Creates an admin key if the store has no key, and writes it to a file. Returns True if the file is new.

    The key is first written to a file that ends in `.new`, then to the store, and then the file is renamed. A
    start after a crash in between finishes the work: the store decides whether the key in `.new` is valid.
    """
    file = _new_key_file(settings)
    files = (file,) if settings.service.key_file else (file, _old_key_file(settings))
    blank = [one for one in files if _is_blank(one)]
    if not (blank or os.access(_pending(file), os.R_OK) or await engine.keys.is_empty()):
        return False
    with _opened(file) as out:
        await asyncio.to_thread(fcntl.flock, out, fcntl.LOCK_EX)  # another process may be starting as well
        made = await _finish(settings, engine, file, out, needed=bool(blank))
    for one in blank:
        if _is_blank(one):
            one.unlink()
    return made


async def _finish(settings: Settings, engine: Engine, file: Path, out: TextIO, *, needed: bool) -> bool:
    """Renames the file of the key in `out` if the store knows the key, or creates a key if none exists."""
    pending, never_made = _pending(file), await engine.keys.is_empty()
    if _has_text(file):
        pending.unlink(missing_ok=True)
        if never_made:
            raise ConfigError(
                "service.key_file",
                f"{file} exists, but its key is not in this store; move the file away or name another one",
            )
        return False
    left = out.read().strip()
    if not (left and await engine.keys.verify(left)):
        if not (never_made or needed):
            pending.unlink()
            return False
        await _make_key(settings, engine, out)
    pending.replace(file)
    _sync_folder(file.parent)
    return True


async def _make_key(settings: Settings, engine: Engine, out: TextIO) -> None:
    def keep(text: str) -> None:
        out.seek(0)
        out.truncate()
        out.write(f"{text}\n")
        out.flush()
        os.fsync(out.fileno())

    await engine.tenants.ensure(settings.tenant, who="homing")
    homing = Caller(tenant=settings.tenant, who="homing", scopes=frozenset())
    await engine.audit.note(homing, "key.create", "first admin", {"scopes": [Scope.ADMIN]})
    await engine.keys.create(settings.tenant, "first admin", [Scope.ADMIN], who="homing", keep=keep)


def key_file(settings: Settings) -> Path:
    """Returns the file of the first admin key.

    The settings name it, or it is `.homing/admin.key` in the folder of the store's file. A `homing-admin.key`
    of an earlier release in that folder is used as long as there is no newer file.
    """
    new, old = _new_key_file(settings), _old_key_file(settings)
    keeps_old = not settings.service.key_file and _has_text(old) and not _has_text(new)
    return old if keeps_old else new


def _new_key_file(settings: Settings) -> Path:
    if settings.service.key_file:
        return Path(settings.service.key_file)
    return _beside_store(settings) / FOLDER / "admin.key"


def _old_key_file(settings: Settings) -> Path:
    return _beside_store(settings) / "homing-admin.key"


def _beside_store(settings: Settings) -> Path:
    store = settings.store.removeprefix("sqlite:")
    return Path() if "://" in store or store == "memory:" else Path(store).parent


def _pending(file: Path) -> Path:
    return file.with_name(f"{file.name}.new")


def _has_text(file: Path) -> bool:
    """Returns True if the file has content, or cannot be read by this user and may hold a key."""
    try:
        return bool(file.read_bytes().strip())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _is_blank(file: Path) -> bool:
    """Returns True for an existing file without a key, left by a crash of an earlier release."""
    return not _has_text(file) and file.exists()


def _make_folder(folder: Path) -> None:
    """Creates `.homing`, which only its owner can enter and which git ignores. Other folders must exist."""
    if folder.name != FOLDER:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")


def _opened(file: Path) -> TextIO:
    """Opens the `.new` file of the key.

    Raises `ConfigError` unless the file belongs to this user and no one else can read or write it.
    """
    try:
        _make_folder(file.parent)
        opened = os.open(_pending(file), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError("service.key_file", f"{file} cannot be written: {error.strerror}") from None
    found = os.fstat(opened)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(opened)
        raise ConfigError(
            "service.key_file",
            f"{_pending(file)} can be read or written by others; remove it and start again",
        )
    return os.fdopen(opened, "r+", encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
