"""Tests with real I/O run on uvloop and on asyncio's loop, and everything they start runs on the same one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.testing import store_suite
from support.event_loops import LoopKind, listed_places, listed_tests
from support.running_service import RunningService

CLASSES = {"uvloop": uvloop.Loop, "asyncio": asyncio.SelectorEventLoop}
PROGRAM = """
import asyncio

async def main():
    print(type(asyncio.get_running_loop()).__module__)
"""


def test_the_listed_places_and_tests_exist() -> None:
    tests = Path(__file__).parents[1]
    assert [place for place in listed_places() if not (tests / place).exists()] == []
    suite = "".join(path.read_text() for path in Path(store_suite.__file__).parent.glob("*.py"))
    assert [name for name in listed_tests() if f"def {name}(" not in suite] == []


async def _running() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


async def test_an_asynchronous_test_runs_on_the_loop_that_its_id_names(
    request: pytest.FixtureRequest, loop_kind: LoopKind
) -> None:
    assert f"[{loop_kind.name}]" in request.node.name
    assert issubclass(await _running(), CLASSES[loop_kind.name])


def test_a_synchronous_test_starts_the_loop_that_its_id_names(
    request: pytest.FixtureRequest, loop_kind: LoopKind
) -> None:
    assert f"[{loop_kind.name}]" in request.node.name
    assert issubclass(loop_kind.run(_running()), CLASSES[loop_kind.name])


def test_a_service_runs_on_the_loop_of_its_test(
    serve: Callable[..., RunningService], loop_kind: LoopKind
) -> None:
    running = serve(store="memory:").on_loop(lambda engine: _running())
    assert issubclass(running, CLASSES[loop_kind.name])


def test_a_program_runs_on_the_loop_of_its_test(loop_kind: LoopKind) -> None:
    command = [sys.executable, "-c", loop_kind.program(PROGRAM)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith(loop_kind.name)


@pytest.mark.slow
def test_a_slow_test_runs_on_uvloop_alone(loop_kind: LoopKind) -> None:
    assert loop_kind.name == "uvloop"


@given(number=st.integers())
@settings(max_examples=1)
async def test_a_property_runs_on_uvloop_alone(number: int) -> None:
    assert issubclass(await _running(), CLASSES["uvloop"])
