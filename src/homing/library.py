"""Homing in your own program: `Homing` for async code. `SyncHoming` is in `sync_library`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from homing import compose
from homing.core.access.scopes import Caller, Scope
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.lifecycle.events import EVENT_NAMES
from homing.core.notifications import Content, Recipient
from homing.core.ports.bridges import Bridge
from homing.core.ports.observers import Observer
from homing.core.ports.plug_ins import Directory, EventCallback, Renderer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.core.request_decoding import read_request, to_camel_case, unknown_field_problem
from homing.core.send_request import SendRequest, provider_id
from homing.core.times import moment, span_ms
from homing.engine.engine import Engine
from homing.engine.intake.accept import Rejection, SendInput, SendResult
from homing.settings import Settings, load_settings

To = str | Recipient | Mapping[str, Any]
"""Recipient of a message: an address on the channel, or a recipient."""

_SEND_ARGUMENTS = ("subject", "title", "body", "html", *SendRequest.__struct_fields__)

_REQUEST_FIELDS = frozenset(
    spelling for name in SendRequest.__struct_fields__ for spelling in (name, to_camel_case(name))
)


class Homing(Engine):
    """The engine, built from settings.

    `store` is the path of a SQLite file (created if it does not exist), `postgresql://HOST/DATABASE`,
    `mongodb://HOST/DATABASE` or `memory:`. `providers` maps ids to objects with `send`, or to functions of a
    `Delivery`, in the order in which they are tried. With `worker=True`, a worker delivers for as long as
    the `async with` block lasts. `on_event` is called with each event whose name is in `events`. `timers`
    wake the workers of other processes; a timer serves all priorities unless it is an `AssignedTimer`.
    `bridges` bring requests in once `bridges.start` is called. Every other setting of `homing.toml` can be
    passed by its name. If `loaded_settings` is given, no other settings are used.
    """

    def __init__(
        self,
        /,
        store: str | Path | Backend | None = None,
        *,
        providers: Mapping[str, compose.ProviderArgument] | None = None,
        worker: bool = False,
        config_file: str | Path | None = None,
        on_event: EventCallback | None = None,
        events: Iterable[str] = EVENT_NAMES,
        directory: Directory | None = None,
        renderer: Renderer | None = None,
        clock: Clock | None = None,
        random_source: RandomSource | None = None,
        observers: Sequence[Observer] = (),
        timers: Mapping[str, compose.TimerArgument] | None = None,
        bridges: Mapping[str, Bridge] | None = None,
        loaded_settings: Settings | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(worker, bool):
            raise ConfigError("worker", "must be True or False; set the options of the worker in homing.toml")
        backend = None if store is None or isinstance(store, (str, Path)) else store
        if isinstance(store, (str, Path)):
            settings["store"] = str(store)
        self._config_file, self._flags = config_file, settings
        loaded = loaded_settings or self._load_settings()
        sinks: dict[str, compose.SubscribedSink] = {}
        if on_event is not None:
            sinks["callback"] = compose.build_callback_sink(on_event, events)
        super().__init__(
            compose.build_parts(
                loaded,
                backend=backend,
                providers=providers,
                sinks=sinks,
                directory=directory,
                renderer=renderer,
                clock=clock,
                random_source=random_source,
                observers=observers,
                timers=timers,
                bridges=bridges,
            ),
            compose.build_engine_settings(loaded, own_renderer=renderer is not None),
        )
        self._with_worker = worker
        given = [self.roster[provider_id(name)] for name in providers or ()]

        async def check(settings: Settings) -> None:
            keeps_store = backend is not None or settings.store == loaded.store
            await compose.check_settings(
                settings,
                backend=self._backend if keeps_store else None,
                providers=given,
                renderer=renderer,
                clock=self._clock,
            )

        self.reloader = compose.SettingsReloader(self, loaded, self._clock, check)
        """Compares settings that are read again with those in force."""

    def _load_settings(self) -> Settings:
        return load_settings(self._config_file, env=os.environ, flags=self._flags)

    async def open(self, *, create: bool = True) -> None:
        """Connects to the store, and starts the worker if `worker=True` was passed.

        Creates the store's tables if they do not exist. With `create=False`, raises `SchemaError` instead.
        """
        await super().open(create=create)
        if self._with_worker:
            self.start_worker()

    async def reload(
        self, settings: Settings | None = None, *, who: str = "api", why: str = ""
    ) -> compose.ReloadResult:
        """Reads the settings again and puts the changed settings of providers in force, such as credentials.

        `env:` and `file:` are read again too. All other settings that have changed are returned as those that
        need a restart. Raises `ConfigError` and changes nothing if this engine could not be built from the
        new settings. The change is written to the audit trail first. `settings` replaces those that this
        engine would read.
        """

        async def audit(changed: tuple[str, ...]) -> None:
            caller = Caller(tenant=self.tenant, who=who, scopes=frozenset(Scope))
            detail = {"changed": list(changed), **({"why": why} if why else {})}
            await self.audit.note(caller, "setting.reload", self.settings.name, detail)

        return await self.reloader.reload(settings or self._load_settings(), audit)

    async def send(
        self,
        /,
        recipient: To | Sequence[To],
        *,
        channel: str | None = None,
        channels: Sequence[str] = (),
        content: Content | Mapping[str, Any] | None = None,
        subject: str | None = None,
        title: str | None = None,
        body: str | None = None,
        html: str | None = None,
        send_at: datetime | timedelta | None = None,
        expires_at: datetime | timedelta | None = None,
        if_unavailable: Literal["raise", "spool"] = "raise",
        connection: Any = None,
        **fields: Any,
    ) -> SendResult:
        """Accepts a notification. When this returns, the notification is stored.

        It will be attempted until it is sent or its policy ends it.

        `subject`, `title`, `body` and `html` are short forms for fields of `content`. `send_at` and
        `expires_at` are times, or durations from now. With `if_unavailable="spool"`, the request is written
        to the spool instead while the store is unavailable. `connection` is a database connection in whose
        transaction the notification is stored. All other arguments are fields of `SendRequest`.
        """
        for name in fields:
            if name not in _REQUEST_FIELDS:
                raise InvalidRequest(name, unknown_field_problem(name, _SEND_ARGUMENTS))
        if subject or title or body or html:
            if content is not None:
                raise InvalidRequest("content", "and its short forms are both given; give only one of them")
            content = {"subject": subject, "title": title, "body": body, "html": html}
        raw = {
            **fields,
            "channel": channel,
            "channels": channels,
            "content": content,
            "send_at": self._moment(send_at, "sendAt"),
            "expires_at": self._moment(expires_at, "expiresAt"),
        }
        several = isinstance(recipient, Sequence) and not isinstance(recipient, str)
        raw["recipients" if several else "recipient"] = recipient
        durations = any(isinstance(at, timedelta) for at in (send_at, expires_at))
        return await self.submit(
            read_request(raw),
            if_unavailable=if_unavailable,
            connection=connection,
            asked=f"{send_at!s} {expires_at!s}" if durations else "",
        )

    def send_many(
        self, requests: Iterable[SendInput] | AsyncIterable[SendInput], *, connection: Any = None
    ) -> AsyncIterator[SendResult | Rejection]:
        """Accepts any number of requests, or mappings with their fields, in bounded memory.

        Yields the result or rejection of each request, in order.
        """
        return self.submit_many(requests, connection=connection)

    def _moment(self, at: datetime | timedelta | None, where: str) -> datetime | None:
        if not isinstance(at, timedelta):
            return at
        return moment(self._clock.now_ms() + span_ms(at, where))
