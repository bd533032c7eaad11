"""The allowed import directions of the project, as a table with a test."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import homing

ADAPTERS = ("stores", "providers", "timers", "sinks", "rendering")
FRONTS = ("api", "bridges", "dashboard")

RULES: dict[str, tuple[str, ...]] = {
    "core": (),
    "wire": ("core",),
    "charts": (),
    "engine": ("core",),
    "net": ("core",),
    "brokers": ("core", "net"),
    "http_server": ("core",),
    "settings": (
        *("core", "engine.settings", "api.settings", "net.settings", "telemetry.settings"),
        "dashboard.settings",
    ),
    "telemetry": ("core", "http_server"),
    **dict.fromkeys(ADAPTERS, ("core", "net", "brokers")),
    **dict.fromkeys(FRONTS, ("engine", "core", "wire", "brokers", "http_server")),
    "dashboard": ("engine", "core", "wire", "http_server", "charts"),
    "client": ("core", "wire"),
    "rehearsal": ("engine", "core", "charts", "stores.sqlite"),
    "compose": (
        *("core", "engine", "settings", "net", "brokers", "wire", "charts", "telemetry", "rehearsal"),
        "http_server",
        *ADAPTERS,
        *FRONTS,
    ),
    "library": ("compose", "settings", "engine", "core"),
    "sync_library": ("library", "engine", "core"),
    "cli": ("library", "compose", "settings", "engine", "core", "homing"),
    "benching": (
        *("library", "compose", "settings", "engine", "core", "homing", "net", "charts"),
        *("cli.common", "providers.twilio.callbacks"),
    ),
    "homing": ("library", "sync_library", "engine", "core"),
}
"""Part of the package → other parts, or modules of other parts, that it may import.

`homing` is the package's own `__init__`. The structs in a part's `settings` module are the tables of the
settings file. Only `compose` names the concrete classes of the adapters and of
`telemetry`: it turns settings into objects. The exceptions are the rehearsal, which needs a store in memory,
and the benchmark. The client is for programs without an engine: it shares the vocabulary but no working code.
"""

ONLY_FOR: dict[str, tuple[str, ...]] = {
    "homing.cli.operations.policy_simulate": ("rehearsal",),
    "homing.cli.setup.bench": ("benching",),
}
"""Module → parts that this module alone may import, besides those of its own part."""

MAY_IMPORT_ANY_PART = ("testing", "simulation", "bench", "tools")
"""`homing.testing` and the folders beside the package. Nothing else imports them."""

NOT_INSTALLED = ("simulation", "bench", "tools", "tests")
"""Folders that an installed Homing does not have. No module of the package may import them, not even
`homing.testing`."""

INDEPENDENT_FOLDERS = ("providers", "stores")
"""Parts whose folders (one per vendor or database) may import their part's `common`, but not each other."""

DOTTED = re.compile(r"homing(\.\w+)+:\w+|homing(\.\w+){2,}")
"""A string that names a module or one of its objects, for an import that happens later."""

CORE_LIBRARIES = ("msgspec",)
CORE_AVOIDS = (
    *("time", "random", "secrets", "uuid", "logging", "warnings", "asyncio", "threading", "multiprocessing"),
    *("os", "io", "sys", "pathlib", "tempfile", "shutil", "subprocess", "socket", "ssl", "select", "sqlite3"),
    *("http", "urllib.request", "smtplib", "signal", "locale", "platform", "getpass", "contextvars"),
)
"""Standard modules that read a clock, randomness or the machine's state, or do I/O."""

CORE_NEVER_CALLS = ("now", "utcnow", "today", "open", "print", "input", "eval", "exec", "__import__")


class Found(NamedTuple):
    """An import or a call, with its position."""

    where: str
    target: str


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[Found]:
    """Returns everything that a module imports: at the top, in functions, for types only, and by a string."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                yield from (Found(where, name.name) for name in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([source] if source else [])])
                yield from (Found(where, f"{base}.{name.name}") for name in names)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"), args=args):
                named = [a.value for a in args[:1] if isinstance(a, ast.Constant)]
                yield from (Found(where, str(name)) for name in named if not DOTTED.fullmatch(str(name)))
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                yield Found(where, text.replace(":", "."))


def calls(path: Path) -> Iterator[Found]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield Found(f"{path}:{node.lineno}", name)


def part_of(dotted: str) -> str:
    """Maps `homing.core.notifications` to `core`. Modules outside of a part belong to the package itself."""
    top, _, below = dotted.partition(".")
    first = below.partition(".")[0]
    if top != "homing":
        return top
    return first if first in RULES or first in MAY_IMPORT_ANY_PART else "homing"


def folder_of(dotted: str) -> str:
    """Maps `homing.providers.twilio.callbacks` to `twilio`."""
    return (*dotted.split("."), "", "")[2]


def may_import(module: str, target: str) -> bool:
    mine, theirs = part_of(module), part_of(target)
    if theirs in NOT_INSTALLED:
        return module.partition(".")[0] != "homing"
    if mine in MAY_IMPORT_ANY_PART:
        return True
    if mine == theirs:
        folders = ("", "common", folder_of(module))
        return mine not in INDEPENDENT_FOLDERS or folder_of(module) == "" or folder_of(target) in folders
    return theirs in ONLY_FOR.get(module, ()) or any(
        theirs == rule or f"{target}.".startswith(f"homing.{rule}.") for rule in RULES[mine]
    )


def wrong_directions(package: Path) -> list[str]:
    found = []
    for module, path in modules(package):
        if part_of(module) == "homing" and module != "homing":
            found.append(f"{path}: {module} is not in the table")
        found += [
            f"{where}: {module} imports {target}"
            for where, target in imports(module, path)
            if target.partition(".")[0] in ("homing", *NOT_INSTALLED) and not may_import(module, target)
        ]
    return found


def impurities(package: Path) -> list[str]:
    found = []
    for module, path in modules(package):
        if part_of(module) != "core":
            continue
        for where, target in imports(module, path):
            top = target.partition(".")[0]
            known = top in sys.stdlib_module_names or top in CORE_LIBRARIES or top == "homing"
            if not known or any(f"{target}.".startswith(f"{avoided}.") for avoided in CORE_AVOIDS):
                found.append(f"{where}: {module} imports {target}")
        found += [
            f"{where}: {module} calls {name}" for where, name in calls(path) if name in CORE_NEVER_CALLS
        ]
    return found


PACKAGE = Path(homing.__file__).parent
PROJECT = Path(__file__).parents[2]


def test_every_module_imports_only_what_its_part_may() -> None:
    assert wrong_directions(PACKAGE) == []


@pytest.mark.parametrize("folder", ["simulation", "bench", "tools"])
def test_the_folders_beside_the_package_import_only_parts_that_exist(folder: str) -> None:
    seen = {
        target for module, path in modules(PROJECT / folder) for _, target in imports(module, path)
    }  # Python itself reports a wrong name, but only when the import runs
    assert {part_of(target) for target in seen if target.startswith("homing.")} <= {
        *RULES,
        *MAY_IMPORT_ANY_PART,
    }
    assert not [target for target in seen if target.partition(".")[0] == "tests"]


def test_the_table_has_exactly_the_parts_that_exist() -> None:
    exist = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert exist - {"__init__"} | {"homing"} == {*RULES, "testing"}


def test_the_modules_with_a_permission_of_their_own_exist_and_use_it() -> None:
    paths = dict(modules(PACKAGE))
    for module, parts in ONLY_FOR.items():
        used = {part_of(target) for _, target in imports(module, paths[module])}
        assert used.issuperset(parts), module


def test_the_core_uses_no_clock_randomness_log_or_io() -> None:
    assert impurities(PACKAGE) == []


def test_the_core_exists_and_was_checked() -> None:
    seen = {module for module, _ in modules(PACKAGE) if part_of(module) == "core"}
    assert {"homing.core", "homing.core.retry.decide", "homing.core.lifecycle.rows"} <= seen


def test_no_two_parts_may_import_each_other() -> None:
    for part, allowed in RULES.items():
        assert not [other for other in allowed if part in RULES[other.partition(".")[0]]]


# The check itself ------------------------------------------------------------------------------------


def plant(tmp_path: Path, module: str, source: str) -> Path:
    """Writes a package with this single module."""
    package = tmp_path / "homing"
    path = package.joinpath(*module.split("/")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return package


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core/notifications", "from homing.engine.delivery.worker import Worker"),
        ("core/notifications", "import homing"),
        ("core/notifications", "from .. import engine"),
        ("core/notifications", "from ..engine import worker"),
        ("core/notifications", "from homing.net.http_messages import HttpRequest"),
        ("engine/delivery/worker", "from homing.stores.sqlite import SqliteStore"),
        ("engine/delivery/worker", "import homing.stores.sqlite"),
        ("engine/delivery/worker", "from homing import compose"),
        ("engine/delivery/worker", "from homing import Homing"),
        ("engine/delivery/worker", "from homing.net.http_client import CurlTransport"),
        ("engine/delivery/worker", "def later():\n    from homing.providers.local import console"),
        ("engine/delivery/worker", "from importlib import import_module\nimport_module('homing.sinks.log')"),
        ("engine/delivery/worker", "from importlib import import_module\nimport_module('homing.sinks')"),
        ("engine/delivery/worker", "import importlib\nimportlib.import_module('homing.sinks.log')"),
        (
            "engine/delivery/worker",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import homing.cli",
        ),
        ("engine/delivery/worker", "from homing.benching.worker_processes import Crew"),
        ("engine/delivery/worker", "from homing.rehearsal.virtual_time import VirtualClock"),
        ("engine/demo", "from simulation.faults import Faults"),
        ("net/http", "from homing.providers.common.mime import build"),
        ("brokers/rabbitmq", "from homing.sinks.rabbitmq import RabbitSink"),
        ("stores/sqlite/store", "from homing.providers.local.console import ConsoleProvider"),
        ("stores/sqlite/deep/one", "from ....providers import common"),
        ("stores/sqlite/store", "from homing.stores.postgres.errors import translate"),
        ("stores/postgres/store", "from ..sqlite import rows"),
        ("stores/common/copy", "from homing.stores.sqlite.copy import SqliteCopySource"),
        ("stores/common/copy", "SOURCE = 'homing.stores.sqlite.copy:SqliteCopySource'"),
        ("stores/__init__", "from ..engine import intake"),
        ("providers/sendgrid/provider", "from homing.providers.twilio.message import build"),
        ("providers/acs/callbacks", "from ..sns import signature"),
        ("providers/common/mime", "from homing.providers.fcm.access_tokens import read"),
        ("timers/redis", "from homing.engine.upkeep.upkeep import Upkeep"),
        ("sinks/kafka", "from homing.timers.kafka import Producer"),
        ("rendering/sandbox", "from homing.settings import Settings"),
        ("telemetry/metrics", "from homing.engine.engine import Engine"),
        ("http_server/server", "from homing.api.http.bodies import ErrorBody"),
        ("api/http/app", "from homing.stores.sqlite import SqliteStore"),
        ("api/http/app", "STORE = 'homing.stores.sqlite:SqliteStore'"),
        ("api/http/app", "from homing.compose import build_store"),
        ("api/operations/policies", "from homing.rehearsal.rehearse import rehearse"),
        ("dashboard/pages", "from homing.api.http.app import App"),
        ("bridges/rabbitmq", "from homing.sinks.rabbitmq import publish"),
        ("settings/tables", "from homing.engine.delivery.capacity import Slots"),
        ("rehearsal/run", "from homing.stores.postgres import PostgresStore"),
        ("rehearsal/run", "from homing.compose import build_store"),
        ("compose/engine", "from homing.testing.manual_clock import ManualClock"),
        ("compose/engine", "from homing.benching.run import run_bench"),
        ("compose/engine", "from homing.cli.common.options import store_option"),
        ("library", "from homing.sinks.log import LogSink"),
        ("library", "from homing.cli import main"),
        ("client/clients", "from homing.engine.intake.accept import SendResult"),
        ("client/batches", "from homing.api.intake.batch import BatchItems"),
        ("wire/policies", "from homing.engine.operations.policies import PolicyChange"),
        ("wire/common", "from homing.api.http.bodies import ApiError"),
        ("engine/operations/policies", "from homing.wire.policies import RuleBody"),
        ("cli/operations/policy", "from homing.wire.policies import RuleBody"),
        ("cli/intake/send", "from homing.stores.sqlite import SqliteStore"),
        ("cli/intake/send", "KINDS = {'twilio': 'homing.providers.twilio.provider:TwilioProvider'}"),
        ("cli/intake/send", "SINK = 'homing.sinks:LogSink'"),
        ("cli/intake/send", "from homing.telemetry.metrics import Metrics"),
        ("cli/intake/send", "from homing.rendering.folder_templates import FolderTemplates"),
        ("cli/intake/send", "from homing.testing import builders"),
        ("cli/intake/send", "from homing.benching import run"),
        ("cli/intake/send", "from homing.rehearsal.rehearse import rehearse"),
        ("cli/demo/scenario", "from homing.testing import builders"),
        ("cli/setup/bench", "from homing.rehearsal.rehearse import rehearse"),
        ("cli/setup/bench", "from bench.peers import job"),
        ("benching/run", "from homing.testing.fault_server import FaultServer"),
        ("benching/run", "from homing.stores.sqlite import SqliteStore"),
        ("testing/builders", "from simulation.faults import Faults"),
        ("testing/builders", "import tests.support"),
        ("__init__", "from homing.testing import builders"),
        ("__init__", "NAMES = {'homing.providers.local.console': ('ConsoleProvider',)}"),
        ("novelty", "from homing.core.notifications import Claim"),
        ("novelty/deep/one", "import json"),
    ],
)
def test_a_wrong_import_is_found_anywhere_in_a_module(tmp_path: Path, module: str, source: str) -> None:
    (complaint,) = wrong_directions(plant(tmp_path, module, source))
    assert f"homing/{module}.py" in complaint


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core/rows", "from homing.core import events\nfrom . import model\nfrom .model import Claim"),
        ("engine/worker", "from homing.core.notifications import Claim\nfrom homing.engine import settler"),
        ("engine/worker", "import logging\nlog = logging.getLogger('homing.cli')"),
        ("engine/worker", "'See homing.stores.sqlite for the statements.'"),
        ("stores/sqlite/store", "from homing.core import rows\nfrom ..common.codec import C\nimport sqlite3"),
        ("stores/sqlite/store", "from homing.stores.sqlite import rows\nfrom . import reads"),
        ("stores/sqlite/reads", "from homing.stores.sqlite.rows import rows_by_id"),
        ("stores/__init__", "from homing.stores.sqlite import SqliteStore"),
        ("providers/twilio/provider", "from homing.net.http_messages import H\nfrom ..common import mime"),
        ("providers/twilio/provider", "from homing.providers.twilio.message import build"),
        ("client/sync_calls", "from homing.core.notifications import Notification\nimport http.client"),
        ("api/http/app", "import homing.engine.intake.requests\nfrom homing.core import errors"),
        ("rehearsal/run", "from homing.stores.sqlite import SqliteStore\nfrom homing.engine import engine"),
        ("telemetry/http_endpoint", "from homing.http_server.server import HttpServer"),
        ("compose/stores", "from homing.stores.sqlite import M\nfrom homing.api import app\nimport redis"),
        ("compose/stores", "KINDS = ('homing.providers.twilio.provider:TwilioProvider',)"),
        ("compose/service", "from homing.rehearsal.rehearse import rehearse_in_subprocess"),
        ("library", "from homing import compose, settings\nfrom homing.engine.engine import Engine"),
        ("cli/intake/send", "from homing import __version__, compose\nfrom homing.library import Homing"),
        ("cli/operations/policy_simulate", "import homing.rehearsal"),
        ("cli/setup/bench", "from homing.benching.run import measure"),
        (
            "benching/crew",
            "from homing.library import Homing\nfrom homing.net.http_messages import HttpRequest",
        ),
        ("benching/crew", "from homing.cli.common.process_setup import tune_garbage_collector"),
        ("__init__", "from homing.library import Homing\nNAMES = {'homing.core.ports.plug_ins': ('Sink',)}"),
        ("testing/fakes", "from homing.stores.sqlite import M\nfrom homing.cli import main\nimport homing"),
    ],
)
def test_an_allowed_import_is_accepted(tmp_path: Path, module: str, source: str) -> None:
    assert wrong_directions(plant(tmp_path, module, source)) == []


def test_the_simulation_may_import_every_part(tmp_path: Path) -> None:
    path = tmp_path / "simulation" / "process.py"
    path.parent.mkdir()
    path.write_text(
        "from homing.testing import builders\nfrom simulation import faults\nimport homing.compose"
    )
    assert wrong_directions(path.parent) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import random as chance",
        "import logging.handlers",
        "import asyncio",
        "from os import environ",
        "import os.path",
        "from urllib import request",
        "import urllib.request",
        "import sqlite3",
        "import pydantic",
        "from httpx import Client",
        "def f():\n    import socket",
        "from datetime import datetime\nx = datetime.now()",
        "from datetime import datetime as d, UTC\nx = d.now(UTC)",
        "import datetime\nx = datetime.datetime.utcnow()",
        "from datetime import date\nx = date.today()",
        "x = open('f')",
        "print('x')",
        "x = __import__('time')",
    ],
)
def test_an_impure_core_is_found(tmp_path: Path, source: str) -> None:
    assert impurities(plant(tmp_path, "core/notifications", source))


def test_a_pure_core_is_accepted_and_other_parts_may_be_impure(tmp_path: Path) -> None:
    pure = "import re\nfrom urllib.parse import urlsplit\nimport msgspec\nfrom datetime import UTC, datetime"
    plant(tmp_path, "core/notifications", f"{pure}\nx = datetime.fromtimestamp(0, UTC)")
    assert impurities(plant(tmp_path, "engine/clock", "import time\nimport random")) == []
