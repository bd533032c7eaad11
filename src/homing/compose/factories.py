"""Builds providers, sinks, timers and bridges of a named kind, and the HTTP client that providers share.

A kind is built in or comes from another package. Its class is imported only when it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

from homing.core.errors import ConfigError
from homing.core.send_request import find_provider_id
from homing.net.settings import HttpSettings

PROVIDERS = {
    "console": "homing.providers.local.console:ConsoleProvider",
    "file": "homing.providers.local.file:FileProvider",
    "scripted": "homing.providers.local.scripted:ScriptedProvider",
    "twilio": "homing.providers.twilio.provider:TwilioProvider",
    "sns": "homing.providers.sns.provider:SnsProvider",
    "sendgrid": "homing.providers.sendgrid.provider:SendGridProvider",
    "acs": "homing.providers.acs.provider:AcsProvider",
    "fcm": "homing.providers.fcm.provider:FcmProvider",
    "smtp": "homing.providers.smtp.provider:SmtpProvider",
    "webhook": "homing.providers.webhook.provider:WebhookProvider",
    "slack": "homing.providers.slack.provider:SlackProvider",
    "webpush": "homing.providers.webpush.provider:WebPushProvider",
    "apprise": "homing.providers.apprise.provider:AppriseProvider",
    "rabbitmq": "homing.providers.rabbitmq.provider:RabbitMqProvider",
}

SINKS = {
    "log": "homing.sinks.log:LogSink",
    "rabbitmq": "homing.sinks.rabbitmq:RabbitMqSink",
    "manual_review": "homing.sinks.manual_review:ManualReviewSink",
    "kafka": "homing.sinks.kafka:KafkaSink",
    "webhook": "homing.sinks.webhook:WebhookSink",
    "servicebus": "homing.sinks.servicebus:ServiceBusSink",
    "redis": "homing.sinks.redis:RedisSink",
}

TIMERS: dict[str, str] = {
    "redis": "homing.timers.redis:RedisTimer",
    "kafka": "homing.timers.kafka:KafkaTimer",
}

BRIDGES: dict[str, str] = {
    "rabbitmq": "homing.bridges.rabbitmq:RabbitMqBridge",
    "kafka": "homing.bridges.kafka:KafkaBridge",
}

LOCAL_SINKS = frozenset({"log"})
"""Kinds of sinks that write to this process only. Their events need not wait for a process that is gone."""


_EXTRAS = {
    **{kind: kind for kind in ("sns", "fcm", "smtp", "webpush", "apprise")},
    **{kind: kind for kind in ("rabbitmq", "redis", "kafka")},
    "manual_review": "rabbitmq",
}
"""Kind → extra of Homing that installs its libraries. All other kinds use the extra `providers`."""


class PlugInDependencies:
    """Arguments that plug-ins receive without a setting: the shared HTTP client and the clock."""

    def __init__(self, http: HttpSettings, now_ms: Callable[[], int] | None = None) -> None:
        self._http = http
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._transport: Any = None

    def select_for(self, takes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the shared arguments that a class accepts, given its parameters."""
        found: dict[str, Any] = {}
        if "transport" in takes:
            found["transport"] = self._transport = self._transport or build_transport(self._http)
        if "now_ms" in takes:
            found["now_ms"] = self._now_ms
        return found

    async def close(self) -> None:
        """Closes the HTTP client, if it was used."""
        if self._transport is not None:
            await self._transport.close()


def build_transport(http: HttpSettings) -> Any:
    """Builds the HTTP client that providers share, with the given settings."""
    guard = import_module("homing.net.ssrf_guard")
    rules = guard.AddressGuard(
        networks=guard.parse_networks(http.allow_networks, "http.allow_networks"),
        http=http.allow_http,
        ports=http.allow_ports,
    )
    return import_object("homing.net.http_client:CurlTransport")(
        connect_timeout_ms=http.connect_timeout_ms,
        ca_file=http.ca_file,
        max_connections=http.max_connections,
        max_host_connections=http.max_host_connections,
        guard=rules,
    )


def build_from_settings(
    group: str,
    name: str,
    kind: Any,
    known: Mapping[str, str],
    options: Mapping[str, Any],
    shared: PlugInDependencies | None = None,
) -> Any:
    """Builds an object of a kind that is built in, or that another package registers as an entry point.

    Raises `ConfigError` with the name of the setting if the kind, an option or an option's type is wrong.
    """
    try:
        maker = _maker(group, name, kind, known)
        takes = find_options(maker)
        given = shared.select_for(takes) if shared else {}
        own = [one for one in takes if one not in given]
        for option in options:
            if option not in own:
                names = ", ".join(own) or "none"
                raise ConfigError(
                    f"{group}.{name}.{option}", f"is not a setting of {kind}, which has {names}"
                )
        needed = [one for one in _find_required(maker) if one in own]
        if missing := [one for one in needed if one not in options]:
            raise ConfigError(
                f"{group}.{name}.{missing[0]}", f"is missing; {kind} needs {' and '.join(needed)}"
            )
        _check_types(f"{group}.{name}", takes, options)
        return maker(**options, **given)
    except ImportError as error:
        extra = _EXTRAS.get(find_provider_id(str(kind), known), "providers")
        problem = f"needs {error.name or 'a library'}, which is missing: pip install 'homing[{extra}]'"
        raise ConfigError(f"{group}.{name}", problem) from None
    except ConfigError as error:
        if error.field.startswith((f"{group}.", "http.")):
            raise
        problem = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{group}.{name}.{error.field}", problem) from None
    except TypeError as error:
        raise ConfigError(f"{group}.{name}", f"has settings that {kind} does not accept: {error}") from None


def find_missing(*libraries: str) -> list[str]:
    """Returns the libraries that are not installed. A library is named by a module of it."""
    return [name for name in libraries if not _is_installed(name)]


def check_installed(field: str, extra: str, *libraries: str) -> None:
    """Raises `ConfigError` if a library that a setting needs is not installed."""
    if missing := find_missing(*libraries):
        names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
        raise ConfigError(field, f"needs {names}, which {verb} missing: pip install 'homing[{extra}]'")


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the package that contains the module
        return False


def import_object(address: str) -> Callable[..., Any]:
    """Imports the object that `module:name` refers to."""
    module, _, name = address.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), name)
    return loaded


def _maker(group: str, name: str, kind: Any, known: Mapping[str, str]) -> Callable[..., Any]:
    if isinstance(kind, str):
        if (own := find_provider_id(kind, known)) in known:
            return import_object(known[own])
        from importlib.metadata import entry_points  # slow to import

        for found in entry_points(group=f"homing.{group}", name=kind):
            loaded: Callable[..., Any] = found.load()
            return loaded
    allowed = f"one of {', '.join(known)}" if known else f"a kind of an installed package (homing.{group})"
    raise ConfigError(f"{group}.{name}.kind", f"is {kind!r}; it must be {allowed}")


# The types of settings -----------------------------------------------------------------------------

_TYPE_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Sequence: "a list",
    Mapping: "a table",
}


def find_options(maker: Callable[..., Any]) -> dict[str, Any]:
    """Returns the arguments that a class or function takes, with their types. `Any` stands for unknown types.

    For `**options: Unpack[SomeTypedDict]`, these are the keys of that type.
    """
    try:
        hints = get_type_hints(maker.__init__ if isinstance(maker, type) else maker)  # type: ignore[misc]
    except Exception:  # another package may use types that exist only for type checkers
        hints = {}
    found: dict[str, Any] = {}
    for name, parameter in signature(maker).parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is Parameter.VAR_KEYWORD and get_origin(hint) is Unpack:
            found |= get_type_hints(get_args(hint)[0])
        else:
            found[name] = hint
    return found


def _find_required(maker: Callable[..., Any]) -> list[str]:
    """Returns the arguments without a default that a class or function takes."""
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in signature(maker).parameters.items()
        if parameter.default is Parameter.empty and parameter.kind not in variable
    ]


def _check_types(where: str, takes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if an option does not have the type that the class declares.

    The error omits the value, which may be a secret.
    """
    for option, value in options.items():
        if not _fits(value, takes[option]):
            wanted = " or ".join(dict.fromkeys(_type_names(takes[option])))
            raise ConfigError(f"{where}.{option}", f"has the wrong type; give {wanted}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Sequence:
        return isinstance(value, (list, tuple)) and all(_fits(one, inner[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items()
        )
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _type_names(hint: Any) -> list[str]:
    """Returns a type in words, one entry per alternative. Omits types that a settings file cannot contain."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return [word for one in get_args(hint) for word in _type_names(one)]
    return (
        [] if hint is NoneType else [_TYPE_NAMES[origin or hint]] if (origin or hint) in _TYPE_NAMES else []
    )


def check_whole_number(value: Any, where: str, *, least: int = 0) -> int:
    """Returns the value. Raises `ConfigError` unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(where, f"is {value!r}; it must be a whole number, at least {least}")
    return value
