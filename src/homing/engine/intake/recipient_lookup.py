"""Resolves the recipients of a request: adds missing addresses and devices from the recipient directory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from homing.core.errors import HomingError, StoreUnavailable
from homing.core.notifications import Channel, Mode, Recipient
from homing.core.ports.plug_ins import Directory
from homing.core.recipients.profiles import KnownRecipient
from homing.core.retry.policy import MODE_DEFAULTS
from homing.core.send_request import SendRequest
from homing.engine.plug_in_calls import AT_ONCE, call_within, map_at_once

SYNCHRONOUS_TIMEOUT_MS = MODE_DEFAULTS[Mode.SYNCHRONOUS]["timeout_ms"]
"""Timeout of a whole synchronous send, in milliseconds. Retry rules do not change it."""

MAX_DEVICES = 10
"""Maximum number of devices per recipient that get a push message, in the directory's order."""


_DIRECTORY_TIMEOUT_MS = 10_000

_MAX_FAILURES = 3
"""After this many failures without a success, `prepare_each` tries some of the later items."""

_MAX_PROBES = 16
"""Maximum number of later items that are tried, all at the same time."""

_MAX_REPEATS = 3
"""How often an item is prepared again, with a success for another one after each failure, before it is
rejected. A directory may fail now and then. There are fewer repeats if they take more than ten seconds."""

_SLOW_MS = 1_000
"""A failure that takes this long is a slow one. The other items are then prepared at the same time."""

_T = TypeVar("_T")

_R = TypeVar("_R")


DeviceTokens = Mapping[str, tuple[str, ...]]
"""Recipient id → device tokens, for recipients with several devices."""


NO_DEVICE_TOKENS: DeviceTokens = {}


class DirectoryFailed(StoreUnavailable):
    """The recipient directory failed, which may concern a single recipient. Nothing was changed."""

    def __init__(self, problem: str) -> None:
        """`problem` says what the directory did, such as the type of the exception that it raised."""
        super().__init__(f"the recipient directory {problem}; try again")
        self.problem = problem


class RecipientResolver:
    """Resolves all recipients of a request with one call to the directory."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def resolve(
        self, tenant: str, recipients: tuple[Recipient, ...], mode: Mode
    ) -> tuple[tuple[Recipient, ...], DeviceTokens]:
        """Returns the recipients with missing fields filled in, and the tokens of those with several devices.

        A recipient given by id without a token gets push messages on the first ten active devices. A
        synchronous send is a single attempt, so it uses only the first device.
        """
        ids = {recipient.id for recipient in recipients if recipient.id}
        if not ids:
            return recipients, NO_DEVICE_TOKENS
        synchronous = mode is Mode.SYNCHRONOUS
        known = await self._ask_directory(
            tenant, ids, SYNCHRONOUS_TIMEOUT_MS if synchronous else _DIRECTORY_TIMEOUT_MS
        )
        resolved = tuple(_merged(known[r.id], r) if r.id and r.id in known else r for r in recipients)
        if synchronous:
            return resolved, NO_DEVICE_TOKENS
        devices = {
            given.id: one.device_tokens[:MAX_DEVICES]
            for given in recipients
            if given.id
            and given.device_token is None
            and isinstance(one := known.get(given.id), KnownRecipient)
            and len(one.device_tokens) > 1
        }
        return resolved, devices

    async def _ask_directory(
        self, tenant: str, ids: Collection[str], within_ms: int
    ) -> Mapping[str, Recipient]:
        """Returns the recipients that the directory knows, by id.

        The directory may be user code, so it is not trusted. Raises `DirectoryFailed` if it fails, hangs or
        returns something invalid.
        """
        try:
            known: object = await call_within(lambda: self._directory.resolve(tenant, ids), within_ms)
        except HomingError:
            raise
        except Exception as error:
            raise DirectoryFailed(f"failed ({type(error).__name__})") from error
        if isinstance(known, Mapping) and all(isinstance(one, Recipient) for one in known.values()):
            return known
        raise DirectoryFailed(f"returned an invalid {type(known).__name__}")


def names_recipient(request: SendRequest) -> bool:
    """Returns True if the directory is asked about a recipient of this request."""
    return any(one is not None and one.id for one in (request.recipient, *request.recipients))


async def prepare_each(
    items: Sequence[_T],
    prepare: Callable[[_T], Awaitable[_R]],
    was_asked: Callable[[_T, _R], bool],
    *,
    at_once: int = AT_ONCE,
) -> list[_R | DirectoryFailed]:
    """Prepares items, and returns one result per item, in the same order.

    If the directory fails for an item but works for another one, the error is the item's result. Raises
    `DirectoryFailed` if no other item shows that the directory works. `was_asked` returns True if the
    directory was asked about an item with this result.

    The items are prepared one by one, or up to `at_once` at a time while the directory hangs for some.
    """
    loop = asyncio.get_running_loop()
    found: list[_R | DirectoryFailed] = []
    unexplained: dict[int, DirectoryFailed] = {}
    works = False
    for index, item in enumerate(items):
        one: _R | DirectoryFailed
        began = loop.time()
        try:
            one = await prepare(item)
        except DirectoryFailed as error:
            control = _find_control(items, found, was_asked)
            is_slow = loop.time() - began >= _SLOW_MS / 1000
            if control is None:
                unexplained[index] = one = error
                if is_slow or len(unexplained) >= _MAX_FAILURES:
                    works = works or await _works_for_any(items[index + 1 :], prepare, was_asked, at_once)
                    if not works:
                        raise
            if is_slow:
                return await _prepare_rest(items, [*found, error], prepare, was_asked, at_once)
            if control is not None:
                one = await _prepare_again(item, control, error, prepare)
        found.append(one)
    for index, failure in unexplained.items():
        control = _find_control(items, found, was_asked)
        if control is None:
            raise failure
        found[index] = await _prepare_again(items[index], control, failure, prepare)
    return found


async def _works_for_any(
    items: Sequence[_T],
    prepare: Callable[[_T], Awaitable[_R]],
    was_asked: Callable[[_T, _R], bool],
    at_once: int,
) -> bool:
    """Returns True if the directory works for one of these items. Tries some that are spread over all."""

    async def works_for(item: _T) -> bool:
        try:
            return was_asked(item, await prepare(item))
        except DirectoryFailed:
            return False

    return any(await map_at_once(works_for, items[:: len(items) // _MAX_PROBES + 1], at_once))


async def _prepare_rest(
    items: Sequence[_T],
    found: list[_R | DirectoryFailed],
    prepare: Callable[[_T], Awaitable[_R]],
    was_asked: Callable[[_T, _R], bool],
    at_once: int,
) -> list[_R | DirectoryFailed]:
    """Prepares the items without a result in `found`, and then again those for which the directory failed."""

    async def try_once(item: _T) -> _R | DirectoryFailed:
        try:
            return await prepare(item)
        except DirectoryFailed as error:
            return error

    found = [*found, *await map_at_once(try_once, items[len(found) :], at_once)]
    failures = [(index, one) for index, one in enumerate(found) if isinstance(one, DirectoryFailed)]
    control = _find_control(items, found, was_asked)
    if control is None:
        raise failures[0][1]

    async def try_again(failed: tuple[int, DirectoryFailed]) -> _R | DirectoryFailed:
        return await _prepare_again(items[failed[0]], control, failed[1], prepare)

    again = await map_at_once(try_again, failures, at_once)
    for (index, _), one in zip(failures, again, strict=True):
        found[index] = one
    return found


def _find_control(
    items: Sequence[_T], found: Sequence[_R | DirectoryFailed], was_asked: Callable[[_T, _R], bool]
) -> _T | None:
    """Returns the last item for which the directory has worked, or None if there is none."""
    for item, result in zip(reversed(items[: len(found)]), reversed(found), strict=True):
        if not isinstance(result, DirectoryFailed) and was_asked(item, result):
            return item
    return None


async def _prepare_again(
    item: _T, control: _T, failure: DirectoryFailed, prepare: Callable[[_T], Awaitable[_R]]
) -> _R | DirectoryFailed:
    """Prepares an item again for which the directory has failed, and returns the result or the error.

    Raises `DirectoryFailed` if the directory fails for `control` as well, for which it worked before.
    """
    loop = asyncio.get_running_loop()
    until, repeats = loop.time() + _DIRECTORY_TIMEOUT_MS / 1000, 0
    while repeats < _MAX_REPEATS and loop.time() < until:
        repeats += 1
        try:
            return await prepare(item)
        except DirectoryFailed as error:
            failure = error
        await prepare(control)
    return failure


def expand_devices(recipient: Recipient, channel: Channel, devices: DeviceTokens) -> Sequence[Recipient]:
    """Returns the recipient once or, on the push channel, once per device token."""
    tokens = devices.get(recipient.id or "", ()) if channel is Channel.PUSH else ()
    return [replace(recipient, device_token=token) for token in tokens] or (recipient,)


def _merged(known: Recipient, given: Recipient) -> Recipient:
    """Returns a recipient with at most one device. The request's values override the directory's."""
    found = {name: getattr(known, name) for name in Recipient.__struct_fields__}
    if isinstance(known, KnownRecipient) and known.device_tokens:
        found["device_token"] = known.device_tokens[0]
    given_values = {name: value for name in found if (value := getattr(given, name)) is not None}
    return Recipient(**{**found, **given_values})
