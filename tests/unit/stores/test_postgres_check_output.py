"""What the checks of a database print fits into 80 columns, whatever they find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from homing.cli.common.screen import Screen
from homing.core.errors import StoreUnavailable
from homing.core.ports.stores import StoreCheckResult
from homing.stores.common.migrations import SchemaState
from homing.stores.postgres import database_checks as checks
from homing.stores.postgres.address import parse_database_url

ROLE = "homing_application_of_the_production"
DAYS_MS = 12 * 86_400_000
SEVERAL_HOSTS = ",".join(f"database-{number}.eu-central.example.com:5432" for number in range(3))


class Answers:
    """A transaction whose statements get these answers, one after the other."""

    schema = "homing"

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def rows(self, *_: Any) -> Any:
        return [self._answers.pop(0)] if self._answers[0] is not None else []

    async def one(self, *_: Any) -> Any:
        return self._answers.pop(0)

    async def script(self, *_: Any) -> None:
        pass


class Listens:
    """A listener whose test has this result."""

    def __init__(self, result: bool | None) -> None:
        self._result = result

    async def test(self) -> bool:
        if self._result is None:
            raise StoreUnavailable
        return self._result


def listen(query: str, result: bool | None, can_write: bool = True) -> Awaitable[StoreCheckResult]:
    address = parse_database_url(f"postgresql://{SEVERAL_HOSTS}/notifications{query}")
    database: Any = SimpleNamespace(address=address)
    listener: Any = Listens(result)
    return checks._listen(database, listener, can_write)


def asked(check: Callable[..., Awaitable[StoreCheckResult]], *answers: Any) -> Awaitable[StoreCheckResult]:
    return check(Answers(*answers))


BRANCHES: dict[str, Callable[[], Awaitable[StoreCheckResult]]] = {
    "server": lambda: asked(checks._server, (150_020, "15.20 (Debian 15.20-0+deb12u1)")),
    "an old server": lambda: asked(checks._server, (130_020, "13.20 (Debian 13.20-0+deb12u1)")),
    "encoding": lambda: asked(checks._encoding, "UTF8"),
    "another encoding": lambda: asked(checks._encoding, "SQL_ASCII"),
    "commits": lambda: asked(checks._commits, ("remote_apply", True, True)),
    **{
        f"commits: {level}, {syncs}, {full}": lambda found=(level, syncs, full): asked(checks._commits, found)  # type: ignore[misc]
        for level in ("on", "off", "local", "remote_write")
        for syncs in (True, False)
        for full in (True, False)
    },
    "writes": lambda: asked(checks._writes, (False, False)),
    "a standby": lambda: asked(checks._writes, (True, True)),
    "read-only": lambda: asked(checks._writes, (False, True)),
    "role": lambda: asked(checks._role, (ROLE, True, True), True),
    "no grants": lambda: asked(checks._role, (ROLE, True, False), False),
    "row-level security": lambda: asked(checks._role, (ROLE, False, True), False),
    "rows": lambda: asked(checks._rows, 0),
    "rows without queues": lambda: asked(checks._rows, 12_345_678),
    "clock": lambda: checks._clock(Answers(DAYS_MS), DAYS_MS),  # type: ignore[arg-type]
    "a wrong clock": lambda: checks._clock(Answers(DAYS_MS), 0),  # type: ignore[arg-type]
    "prepared": lambda: asked(checks._prepared, None),
    **{
        f"prepared: {strength}": lambda found=("a" * 60, DAYS_MS, strength): asked(checks._prepared, found)  # type: ignore[misc]
        for strength in range(3)
    },
    "vacuum": lambda: asked(checks._old_snapshots, None),
    "an old transaction": lambda: asked(
        checks._old_snapshots, (4_194_304, DAYS_MS, "idle in transaction (aborted)")
    ),
    "listen": lambda: listen("", True),
    "no message": lambda: listen("", False),
    "no listener": lambda: listen("", None),
    "listen=false": lambda: listen("?listen=false", True),
    "listen, but no writes": lambda: listen("", True, can_write=False),
}


async def printed(find: Awaitable[StoreCheckResult], capsys: pytest.CaptureFixture[str]) -> list[str]:
    found = await find
    Screen().check(found.ok, f"{found.name:<9} {found.detail}", found.advice, max_columns=80)
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(lines).split()
    assert words[1:] == f"{found.name} {found.detail} {'→' if found.advice else ''} {found.advice}".split()
    return lines


@pytest.mark.parametrize("branch", BRANCHES)
async def test_every_finding_fits(branch: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = await printed(BRANCHES[branch](), capsys)
    assert [line for line in lines if len(line) > 80] == []


async def test_a_list_of_all_migrations_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nothing(_: Any) -> SchemaState:
        return SchemaState()

    monkeypatch.setattr(checks, "read_schema_state", nothing)
    lines = await printed(checks._schema(Answers(), "here"), capsys)  # type: ignore[arg-type]
    assert len(lines) > 2
    assert [line for line in lines if len(line) > 80] == []


async def test_a_long_id_of_a_prepared_transaction_is_not_divided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    id_ = "x" * 200
    lines = await printed(asked(checks._prepared, (id_, DAYS_MS, 0)), capsys)
    assert lines[-1].split() == [f"'{id_}'"]
