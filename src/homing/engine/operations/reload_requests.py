"""Requests to all processes to read their settings again, and the answers of the processes, in the store."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from homing.core.plain_values import plain_text
from homing.core.ports.stores import Entry, Registry
from homing.engine.operations.policies import EVERY_TENANT

_REQUEST, _ANSWER, _KEY = "reload", "reload_answer", "settings"

_PAGE = 500


class ReloadRequest(Struct, frozen=True, kw_only=True):
    """A request to read the settings again."""

    number: int
    """Number of the request. Every request has a higher one than the request before."""
    who: str
    why: str = ""


class ReloadAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one process did about a request."""

    worker: str
    number: int
    """Number of the request."""
    changed: tuple[str, ...] = ()
    """Settings that changed and are in force now. Their values are not stored."""
    needs_restart: tuple[str, ...] = ()
    """Settings that changed and come into force when the process is started again."""
    error: str = ""
    """Why nothing was changed. Empty if the settings were read."""


class ReloadRequests:
    """Writes and reads requests and answers. `worker` is the name of this process."""

    def __init__(self, registry: Registry, worker: str) -> None:
        self._registry = registry
        self._worker = worker

    async def ask(self, *, who: str, why: str = "") -> ReloadRequest:
        """Requests that all processes read their settings again. Removes the answers to earlier requests."""
        plain_text(who, "who")
        plain_text(why, "why")
        while page := await self._registry.list_entries(EVERY_TENANT, _ANSWER, limit=_PAGE):
            await self._registry.delete(EVERY_TENANT, _ANSWER, [entry.key for entry in page])
        entry = Entry(
            tenant=EVERY_TENANT, kind=_REQUEST, key=_KEY, value={"who": who, "why": why}, version=-1
        )
        await self._registry.put([entry], who=who)
        found = await self.newest()
        assert found is not None, "it was just written"
        return found

    async def newest(self) -> ReloadRequest | None:
        """Returns the newest request, or None if there was none."""
        entry = (await self._registry.get_many(EVERY_TENANT, _REQUEST, [_KEY])).get(_KEY)
        return None if entry is None else ReloadRequest(number=entry.version, **entry.value)

    async def answer(self, answer: ReloadAnswer) -> None:
        """Stores the answer of this process."""
        value = msgspec.to_builtins(answer)
        entry = Entry(tenant=EVERY_TENANT, kind=_ANSWER, key=self._worker, value=value, version=-1)
        await self._registry.put([entry], who=self._worker)

    async def answers(self, number: int) -> tuple[ReloadAnswer, ...]:
        """Returns the answers to a request so far, by the names of the processes."""
        entries = await self._registry.list_entries(EVERY_TENANT, _ANSWER, limit=_PAGE)
        found = [msgspec.convert(entry.value, ReloadAnswer) for entry in entries]
        return tuple(one for one in found if one.number == number)
