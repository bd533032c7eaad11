"""The allowed import directions of the package, as a table with a test."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import homing

ADAPTERS = ("stores", "providers", "timers", "sinks", "rendering", "observing")
FRONTS = ("api", "dashboard", "bridges")
FOR_TRIALS = ("sim", "testing", "benching")

RULES: dict[str, tuple[str, ...]] = {
    "core": (),
    "engine": ("core",),
    **dict.fromkeys(ADAPTERS, ("core",)),
    **dict.fromkeys(FRONTS, ("engine", "core")),
    "client": ("core",),
    "config": ("core",),
    "making": ("config", "core", *ADAPTERS),
    "compose": ("making", "config", "core", "engine", *ADAPTERS, *FRONTS),
    "library": ("compose", "config", "engine", "core"),
    "cli": ("library", "compose", "config", "engine", "core", "homing"),
    "homing": ("library", "engine", "core"),
    "__main__": ("cli",),
}
"""Part of the package → other parts it may import. `homing` is the package's own `__init__`.

The client is for programs without an engine: it shares the vocabulary but none of the working code.
`sim`, `testing` and `benching` may import everything. Only the commands for the demo, the simulation and the
benchmark import them.
"""

MAY_USE_TRIALS = re.compile(r"homing\.cli\.(\w+\.)*\w*(demo|simulat|bench)\w*(\.\w+)*")

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
    """Returns everything that a module imports: at the top, in functions, and for types only."""
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
                yield from (Found(where, str(name)) for name in named)


def calls(path: Path) -> Iterator[Found]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield Found(f"{path}:{node.lineno}", name)


def part_of(dotted: str) -> str:
    """Maps `homing.core.notifications` to `core`. Modules outside of a part belong to the package itself."""
    _, _, below = dotted.partition(".")
    first = below.partition(".")[0]
    return first if first in RULES or first in FOR_TRIALS else "homing"


def wrong_directions(package: Path) -> list[str]:
    found = []
    for module, path in modules(package):
        mine = part_of(module)
        if mine == "homing" and module != "homing":
            found.append(f"{path}: {module} is not in the table")
        for where, target in imports(module, path):
            if target.partition(".")[0] != "homing" or mine in FOR_TRIALS:
                continue
            theirs = part_of(target)
            allowed = (mine, *RULES[mine], *(FOR_TRIALS if MAY_USE_TRIALS.fullmatch(module) else ()))
            if theirs not in allowed:
                found.append(f"{where}: {module} imports {target}")
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


def test_every_module_imports_only_what_its_part_may() -> None:
    assert wrong_directions(PACKAGE) == []


def test_the_core_uses_no_clock_randomness_log_or_io() -> None:
    assert impurities(PACKAGE) == []


def test_the_core_exists_and_was_checked() -> None:
    seen = {module for module, _ in modules(PACKAGE) if part_of(module) == "core"}
    assert {"homing.core", "homing.core.retry.decide", "homing.core.lifecycle.rows"} <= seen


def test_no_two_parts_may_import_each_other() -> None:
    for part, allowed in RULES.items():
        assert not [other for other in allowed if part in RULES[other]]


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
        ("core/model", "from homing.engine.delivery.worker import Worker"),
        ("core/model", "import homing"),
        ("core/model", "from .. import engine"),
        ("core/model", "from ..engine import worker"),
        ("engine/worker", "from homing.stores.sqlite import SqliteStore"),
        ("engine/worker", "import homing.stores.memory"),
        ("engine/worker", "from homing import compose"),
        ("engine/worker", "from homing import Homing"),
        ("engine/worker", "def later():\n    from homing.providers import console"),
        ("engine/worker", "from importlib import import_module\nimport_module('homing.sinks.log')"),
        ("engine/worker", "import importlib\nimportlib.import_module('homing.sinks.log')"),
        ("engine/worker", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import homing.cli"),
        ("stores/memory", "from homing.net.http_messages import Client"),
        ("stores/sql/deep/one", "from ....providers import http"),
        ("stores/__init__", "from ..engine import intake"),
        ("timers/redis", "from homing.engine.upkeep.upkeep import Upkeep"),
        ("sinks/kafka", "from homing.timers.kafka import Producer"),
        ("rendering/templates", "from homing.settings import Settings"),
        ("api/app", "from homing.stores.memory import MemoryStore"),
        ("api/app", "from homing.compose import compose"),
        ("dashboard/pages", "from homing.api.http.app import app"),
        ("bridges/rabbitmq", "from homing.sinks.rabbitmq import publish"),
        ("config", "from homing.engine.delivery.capacity import Slots"),
        ("compose", "from homing.testing.manual_clock import VirtualClock"),
        ("library", "from homing.sinks.log import LogSink"),
        ("client/clients", "from homing.engine.intake.accept import SendResult"),
        ("client/types", "from homing.api.intake.batch import BatchItem"),
        ("library", "from homing.cli import main"),
        ("cli/send", "from homing.stores.memory import MemoryStore"),
        ("cli/send", "from homing.sim import run"),
        ("cli/send", "from homing.testing import fakes"),
        ("cli/send", "from homing.benching import sink"),
        ("engine/worker", "from homing.benching.worker_processes import Crew"),
        ("engine/demo", "from homing.sim import run"),
        ("__init__", "from homing.testing import fakes"),
        ("novelty", "from homing.core.notifications import Claim"),
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
        ("stores/sql/one", "from homing.core import rows\nfrom ..codec import Codec\nimport sqlite3"),
        ("client/sync_calls", "from homing.core.notifications import Notification\nimport http.client"),
        ("api/app", "import homing.engine.intake.requests\nfrom homing.core import errors"),
        ("compose", "from homing.stores.memory import M\nfrom homing.api import app\nimport redis"),
        ("library", "from homing import compose, config\nfrom homing.engine.engine import Engine"),
        ("cli/send", "from homing import __version__, compose\nfrom homing.library import Homing"),
        ("cli/demo", "from homing.sim import run\nfrom homing.testing import fakes"),
        ("cli/demo/stage", "from homing.testing import fakes"),
        ("cli/policy_simulate", "import homing.sim"),
        ("cli/bench", "from homing.benching.run import measure"),
        ("benching/crew", "from homing.library import Homing\nfrom homing.net.http_messages import Request"),
        ("__init__", "from homing.library import Homing\nfrom homing.core.notifications import Status"),
        ("__main__", "from homing.cli import main"),
        ("testing/fakes", "from homing.stores.memory import M\nfrom homing.cli import main\nimport homing"),
        (
            "sim/run",
            "from homing.testing.manual_clock import VirtualClock\nfrom homing.compose import compose",
        ),
    ],
)
def test_an_allowed_import_is_accepted(tmp_path: Path, module: str, source: str) -> None:
    assert wrong_directions(plant(tmp_path, module, source)) == []


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
    assert impurities(plant(tmp_path, "core/model", source))


def test_a_pure_core_is_accepted_and_other_parts_may_be_impure(tmp_path: Path) -> None:
    pure = "import re\nfrom urllib.parse import urlsplit\nimport msgspec\nfrom datetime import UTC, datetime"
    plant(tmp_path, "core/model", f"{pure}\nx = datetime.fromtimestamp(0, UTC)")
    assert impurities(plant(tmp_path, "engine/clock", "import time\nimport random")) == []
