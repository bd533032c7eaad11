"""A decorated store class sends every operation through one method."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import getattr_static
from typing import Any, TypeVar

from homing.core.ports.stores import Backend
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_claim_request, a_notification, a_submission
from homing.testing.store_interception import STORE_OPERATIONS, intercept_operations

R = TypeVar("R")


class Plain(SqliteStore):
    """A store whose `size` is not that of its base class."""

    async def size(self) -> dict[str, int]:
        return {"files": 3}


@intercept_operations
class Recorded(Plain):
    """Records the names of its operations."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.called: list[str] = []

    async def _intercept(self, operation: str, perform: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self.called.append(operation)
        return await perform()

    async def tenants(self) -> tuple[str, ...]:
        return ("own",)


def test_the_operations_are_those_of_the_interface() -> None:
    members = {name: getattr_static(Backend, name) for name in dir(Backend) if not name.startswith("_")}
    public = {name for name, member in members.items() if not isinstance(member, property)}
    assert set(STORE_OPERATIONS) == public
    assert len(STORE_OPERATIONS) == len(public)


async def test_an_inherited_operation_is_intercepted_once_and_returns_its_result() -> None:
    store = Recorded()
    await store.accept([a_submission(a_notification())], tx=None)
    batch = await store.claim(a_claim_request())
    assert len(batch.claims) == 1
    assert await store.size() == {"files": 3}
    assert store.called == ["accept", "claim", "size"]


async def test_an_operation_that_the_class_defines_is_not_intercepted() -> None:
    store = Recorded()
    assert await store.tenants() == ("own",)
    assert store.called == []


def test_every_operation_keeps_its_name() -> None:
    assert all(getattr(Recorded, name).__name__ == name for name in STORE_OPERATIONS)
