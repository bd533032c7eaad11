"""Sends every operation of a store through one method, to inject faults or to count calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar

from homing.core.ports.stores import Registry, SharedState, Store

STORE_OPERATIONS = tuple(
    name
    for interface in (Store, Registry, SharedState)
    for name, member in vars(interface).items()
    if iscoroutinefunction(member) and not name.startswith("_")
)
"""Names of all operations of a `Backend`."""

R = TypeVar("R")


class InterceptedStore(Protocol):
    """A store class that `intercept_operations` can decorate."""

    async def _intercept(self, operation: str, perform: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Called instead of an operation. `perform` performs it and returns its result."""


S = TypeVar("S", bound=InterceptedStore)


def intercept_operations(store_class: type[S]) -> type[S]:
    """Class decorator: every operation that the class inherits from a store goes through `_intercept`.

    An operation that the class defines itself stays as it is. So a class names only the operations that it
    treats specially, and a new operation of the interface needs no change here.
    """
    for operation in STORE_OPERATIONS:
        if operation not in vars(store_class):
            setattr(store_class, operation, _intercepted(store_class, operation))
    return store_class


def _intercepted(store_class: type[InterceptedStore], operation: str) -> Any:
    async def intercepted(self: InterceptedStore, *args: Any, **kwargs: Any) -> Any:
        inherited = getattr(super(store_class, self), operation)
        return await self._intercept(operation, partial(inherited, *args, **kwargs))

    intercepted.__name__ = operation
    return intercepted
