"""The service from its settings: what is behind its routes, and the server in front of them."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from homing.api.all_routes import all_routes
from homing.api.app import App
from homing.api.gatekeeper import Gate
from homing.api.server import Server, ServerSettings, listening
from homing.api.service import Service, ServiceSettings, Watcher
from homing.config import Settings
from homing.core.access import Caller, Scope
from homing.core.errors import ConfigError
from homing.engine.chance import SystemChance
from homing.engine.clock import SystemClock
from homing.engine.homing import Engine
from homing.making import load
from homing.observing.endpoint import Listen, listen_at
from homing.providers.secret import secret


def behind(settings: Settings, engine: Engine) -> Service:
    """What the routes work with."""
    own = settings.service
    return Service(
        engine=engine,
        gatekeeper=gate(settings, engine),
        trail=engine.audit,
        settings=ServiceSettings(
            public_url=own.public_url,
            body_bytes=own.body_bytes,
            batch_bytes=own.batch_bytes,
            buffer_bytes=own.buffer_bytes,
            read_ms=own.read_ms,
            answer_ms=own.answer_ms,
            max_requests=own.max_requests,
        ),
    )


def gate(settings: Settings, engine: Engine) -> Gate:
    """Who is let in: keys, and the tokens of issuers that the settings name."""
    own, clock = settings.service, SystemClock()
    tokens = None
    if own.jwt:
        if importlib.util.find_spec("jwt") is None:
            raise ConfigError("service.jwt", "needs PyJWT, which is missing: pip install 'homing[service]'")
        issuers = load("homing.api.tokens:issuers")(
            own.jwt, lambda field, given: secret(field, given).reveal()
        )
        tokens = load("homing.api.tokens:Tokens")(issuers, clock)
    return Gate(
        keys=engine.keys,
        tenants=engine.tenants,
        shared=engine.shared,
        clock=clock,
        rate_per_second=own.rate_per_second,
        rate_burst=own.rate_burst,
        tokens=tokens,
    )


def server(settings: Settings, served: Service, watchers: Sequence[Watcher] = ()) -> Server:
    """The HTTP server over all routes; it is given its sockets by whoever runs it."""
    own = settings.service
    return Server(
        App(served, all_routes(), chance=SystemChance(), watchers=watchers),
        ServerSettings(
            head_ms=own.head_ms,
            keep_alive_ms=own.keep_alive_ms,
            max_connections=own.max_connections,
            stop_ms=own.answer_ms,
        ),
    )


def listen(settings: Settings) -> Listen:
    """Where the service listens."""
    return listen_at(settings.service.listen, "service.listen")


def metrics_listen(settings: Settings) -> Listen:
    """Where metrics are served without a key."""
    return listen_at(settings.metrics.listen, "metrics.listen")


def bound(where: Listen) -> socket.socket:
    """A listening socket; raises OSError where the address cannot be had."""
    return listening(where.host, where.port)


async def first_key(settings: Settings, engine: Engine) -> bool:
    """Makes a key that may do everything, where none was ever made, and leaves it in its file."""
    if not await engine.keys.is_empty():
        return False
    file = key_file(settings)
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            "service.key_file",
            f"{file} is there already, and its key is none of this store; move it away, or name another file",
        ) from None
    except OSError as error:
        raise ConfigError("service.key_file", f"{file} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(made, "w") as out:
            await engine.tenants.ensure(settings.tenant, who="homing")
            nobody = Caller(tenant=settings.tenant, who="homing", scopes=frozenset())
            await engine.audit.note(nobody, "key.create", "first admin", {"scopes": [Scope.ADMIN]})
            key = await engine.keys.create(settings.tenant, "first admin", [Scope.ADMIN], who="homing")
            out.write(f"{key.text}\n")
    except BaseException:
        file.unlink()  # an empty one would be in the way of the next start
        raise
    return True


def key_file(settings: Settings) -> Path:
    """Where the first admin key is left: beside the store's file, or where the settings say."""
    if settings.service.key_file:
        return Path(settings.service.key_file)
    store = settings.store.removeprefix("sqlite:")
    beside = Path() if "://" in store or store == "memory:" else Path(store).parent
    return beside / "homing-admin.key"
