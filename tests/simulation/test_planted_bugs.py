"""Each of these bugs, planted on purpose, must be found by the simulator."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulation.planted.bugs import PlanFactory, PlantedBug, hunt_bug, load_all_bugs, plant_bug
from simulation.run import run_simulation

from simulation import invariants

BUGS = load_all_bugs()

WORLDS = {f"{bug.plan.__name__} {bug.seed}": (bug.plan, bug.seed) for bug in BUGS}
"""The simulations in which the bugs are planted. Many bugs share one."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    caught = hunt_bug(bug, bug.seeds)
    assert caught is not None, f"{bug.what}: not found in {len(bug.seeds)} runs"
    print(f"{bug.name}: invariant {caught.violation.invariant}, seed {caught.seed}: {caught.violation.text}")
    assert caught.violation.invariant in bug.invariants, str(caught.violation)
    if caught.seed != bug.seed:
        assert run_simulation(bug.plan(caught.seed)).lifetimes > 0


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "seed"), WORLDS.values(), ids=WORLDS.keys())
def test_the_same_simulation_passes_without_a_bug(plan: PlanFactory, seed: int) -> None:
    assert run_simulation(plan(seed)).lifetimes > 0


def test_there_are_enough_planted_bugs_and_all_differ() -> None:
    assert len(BUGS) >= 24
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_many_of_them_are_in_the_code_of_the_sqlite_store() -> None:
    owners = [owner.__module__ if isinstance(owner, type) else owner.__name__ for owner in _owners()]
    assert sum(name.startswith("homing.stores.sqlite.") for name in owners) >= 12


def _owners() -> list[Any]:
    return [bug.patches[0][0] for bug in BUGS]


def test_every_patched_attribute_exists() -> None:
    patched = [(owner, name) for bug in BUGS for owner, name, _ in bug.patches]
    assert [(owner.__name__, name) for owner, name in patched if name not in vars(owner)] == []


def test_together_the_bugs_violate_every_invariant() -> None:
    broken = {invariant for bug in BUGS for invariant in bug.invariants}
    assert broken == set(re.findall(r"^([0-9]+)\. ", invariants.__doc__ or "", re.MULTILINE))


def test_a_bug_is_removed_after_its_run() -> None:
    bug = BUGS[0]
    owner, name, _ = bug.patches[0]
    before = vars(owner)[name]
    with plant_bug(bug):
        assert vars(owner)[name] is not before
    assert vars(owner)[name] is before
