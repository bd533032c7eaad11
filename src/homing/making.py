"""From a kind's name to an object of it: built in, or from another package. Imported only when used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from homing.config import HttpSettings
from homing.core.errors import ConfigError
from homing.core.request import provider_id

PROVIDERS = {
    "console": "homing.providers.console:ConsoleProvider",
    "file": "homing.providers.file:FileProvider",
    "scripted": "homing.providers.scripted:ScriptedProvider",
    "twilio": "homing.providers.twilio:TwilioProvider",
    "sns": "homing.providers.sns:SnsProvider",
    "sendgrid": "homing.providers.sendgrid:SendGridProvider",
    "acs": "homing.providers.acs:AcsProvider",
    "fcm": "homing.providers.fcm:FcmProvider",
    "smtp": "homing.providers.smtp:SmtpProvider",
    "webhook": "homing.providers.webhook:WebhookProvider",
    "slack": "homing.providers.slack:SlackProvider",
    "webpush": "homing.providers.webpush:WebPushProvider",
    "apprise": "homing.providers.apprise:AppriseProvider",
}
SINKS = {"log": "homing.sinks.log:LogSink"}

_EXTRAS = {"sns": "sns", "fcm": "fcm", "smtp": "smtp", "webpush": "webpush", "apprise": "apprise"}
"""Kind → the extra that brings its libraries; the others need `providers`."""


class Shared:
    """What providers get without a setting of theirs: the HTTP client that all share, and the time."""

    def __init__(self, http: HttpSettings, now_ms: Callable[[], int] | None = None) -> None:
        self._http = http
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._transport: Any = None

    def for_(self, takes: Mapping[str, Any]) -> dict[str, Any]:
        """Those that a class takes."""
        found: dict[str, Any] = {}
        if "transport" in takes:
            found["transport"] = self._transport = self._transport or transport(self._http)
        if "now_ms" in takes:
            found["now_ms"] = self._now_ms
        return found

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()


def transport(http: HttpSettings) -> Any:
    """The HTTP client of the settings."""
    guard = import_module("homing.providers.guard")
    rules = guard.Guard(
        networks=guard.networks(http.allow_networks, "http.allow_networks"),
        http=http.allow_http,
        ports=http.allow_ports,
    )
    return load("homing.providers.transport:CurlTransport")(
        connect_timeout_ms=http.connect_timeout_ms,
        ca_file=http.ca_file,
        max_connections=http.max_connections,
        max_host_connections=http.max_host_connections,
        guard=rules,
    )


def make(
    group: str,
    name: str,
    kind: Any,
    known: Mapping[str, str],
    options: Mapping[str, Any],
    shared: Shared | None = None,
) -> Any:
    """An object of that kind: built in, or installed by another package as an entry point."""
    try:
        maker = _maker(group, name, kind, known)
        takes = signature(maker).parameters
        given = shared.for_(takes) if shared else {}
        own = [one for one in takes if one not in given]
        for option in options:
            if option not in own:
                names = ", ".join(own) or "none"
                raise ConfigError(
                    f"{group}.{name}.{option}", f"is not a setting of {kind}; its own are {names}"
                )
        return maker(**options, **given)
    except ImportError as error:
        extra = _EXTRAS.get(str(kind), "providers")
        told = f"needs {error.name or 'a library'}, which is missing: pip install 'homing[{extra}]'"
        raise ConfigError(f"{group}.{name}", told) from None
    except ConfigError as error:
        if error.field.startswith(f"{group}."):
            raise
        told = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{group}.{name}.{error.field}", told) from None
    except TypeError as error:
        raise ConfigError(f"{group}.{name}", f"has settings that {kind} does not take: {error}") from None


def load(address: str) -> Callable[..., Any]:
    """What `module:name` names."""
    module, _, name = address.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), name)
    return loaded


def _maker(group: str, name: str, kind: Any, known: Mapping[str, str]) -> Callable[..., Any]:
    if isinstance(kind, str):
        if provider_id(kind) in known:
            return load(known[provider_id(kind)])
        from importlib.metadata import entry_points  # costs more than all the rest: only when needed

        for found in entry_points(group=f"homing.{group}", name=kind):
            loaded: Callable[..., Any] = found.load()
            return loaded
    raise ConfigError(f"{group}.{name}.kind", f"is {kind!r}; allowed are {', '.join(known)}")
