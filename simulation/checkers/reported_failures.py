"""Checks what follows a reported failure, by its class and the policy (invariants 8 and 9).

The rules are implemented a second time here, from the specification. The class and the wait of a failure are
read from the error code that the simulated provider made, not from the engine's interpretation.
"""

from __future__ import annotations

from homing.core.lifecycle.receipts import Receipt
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.notifications import Channel, Mode, OutcomeKind, Status
from homing.core.routing.failover import Spent
from simulation.shadow_state import BounceRules, ProviderWait, ShadowState, SimulationState

_DAY_MS = 86_400_000

_RECIPIENT_FAULTS = (OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT)


Problem = tuple[str, str]
"""A violated rule: (invariant, description)."""


def bounce_code(kind: OutcomeKind | None, wait_ms: int) -> str:
    """Returns the error code of a reported failure.

    The code consists of the class, or `unknown` if there is none, and of the wait in milliseconds.
    """
    return f"{kind.value if kind else 'unknown'}/{wait_ms}"


def read_code(code: str) -> tuple[OutcomeKind | None, int]:
    """Returns the class and the wait in milliseconds from an error code. The wait is at most a day."""
    kind, _, wait_ms = code.partition("/")
    return None if kind == "unknown" else OutcomeKind(kind), min(int(wait_ms), _DAY_MS)


class BounceChecker:
    """Checks every receipt that reports a failure."""

    def __init__(self, state: SimulationState, routes: dict[Channel, tuple[str, ...]]) -> None:
        self._state = state
        self._routes = routes

    def bounced(self, shadow: ShadowState, row: Row, cause: CauseRecord, receipt: Receipt | None) -> None:
        """Checks a reported failure that was applied. `shadow` still has the state before it.

        `receipt` is the receipt that reported it, or None if it was kept until a settlement.
        """
        may_be_earlier = _may_be_earlier(shadow, receipt)
        kind, wait_ms = read_code(cause.why)
        if (row.status, row.provider, row.due_at) == (shadow.status, shadow.provider, shadow.due_at):
            # An earlier message, or a retry that already goes to another provider: at most a hold.
            shadow.unknown_maybe |= kind is None
            return
        whole = self._routes[shadow.channel]
        # Which process handled the receipt is not known here, and one may lack providers.
        routes = {whole, tuple(one for one in whole if one not in self._state.plan.lacking)}
        problems = [
            self._problem(shadow, row, cause.who, kind, wait_ms, by, route, may_be_earlier)
            for by in shadow.bounces
            for route in sorted(routes, key=len, reverse=True)
        ]
        if problems and all(problems):
            assert problems[0] is not None, "checked just now"
            self._state.violate(*problems[0], shadow.id)
        if row.status is not Status.RETRYING:
            return
        if may_be_earlier:
            shadow.unknown_maybe |= kind is None
        else:
            shadow.unknown_bounces += kind is None
        shortest_ms = min((by.shortest_ms for by in shadow.bounces), default=0)
        shadow.left_alone[cause.who] = ProviderWait(
            self._state.ms + wait_ms,
            self._state.ms + max(shortest_ms, wait_ms),
            tuple(by.policy for by in shadow.bounces),
        )

    def _problem(
        self,
        shadow: ShadowState,
        row: Row,
        here: str,
        kind: OutcomeKind | None,
        wait_ms: int,
        by: BounceRules,
        route: tuple[str, ...],
        may_be_earlier: bool,
    ) -> Problem | None:
        others = [one for one in route if one != here and one not in shadow.refused_by]
        if shadow.pinned:
            others = []
        final = (
            kind is OutcomeKind.BAD_CONTENT
            or (kind in _RECIPIENT_FAULTS and not by.always)
            or (kind is OutcomeKind.PROVIDER_FAULT and not others)
            or (kind is None and shadow.unknown_bounces > 0)
            or shadow.mode is Mode.SYNCHRONOUS
        )
        named = kind.value if kind else "an unknown failure"
        if final:
            if row.status is Status.FAILED:
                return None
            if not may_be_earlier:
                return ("9", f"{named} was reported by {here}, but the notification is {row.status}")
        if kind is None and shadow.unknown_maybe and row.status is Status.FAILED:
            return None
        if row.status is not Status.RETRYING:
            return ("9", f"{named} was reported by {here}, but the notification is {row.status}, not retried")
        return self._wait_problem(shadow, row, here, others, kind, wait_ms, by, may_be_earlier)

    def _wait_problem(
        self,
        shadow: ShadowState,
        row: Row,
        here: str,
        others: list[str],
        kind: OutcomeKind | None,
        wait_ms: int,
        by: BounceRules,
        may_be_earlier: bool,
    ) -> Problem | None:
        assert row.due_at is not None, "it waits"
        now, due_ms = self._state.now, row.due_at - self._state.now
        if wait_ms and row.holds.get(here, 0) < now + wait_ms:
            return ("8", f"{here} has no hold of {wait_ms} ms after a reported failure")
        made = shadow.moves - shadow.free_move
        free = [one for one in others if one not in shadow.spent and shadow.holds.get(one, 0) <= now]
        if free and not (due_ms and may_be_earlier):
            if row.provider not in free or due_ms:
                return ("9", f"due at {row.provider} in {due_ms} ms, although {free[0]} is available")
            if here not in row.spent or not row.free_move or row.moves != made + 1:
                return ("9", f"moved with {row.spent} spent and {row.moves} moves after {made}")
            return None
        kept = {one: why for one, why in shadow.spent.items() if why == Spent.REFUSED}
        if row.spent != kept or row.free_move or row.moves != made:
            return ("9", f"a new round begins with {row.spent} spent and {row.moves} moves")
        if row.provider == here and kind is OutcomeKind.PROVIDER_FAULT and others:
            return ("9", f"{here} reported its own fault, but is tried again")
        if row.provider != here and row.provider not in others:
            return ("9", f"moved after a reported failure to {row.provider}, which is not on its route")
        held_ms = wait_ms if row.provider == here else max(0, shadow.holds.get(row.provider, 0) - now)
        shortest_ms = max(by.shortest_ms, held_ms)
        longest_ms = shortest_ms + by.longest_ms - by.shortest_ms
        if not shortest_ms <= due_ms <= longest_ms:
            where = f"due again at {row.provider} in {due_ms} ms"
            return ("8", f"{where}, not within {shortest_ms}–{longest_ms}")
        return None


def _may_be_earlier(shadow: ShadowState, receipt: Receipt | None) -> bool:
    """Returns True if a report may be about an earlier message than that of the last attempt.

    The class of such a failure does not decide, but that of the newest message, which has failed already.
    """
    if receipt is not None and (numbers := _known_attempts(shadow, receipt)):
        return shadow.attempts not in numbers
    return any(number != shadow.attempts for number in shadow.unsure)


def _known_attempts(shadow: ShadowState, receipt: Receipt) -> set[int]:
    """Returns the numbers of the attempts that a receipt is about, if it names one or its message is known.

    The id of a message is known if the provider's answer had it and the answer was settled.
    """
    message = (receipt.provider, receipt.provider_message_id)
    numbers = {
        number
        for number, call in shadow.calls.items()
        if call.outcome is not None
        and number not in shadow.unsure
        and (call.provider, call.outcome.provider_message_id) == message
    }
    if receipt.notification_id is not None and receipt.attempt:
        numbers.add(receipt.attempt)
    return numbers
