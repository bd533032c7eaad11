"""Chooses each test's event loop. Tests that do real I/O run twice: on uvloop and on asyncio's own loop.

Every command of Homing runs on uvloop if it is installed, and a program that uses Homing as a library may
run on either. The two differ in code that uses sockets, so the suites below run on both, and the id of such a
test names its loop. Some tests run on uvloop alone, because a second run would take minutes and find nothing
new (an asynchronous test with a single loop has no loop in its id):

- tests marked `slow`, property tests, and tests that try all combinations of the same few statements;
- tests of the query plans of a database;
- the store suite on MongoDB, whose own tests in `tests/integration` run on both;
- `tests/acceptance`, whose processes choose their loop like an installed Homing.

The tests of the engine run on a virtual loop. All other tests do no I/O and run on asyncio's loop.

A test or fixture that starts a loop itself, on a thread or in a process, uses the fixture `loop_kind`, so
that it runs on the loop chosen here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from homing.rehearsal.virtual_time import VirtualLoop

T = TypeVar("T")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

_NEW: dict[str, NewLoop] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
    "virtual": VirtualLoop,
}
_TESTS = Path(__file__).parents[1]
_IN_VIRTUAL_TIME = ("component/engine", "unit/engine")
_ON_BOTH = (
    "component/api",
    "component/client",
    "component/compose",
    "component/net",
    "component/providers",
    "component/sinks",
    "component/telemetry",
    "component/test_event_loops.py",
    "component/test_library.py",
    "conformance",
    "integration",
    "unit/api",
    "unit/client",
    "unit/compose/test_provider_kinds.py",
    "unit/net",
    "unit/providers",
    "unit/telemetry",
)
_ON_UVLOOP = (
    "acceptance",
    "conformance/test_mongo.py",
    "integration/test_postgres_plans.py",
    "integration/test_postgres_read_plans.py",
    "integration/test_sqlite_plans.py",
)
_COMBINATIONS = {
    "test_another_tenants_notification_is_reported_as_missing",
    "test_order_and_repetition_of_receipts_do_not_change_the_final_status",
    "test_each_command_is_possible_only_from_the_statuses_in_the_table",
    "test_counts_lists_and_histories_agree_after_a_random_walk",
}
"""Tests of the store suite, each run with dozens of combinations or steps."""
_WITHOUT_IO = ("conformance/test_sqlite_in_memory.py",)


@dataclass(frozen=True)
class LoopKind:
    """A kind of event loop, by the name of the module that creates it."""

    name: str

    @property
    def new(self) -> NewLoop:
        return _NEW[self.name]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on a new loop of this kind, as `asyncio.run` does."""
        with asyncio.Runner(loop_factory=self.new) as runner:
            return runner.run(work)

    def program(self, source: str) -> str:
        """Returns a program that runs the coroutine function `main` of `source` on a loop of this kind."""
        return (
            f"{source}\nimport asyncio\nfrom {self.name} import new_event_loop\n"
            "with asyncio.Runner(loop_factory=new_event_loop) as runner:\n    runner.run(main())\n"
        )


def listed_places() -> tuple[str, ...]:
    """Returns the folders and files that are listed above, relative to tests/."""
    return (*_IN_VIRTUAL_TIME, *_ON_BOTH, *_ON_UVLOOP, *_WITHOUT_IO)


def listed_tests() -> set[str]:
    """Returns the names of the tests that are listed above."""
    return _COMBINATIONS


PRODUCTION = LoopKind("uvloop")
"""The loop of every command, for programs that are started without pytest."""


def _kinds(item: pytest.Function) -> tuple[str, ...]:
    """Returns the names of the loops on which a test runs."""
    if _is_in(item, _IN_VIRTUAL_TIME):
        return ("virtual",)
    if _is_in(item, _ON_UVLOOP):
        return ("uvloop",)
    if not _is_in(item, _ON_BOTH) or _is_in(item, _WITHOUT_IO):
        return ("asyncio",)
    return ("uvloop",) if _is_heavy(item) else ("uvloop", "asyncio")


def _is_heavy(item: pytest.Function) -> bool:
    is_property = getattr(item.obj, "is_hypothesis_test", False)
    return is_property or item.originalname in _COMBINATIONS or item.get_closest_marker("slow") is not None


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return any(item.path.is_relative_to(_TESTS / place) for place in places)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Function) -> dict[str, NewLoop]:
    """Gives each asynchronous test its loops."""
    return {name: _NEW[name] for name in _kinds(item)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives each synchronous test its loops, if it or one of its fixtures starts one."""
    if "loop_kind" in metafunc.fixturenames and not inspect.iscoroutinefunction(metafunc.function):
        kinds = _kinds(metafunc.definition)
        metafunc.parametrize("loop_kind", kinds, indirect=True)


@pytest.fixture
def loop_kind(request: pytest.FixtureRequest) -> LoopKind:
    """The kind of loop that this test runs on."""
    if name := getattr(request, "param", None):
        return LoopKind(name)
    new = request.getfixturevalue(
        "_asyncio_loop_factory"
    )  # the fixture in which pytest-asyncio keeps an async test's loop
    return LoopKind(next(name for name, one in _NEW.items() if one is new))
