"""Reads the processor time of a PostgreSQL server on this machine from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class ServerCpu:
    """The processor time of the server of a store. That of SQLite is part of the process that uses it."""

    def __init__(self, main_process: int | None) -> None:
        self._main_process = main_process

    @classmethod
    async def of(cls, store: str) -> ServerCpu:
        """Finds the server's main process, the parent of each of its connections."""
        if not store.startswith("postgresql"):
            return cls(None)
        import asyncpg

        connection = await asyncpg.connect(store)
        try:
            backend = await connection.fetchval("SELECT pg_backend_pid()")
            return cls(int(_stat(backend)[1]))
        finally:
            await connection.close()

    def read_s(self) -> float:
        """Returns the seconds that the server has used so far. 0 for SQLite.

        Exact for running processes. Those that have ended are known to a hundredth of a second.
        """
        return 0.0 if self._main_process is None else _family_cpu_s(self._main_process)


def _family_cpu_s(parent: int) -> float:
    """Returns the processor time of a process and of its children, also of those that have ended."""
    total_s = _own_cpu_s(parent) + sum(map(int, _stat(parent)[13:15])) / _TICKS
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and int(_stat(int(folder.name))[1]) == parent:
                total_s += _own_cpu_s(int(folder.name))
    return total_s


def _own_cpu_s(pid: int) -> float:
    """Returns the processor time of a process with one thread, which `stat` has only in whole ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (FileNotFoundError, IndexError):  # a kernel without these figures
        return sum(map(int, _stat(pid)[11:13])) / _TICKS


def _stat(pid: int) -> list[str]:
    """Returns the fields of a process from its state on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
