"""Names of other libraries that we use although they are private or undocumented.

A new release may change them without notice. So each of these libraries has an upper bound in pyproject.toml,
and `make check-latest` runs this file with the newest releases. If a test fails there, change the code that
its section names, or lower the bound.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import uvicorn
from aio_pika.abc import UnderlayConnection
from aiosmtplib.protocol import SMTPProtocol
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.credentials import (  # type: ignore[import-untyped]
    Credentials,
    DeferredRefreshableCredentials,
    RefreshableCredentials,
)
from jinja2 import Environment, Template, filters, runtime, utils
from jinja2.compiler import CodeGenerator
from jinja2.environment import TemplateModule
from jinja2.runtime import Context
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from homing.http_server.server import ClientConnection, HttpServer

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].values()
REQUIREMENTS = [Requirement(need) for needs in EXTRAS for need in needs]


def requirements_of(library: str) -> list[Requirement]:
    """Returns the requirements of all extras that need this library, at least one."""
    found = [need for need in REQUIREMENTS if need.name == library]
    assert found, library
    return found


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("library", ["uvicorn", "aiosmtplib", "jinja2", "botocore", "aio-pika", "aiormq"])
def test_a_library_whose_private_names_we_use_has_an_upper_bound(library: str) -> None:
    for need in requirements_of(library):
        assert [one.operator for one in need.specifier if one.operator == "<"] == ["<"], need
        assert need.specifier.contains(version(library))


def test_all_extras_have_the_same_bounds_for_a_library() -> None:
    for library in {need.name for need in REQUIREMENTS} - {"homing"}:
        assert len({need.specifier for need in requirements_of(library)}) == 1, library


@pytest.mark.parametrize(
    "library", ["opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"]
)
def test_opentelemetry_is_bounded_and_excludes_the_release_that_fails(library: str) -> None:
    (need,) = requirements_of(library)
    assert need.specifier.contains(version(library))
    assert not need.specifier.contains("1.45.2")
    assert need.specifier.contains("1.45.3")
    assert not need.specifier.contains("2.0")


# uvicorn: src/homing/http_server/server.py ---------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        "connection_made",
        "data_received",
        "on_body",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "on_response_complete",
    ],
)
def test_uvicorn_s_protocol_calls_the_methods_that_our_connection_overrides(method: str) -> None:
    assert parameters(getattr(ClientConnection, method)) == parameters(getattr(HttpToolsProtocol, method))


async def test_uvicorn_s_protocol_has_the_attributes_that_our_connection_uses() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol: Any = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.on_message_begin()
    for name in (
        "connections", "cycle", "flow", "headers", "logger", "loop", "parser", "pipeline", "server_state",
        "transport", "url",
    ):  # fmt: skip
        assert name in vars(protocol), name
    assert {"connections", "tasks", "total_requests"} <= set(vars(protocol.server_state))


def test_uvicorn_s_cycle_has_the_attributes_that_our_connection_uses() -> None:
    set_at_start = set(RequestResponseCycle.__init__.__code__.co_names)
    used = {"disconnected", "keep_alive", "message_event", "response_complete", "response_started"}
    assert used <= set_at_start


def test_uvicorn_s_server_calls_the_methods_that_our_server_overrides() -> None:
    for method in ("capture_signals", "on_tick"):
        ours, theirs = getattr(HttpServer, method), getattr(uvicorn.Server, method)
        assert parameters(ours) == parameters(theirs), method
        assert re.search(rf"self\.{method}\(", inspect.getsource(uvicorn.Server)), method
    server = vars(uvicorn.Server(uvicorn.Config("app", log_config=None)))
    assert {"force_exit", "server_state", "should_exit"} <= set(server)


# aiosmtplib: src/homing/providers/smtp/connection.py ---------------------------------------------------


def test_aiosmtplib_s_protocol_can_wait_until_its_buffer_is_sent() -> None:
    assert inspect.iscoroutinefunction(SMTPProtocol._drain_helper)
    assert parameters(SMTPProtocol._drain_helper) == ["self"]
    assert {"read_response", "write"} <= set(vars(SMTPProtocol))


# aio-pika: src/homing/brokers/rabbitmq.py --------------------------------------------------------------


def test_aio_pika_opens_a_connection_with_the_methods_that_our_connection_calls() -> None:
    assert parameters(aio_pika.Connection._on_connection_close) == ["self", "closing"]
    assert parameters(aio_pika.Connection._on_connected) == ["self"]
    theirs = inspect.getsource(aio_pika.Connection.connect) + inspect.getsource(UnderlayConnection)
    for step in ("self._on_connection_close", "closing.add_done_callback", "self._on_connected()"):
        assert step in theirs, step
    assert parameters(UnderlayConnection) == ["connection", "close_callback"]


# jinja2: src/homing/rendering/ -------------------------------------------------------------------------


def test_jinja_calls_the_private_methods_that_our_sandbox_overrides() -> None:
    assert parameters(Environment._parse) == ["self", "source", "name", "filename"]
    assert parameters(Template._get_default_module) == ["self", "ctx"]
    assert parameters(CodeGenerator._output_const_repr) == ["self", "group"]
    assert inspect.signature(Template._get_default_module).return_annotation in (
        TemplateModule,
        "TemplateModule",
    )
    assert "_output_const_repr(" in inspect.getsource(CodeGenerator.visit_Output)


def test_jinja_s_context_has_exactly_the_attributes_that_we_copy() -> None:
    """`rendering.compilation` creates contexts without calling `__init__`."""
    context = Context(Environment(autoescape=True), {}, "name", {}, {})
    assert set(vars(context)) == {
        "blocks", "environment", "eval_ctx", "exported_vars", "globals_keys", "name", "parent", "vars",
    }  # fmt: skip


def test_jinja_has_the_undocumented_names_that_templates_need() -> None:
    for module, name in (
        (filters, "FILTERS"),
        (filters, "make_attrgetter"),
        (runtime, "BlockReference"),
        (runtime, "LoopContext"),
        (runtime, "Macro"),
        (runtime, "TemplateReference"),
        (runtime, "markup_join"),
        (runtime, "str_join"),
        (utils, "Cycler"),
        (utils, "Joiner"),
        (utils, "Namespace"),
        (utils, "htmlsafe_json_dumps"),
    ):
        assert hasattr(module, name), f"{module.__name__}.{name}"
    assert {"root_render_func", "blocks", "globals"} <= set(Template.__annotations__)


# botocore: src/homing/providers/sns/ -------------------------------------------------------------------


def test_botocore_s_signer_has_the_parts_that_we_call() -> None:
    signer = SigV4Auth(Credentials("id", "secret"), "sns", "eu-west-1")
    assert (signer._service_name, signer._region_name) == ("sns", "eu-west-1")
    assert parameters(SigV4Auth._sign) == ["self", "key", "msg", "hex"]
    assert parameters(SigV4Auth.signature) == ["self", "string_to_sign", "request"]
    assert parameters(SigV4Auth.string_to_sign) == ["self", "request", "canonical_request"]
    for name in ("canonical_request", "headers_to_sign", "scope", "signed_headers"):
        assert callable(getattr(SigV4Auth, name)), name


def test_botocore_s_temporary_credentials_have_an_expiry() -> None:
    for kind in (RefreshableCredentials, DeferredRefreshableCredentials):
        assert "_expiry_time" in kind.__init__.__code__.co_names
