"""Idempotency keys and dedup keys of the memory store."""

from __future__ import annotations

from collections import deque

from homing.core.lifecycle.claims import Acceptance, NewNotification, Submission


class MemoryKeys:
    """Idempotency keys with their results, and dedup keys with their notifications."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[str, Acceptance]] = {}
        """Maps (tenant, idempotency key) to (fingerprint, result)."""
        self._dedups: dict[tuple[str, str], tuple[int, str]] = {}
        """Maps (tenant, dedup key) to (accepted at, id)."""
        self._by_age: deque[tuple[int, tuple[str, str], bool]] = deque()
        """(created at, key, True for a dedup key) of every key, the oldest first."""

    def __len__(self) -> int:
        return len(self._answers) + len(self._dedups)

    def answer(self, submission: Submission) -> Acceptance | None:
        """Returns the earlier result for the submission's idempotency key, or None if there is none.

        The result reports a conflict if the earlier request was a different one.
        """
        if submission.idempotency_key is None:
            return None
        earlier = self._answers.get((submission.tenant, submission.idempotency_key))
        if earlier is None:
            return None
        fingerprint, answer = earlier
        if fingerprint != submission.fingerprint:
            return Acceptance(batch_id=answer.batch_id, ids=(), conflict=True)
        return answer

    def answered(self, submission: Submission, ids: tuple[str, ...], now: int) -> None:
        """Records the result for the key of a stored submission."""
        if submission.idempotency_key is not None:
            key = (submission.tenant, submission.idempotency_key)
            again = Acceptance(batch_id=submission.batch_id, ids=ids, duplicates=frozenset(ids))
            self._answers[key] = (submission.fingerprint, again)
            self._by_age.append((now, key, False))

    def double(self, new: NewNotification, tenant: str, now: int) -> str | None:
        """Returns the id of the notification that this one duplicates, if its dedup window is still open."""
        if new.dedup_key is None:
            return None
        earlier = self._dedups.get((tenant, new.dedup_key))
        return earlier[1] if earlier is not None and now < earlier[0] + new.dedup_window_ms else None

    def stored(self, new: NewNotification, tenant: str, now: int) -> None:
        """Starts the dedup window of a stored notification."""
        if new.dedup_key is not None:
            key = (tenant, new.dedup_key)
            self._dedups[key] = (now, new.id)
            self._by_age.append((now, key, True))

    def prune(self, until: int, limit: int) -> int:
        """Removes at most `limit` keys created at or before `until`, and returns their number."""
        number = 0
        while number < limit and self._by_age and self._by_age[0][0] <= until:
            created_at, key, dedup = self._by_age.popleft()
            if not dedup:
                del self._answers[key]
            elif self._dedups.get(key, (-1,))[0] == created_at:
                del self._dedups[key]
            else:
                continue  # the key has been used again since
            number += 1
        return number
