"""Checks which time the store uses after its clock was set (invariant 21)."""

from __future__ import annotations

from typing import NamedTuple

from homing.core.clock_steps import ACCEPTED_AFTER_MS, MAX_BELIEVED_STEP_MS, SETTLING_MS, VOID_AFTER_MS
from homing.core.lifecycle.rows import Row
from homing.core.notifications import Status
from simulation.shadow_state import ShadowState, SimulationState

_ORDINARY_LEASE_MS = 40_000
"""Longest timeout of a delivery mode plus the margin."""

GRACE_MS = 240_000
"""Longest time that a lease from before the clock was set back may stay once there are no more faults."""

_TOLERANCE_MS = MAX_BELIEVED_STEP_MS + 10


class _BeforeUnseen(NamedTuple):
    """What was known before a large jump of the clock that no process can have recorded or believed yet."""

    clock_ms: int
    """What the clock showed, minus the time since the start of the run."""
    jumped_ms: int | None
    is_recorded: bool
    is_excused: bool


class ClockChecker:
    """Compares the time of every transaction with that of the transaction before it."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._offset_ms: int | None = None
        """The store's time minus the time since the start of the run, in the last transaction."""
        self._jumped_ms: int | None = None
        """Time since the start of the run at which the clock was last set by more than processes believe."""
        self._used_ms: dict[str, int] = {}
        """Process → time since the start of the run of its last transaction."""
        self._is_recorded = False
        """True if a process that knows the time from before the last large jump has written since."""
        self._is_excused = False
        """True if a process could not know of the last large jump, and believed the clock."""
        self._disagreed_ms = -(10**9)
        """Time since the start of the run at which processes that could not know of a jump last disagreed."""
        self._first_ms: dict[str, int] = {}
        """Process → time since the start of the run of its first transaction, or of the first one after it
        has not used the store for so long that it does not know what to expect."""
        self._offsets_ms: dict[str, int] = {}
        """Process → the store's time minus the time since the start of the run, in its last transaction."""
        self._before_unseen: _BeforeUnseen | None = None
        """Set while no process can have recorded or believed the last large jump."""
        self._small_jumps_ms = 0
        """Sum of the jumps that are small enough to be believed."""
        self._small_jumps_known_ms: dict[str, int] = {}
        """Process → that sum in its last transaction."""

    def jumped(self, by_ms: int) -> None:
        """Records that the clock was set.

        If it shows the same time as before a large jump that no process has seen, nothing has happened for
        them. Processes that could not know of a jump are still excused after the next one if they disagree.
        """
        if abs(by_ms) <= MAX_BELIEVED_STEP_MS:
            self._small_jumps_ms += by_ms
            return
        state = self._state
        clock_ms = state.clock.now_ms() - state.ms
        before = self._before_unseen or _BeforeUnseen(
            clock_ms - by_ms, self._jumped_ms, self._is_recorded, self._is_excused
        )
        if abs(clock_ms - before.clock_ms) <= MAX_BELIEVED_STEP_MS:
            self._jumped_ms = before.jumped_ms
            self._is_recorded, self._is_excused = before.is_recorded, before.is_excused
            self._before_unseen = None
            return
        self._jumped_ms, self._before_unseen = state.ms, before
        self._is_recorded, self._is_excused = False, self._is_excused and self._do_disagree()

    def restarted(self) -> None:
        """Records that the clock was set while no process ran, so that none can know of it."""
        self._disagreed_ms = self._state.ms
        self._used_ms.clear()
        self._offsets_ms.clear()
        self._before_unseen = None

    def used(self, process: str, now: int, *, writable: bool) -> None:
        """Checks the time of a transaction."""
        state, now_ms = self._state, self._state.ms
        last_ms = max(self._used_ms.values(), default=-(10**9))
        knows = now_ms - self._used_ms.get(process, -(10**9)) <= VOID_AFTER_MS
        state.shift_ms = now - state.clock.now_ms()
        step_ms = 0 if self._offset_ms is None else now - now_ms - self._offset_ms
        jumped_ms = self._jumped_ms
        if not knows:
            self._first_ms[process] = now_ms
        if writable or not knows:
            self._before_unseen = None
        if jumped_ms is not None and self._is_excused and abs(step_ms) > _TOLERANCE_MS:
            self._disagreed_ms = now_ms
        if jumped_ms is not None and abs(step_ms) > _TOLERANCE_MS:
            since_ms = now_ms - jumped_ms
            if since_ms >= ACCEPTED_AFTER_MS - 20_000:  # small jumps may shorten it
                state.accepted_ms = now_ms
                state.jumps += 1
                state.last_jump_ms = now_ms
            elif self._is_excused:
                if self._has_given_in(process):
                    state.violate("21", f"{process} believes a jump after {since_ms} ms, as another one does")
            elif self._has_missed_small_jumps(process, step_ms):
                self._is_excused = True
                self._disagreed_ms = self._jumped_ms = now_ms  # the ten minutes begin again
            elif knows or (self._is_recorded and now_ms - last_ms <= VOID_AFTER_MS):
                state.violate("21", f"{process} believes a jump of {step_ms} ms after {since_ms} ms")
            else:
                self._is_excused = True
                self._disagreed_ms = now_ms
        is_steady = jumped_ms is None or now_ms - jumped_ms > ACCEPTED_AFTER_MS + VOID_AFTER_MS
        if is_steady and abs(state.shift_ms) > _TOLERANCE_MS:
            state.violate("21", f"{process} still does not believe a time that went on for ten minutes")
        self._offset_ms = self._offsets_ms[process] = now - now_ms
        self._is_recorded = self._is_recorded or (writable and knows)
        self._used_ms[process] = now_ms
        self._small_jumps_known_ms[process] = self._small_jumps_ms

    def check_progress(self) -> None:
        """Checks that no lease from before the clock was set back stays for long without faults."""
        state = self._state
        if state.quiet_since_ms is None:
            return
        now_ms, latest = state.ms, state.now + MAX_BELIEVED_STEP_MS
        for shadow in state.shadows.values():
            if shadow.status is not Status.SENDING or shadow.leased_at <= latest:
                continue
            leased_ms = now_ms - max(shadow.leased_ms, state.quiet_since_ms)
            if leased_ms > GRACE_MS:
                state.violate("21", f"still leased {leased_ms} ms after the clock was set back", shadow.id)

    def settled(self, shadow: ShadowState, row: Row, *, attempted: bool) -> None:
        """Checks that a notification expires without an attempt only at its time, by the store's clock."""
        state = self._state
        if attempted or shadow.overdue or row.status is not Status.EXPIRED:
            return  # an overdue row may have reached its maximum age instead
        left_ms = (shadow.expires_at or state.now) - state.now
        if left_ms > 0 and state.jumps == shadow.jumps_at_lease:
            state.violate("21", f"expired {left_ms} ms early", shadow.id)

    def leased(self, shadow: ShadowState, lease_ms: int) -> None:
        """Checks that a claim is not leased for longer than an ordinary attempt needs."""
        ordinary_ms = self._state.plan.lease_ms or _ORDINARY_LEASE_MS
        if lease_ms > ordinary_ms:
            text = f"claimed for {lease_ms} ms, so that a crash delays it more than {ordinary_ms} ms"
            self._state.violate("21", text, shadow.id)

    def reclaimed(self, shadow: ShadowState) -> None:
        """Checks that a lease which was taken over has ended by the time that passed, not by the clock.

        A lease is excused if it was written before processes believed a new time, once they have had the time
        to renew it, or while processes disagreed because one could not know of a jump.
        """
        state = self._state
        left_ms = shadow.lease_ends_ms - state.ms
        small_jumps_ms = (state.jumps - shadow.jumps_at_lease) * MAX_BELIEVED_STEP_MS
        if left_ms <= _TOLERANCE_MS + small_jumps_ms or shadow.lease_written_ms <= self._disagreed_ms:
            return
        is_settled = state.ms - state.accepted_ms > SETTLING_MS - 1_000
        if is_settled and shadow.lease_written_ms <= state.accepted_ms:
            return
        state.violate("21", f"reclaimed {left_ms} ms before the end of its lease", shadow.id)

    def _has_missed_small_jumps(self, process: str, step_ms: int) -> bool:
        """Returns True if a process goes on by its own time after several small jumps that it has not seen.

        Others have believed one after the other. Their sum is too large to be believed.
        """
        known_ms = self._small_jumps_known_ms.get(process, self._small_jumps_ms)
        missed_ms = self._small_jumps_ms - known_ms
        return abs(missed_ms) > MAX_BELIEVED_STEP_MS and abs(step_ms + missed_ms) <= _TOLERANCE_MS

    def _do_disagree(self) -> bool:
        """Returns True if the last transactions of two processes that have not ended used different times."""
        offsets_ms = [at for process, at in self._offsets_ms.items() if process not in self._state.dead]
        return max(offsets_ms, default=0) - min(offsets_ms, default=0) > _TOLERANCE_MS

    def _has_given_in(self, process: str) -> bool:
        """Returns True if a process that knew the time from before the jump now believes the clock.

        A process that has just started, or resumed, may have read a record that another one removed since.
        """
        state = self._state
        if process not in self._offsets_ms or state.ms - self._first_ms[process] <= VOID_AFTER_MS:
            return False
        has_changed = abs(self._offsets_ms[process] - (state.now - state.ms)) > _TOLERANCE_MS
        return has_changed and abs(state.shift_ms) <= _TOLERANCE_MS
