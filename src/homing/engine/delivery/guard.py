"""Checks claims before they are sent: facts from the recipient directory, quiet hours and rate limits.

The directory may be user code, so its results are validated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import StoreError, text_of
from homing.core.lifecycle.claims import Claim
from homing.core.notifications import Reason
from homing.core.ports.observers import SettledClaim
from homing.core.ports.plug_ins import Directory
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import SharedState, TokenRequest
from homing.core.recipients.quiet_hours import QuietHours, quiet_ms
from homing.core.redaction import redact
from homing.core.retry.decide import NO_OBJECTION, RecipientFacts, is_push_retry, skip_retry
from homing.core.routing.rate_limits import (
    RateLimit,
    RateLimitRule,
    RateLimitRules,
    recipient_bucket,
    tenant_bucket,
)
from homing.engine.isolation import may_concern_item
from homing.engine.plug_in_calls import AT_ONCE, call_within, map_at_once
from homing.engine.rate_tokens import RateTokens
from homing.engine.store_clock import STORE_PAUSE_MS
from homing.engine.system_runtime import find_zone

log = logging.getLogger("homing.deliverer")


_TIMEOUT_MS = 10_000
"""Time that the directory has for the claims of a batch, over all calls."""

_MAX_CALLS = 32
"""Maximum number of calls of the directory for the claims of a batch, unless one of them succeeds."""

_PART_TIMEOUT_MS = 2_000
"""Time that the directory has for each part of a batch for which it hangs."""

_SEARCH_MS = 10_000
"""Time in which parts of a batch are tried, after the directory has hung for the whole batch."""

_PART = 8
"""Number of claims in such a part."""

_RETRY_TIMEOUT_MS = 2_000
"""Time that the directory has to answer after failed attempts. Their settlements wait meanwhile."""

_POSTPONE_MS = 5_000

_POSTPONE_HANGING_MS = 60_000
"""Shortest wait of a notification for which alone the directory hangs. Each try holds up its batch."""

_MAX_POSTPONE_MS = 366 * 86_400_000


async def fetch_facts(directory: Directory, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
    """Returns the directory's facts about the recipients of claims, by notification id.

    If the directory fails, hangs or returns invalid facts, the facts postpone the notifications. It may fail
    because of single recipients, so it is then asked again about each half of the claims, and so on. If it
    hangs, it is asked about small parts at the same time. If its store is unavailable, it is not asked again.
    """
    loop = asyncio.get_running_loop()
    until, calls, works = loop.time() + _TIMEOUT_MS / 1000, 0, False
    facts: dict[str, RecipientFacts] = {}
    failed: list[Claim] = []
    hanging: Sequence[Claim] = ()
    error: Exception | None = None
    hangs = False
    parts = deque([claims])
    while parts:
        # Large and small parts in turns: the recipients at fault may be next to each other or far apart.
        part = parts.pop() if calls % 2 else parts.popleft()
        is_over = (calls >= _MAX_CALLS and not works) or (calls and loop.time() >= until)
        if is_over or (error is not None and not may_concern_item(error)):
            failed += part
            continue
        calls, began = calls + 1, loop.time()
        try:
            facts.update(await _ask_directory(directory, part, round((until - loop.time()) * 1000)))
            works = True
        except Exception as raised:  # user code may raise anything
            error, middle = raised, len(part) // 2
            hangs = hangs or loop.time() - began >= _TIMEOUT_MS / 2000
            if middle:
                parts += (part[:middle], part[middle:])
            else:
                failed += part
    if hangs and len(claims) > 1:
        found, failed, hanging = await _ask_in_parts(directory, failed, works=works)
        facts.update(found)
    if failed or hanging:
        log.warning(
            "the recipient directory failed, %d notifications are postponed: %s",
            len(failed) + len(hanging),
            redact(text_of(error) or type(error).__name__),
        )
    facts.update(_postponed(failed, _POSTPONE_MS))
    facts.update(_postponed(hanging, _POSTPONE_HANGING_MS))
    return facts


def _postponed(claims: Sequence[Claim], shortest_ms: int) -> dict[str, RecipientFacts]:
    """Returns facts that postpone these claims until different times, after up to twice this wait.

    One for which the directory hangs would otherwise be claimed with all others again.
    """
    return {
        one.id: RecipientFacts(postpone_ms=shortest_ms + shortest_ms * index // len(claims))
        for index, one in enumerate(claims)
    }


async def _ask_in_parts(
    directory: Directory, claims: Sequence[Claim], *, works: bool
) -> tuple[dict[str, RecipientFacts], list[Claim], list[Claim]]:
    """Asks the directory about parts of these claims, for which together it hangs.

    Returns the facts, the claims that were not tried alone, and those for which alone the directory fails.
    Some claims are tried alone first. If it fails for each of them, and does not work for other claims, it is
    not asked about the rest.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _SEARCH_MS / 1000
    facts: dict[str, RecipientFacts] = {}
    left: list[Claim] = []
    alone: list[Claim] = []

    async def ask(part: Sequence[Claim]) -> None:
        if loop.time() >= until:
            left.extend(part)
            return
        try:
            facts.update(await _ask_directory(directory, part, _PART_TIMEOUT_MS))
        except Exception:  # user code may raise anything
            (left if len(part) > 1 else alone).extend(part)

    step = len(claims) // AT_ONCE + 1
    first, rest = claims[::step], [one for index, one in enumerate(claims) if index % step]
    await map_at_once(ask, [[one] for one in first])
    if len(alone) == len(first) and not works:
        return {}, list(claims), []
    await map_at_once(ask, [rest[start : start + _PART] for start in range(0, len(rest), _PART)])
    again = [*left]
    left.clear()
    await map_at_once(ask, [[one] for one in again])
    return facts, left, alone


async def _ask_directory(
    directory: Directory, claims: Sequence[Claim], timeout_ms: int
) -> Mapping[str, RecipientFacts]:
    returned: object = await call_within(lambda: directory.facts(claims), timeout_ms)
    if not isinstance(returned, Mapping):
        raise TypeError(f"it returned {type(returned).__name__} instead of a mapping")
    return _valid_facts(claims, returned)


async def skip_retries(directory: Directory, batch: Sequence[SettledClaim]) -> Sequence[SettledClaim]:
    """Returns settlements without the retries of pushes whose device is inactive by now.

    Such a notification is skipped at once instead of after its delay. The directory is asked once for the
    whole batch, and only if it contains failed pushes. If the directory fails or takes too long, the retries
    stay, because it is asked again before each attempt.
    """
    pushes = [claim for settlement, claim in batch if is_push_retry(settlement, claim)]
    if not pushes:
        return batch
    try:
        returned: object = await call_within(lambda: directory.facts(pushes), _RETRY_TIMEOUT_MS)
        facts = _valid_facts(pushes, returned) if isinstance(returned, Mapping) else {}
    except Exception as raised:  # user code may raise anything
        error = text_of(raised) or type(raised).__name__
        log.warning("the recipient directory failed, %d retries stay: %s", len(pushes), redact(error))
        return batch
    return [
        (skip_retry(settlement, claim, reason), claim)
        if is_push_retry(settlement, claim) and (reason := facts.get(claim.id, NO_OBJECTION).skip) is not None
        else (settlement, claim)
        for settlement, claim in batch
    ]


def _valid_facts(claims: Sequence[Claim], returned: Mapping[Any, Any]) -> dict[str, RecipientFacts]:
    """Returns the facts that the directory returned for these claims, by notification id.

    Invalid facts are replaced by facts that postpone the notification.
    """
    if not returned:
        return {}
    facts: dict[str, RecipientFacts] = {}
    invalid = 0
    for claim in claims:
        if claim.id in returned:
            found = _plain_facts(returned[claim.id])
            invalid += found is None
            facts[claim.id] = found or RecipientFacts(postpone_ms=_POSTPONE_MS)
    if invalid:
        log.warning("the recipient directory returned invalid facts, %d notifications are postponed", invalid)
    return facts


def _plain_facts(given: object) -> RecipientFacts | None:
    """Returns facts of the directory with values of the declared types, or None if they are invalid.

    A struct does not check its values: a reason may be given by its name, and quiet hours as a mapping.
    """
    if not isinstance(given, RecipientFacts):
        return None
    try:
        facts = msgspec.convert(msgspec.to_builtins(given), RecipientFacts)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return facts if 0 <= facts.postpone_ms <= _MAX_POSTPONE_MS else None


throttle_log = logging.getLogger("homing.pacing")


class SendThrottle:
    """Applies quiet hours and rate limits to claimed batches.

    A batch needs one store call for all recipient limits, one for all tenant limits, and one more if unused
    recipient tokens are returned.
    """

    def __init__(
        self,
        shared: SharedState,
        clock: Clock,
        *,
        quiet_hours: QuietHours,
        paces: RateLimitRules,
        time_zone: tzinfo,
    ) -> None:
        self._tokens = RateTokens(shared, clock)
        self._quiet_hours = quiet_hours
        self._paces = paces
        self._time_zone = time_zone
        self._has_quiet_hours = quiet_hours.window.start_ms != quiet_hours.window.end_ms
        self._has_limits = paces.recipient.limits or paces.tenant.limits

    def quiet(self, claim: Claim, facts: RecipientFacts, now: int) -> RecipientFacts:
        """Returns the facts. During the recipient's quiet hours, `postpone_ms` extends to their end."""
        if facts.quiet_hours is None and not self._has_quiet_hours:
            return facts
        if claim.overdue or self._quiet_hours.exempts(claim):
            return facts
        wait_ms = quiet_ms(facts.quiet_hours or self._quiet_hours.window, self._zone(claim, facts), now)
        if wait_ms <= facts.postpone_ms:
            return facts
        return replace(facts, postpone_ms=wait_ms, postpone_reason=Reason.QUIET_HOURS)

    async def waits(self, claims: Sequence[Claim]) -> Mapping[str, int]:
        """Takes rate limit tokens for the claims.

        Returns the wait in milliseconds of the claims that got no token, by notification id. If the store is
        unavailable, all claims with a limit wait for at least one second.
        """
        waits: dict[str, int] = {}
        if not self._has_limits:
            return waits
        try:
            taken = await self._take(claims, self._paces.recipient, recipient_bucket, waits)
            rest = [claim for claim in claims if claim.id not in waits]
            await self._take(rest, self._paces.tenant, tenant_bucket, waits)
            unused = [claim for claim in rest if claim.id in waits and claim.id in taken]
            await self._return_tokens(unused)
        except StoreError as error:
            throttle_log.warning(
                "cannot check rate limits, the store is unavailable; the notifications are postponed: %s",
                error,
            )
            limited = (c for c in claims if self._paces.recipient.of(c) or self._paces.tenant.of(c))
            return {**dict.fromkeys((claim.id for claim in limited), STORE_PAUSE_MS), **waits}
        return waits

    async def _take(
        self,
        claims: Sequence[Claim],
        pace: RateLimitRule,
        bucket: Callable[[Claim], str],
        waits: dict[str, int],
    ) -> set[str]:
        """Takes a token per claim. Returns the ids of claims that got one, and adds the others to `waits`."""
        asking: dict[str, list[Claim]] = defaultdict(list)
        limits: dict[str, RateLimit] = {}
        for claim in claims:
            if (limit := pace.of(claim)) is not None:
                key = bucket(claim)
                asking[key].append(claim)
                limits[key] = limit
        if not asking:
            return set()
        wants = {key: TokenRequest(limits[key], len(these)) for key, these in asking.items()}
        got: set[str] = set()
        for key, found in (await self._tokens.take_many(wants)).items():
            for claim, wait_ms in zip(asking[key], found, strict=True):
                if wait_ms:
                    waits[claim.id] = wait_ms
                else:
                    got.add(claim.id)
        return got

    async def _return_tokens(self, unused: Sequence[Claim]) -> None:
        """Returns the recipient tokens of claims whose tenant is at its limit."""
        returned: dict[str, tuple[RateLimit, int]] = {}
        for claim in unused:
            limit, key = self._paces.recipient.of(claim), recipient_bucket(claim)
            if limit is not None:
                returned[key] = (limit, returned[key][1] + 1 if key in returned else 1)
        if returned:
            await self._tokens.give_back(returned)

    def _zone(self, claim: Claim, facts: RecipientFacts) -> tzinfo:
        name = facts.time_zone or claim.message.recipient.time_zone
        return (find_zone(name) if name else None) or self._time_zone
