"""What the memory store answers a second time instead of storing it: request keys and dedup keys."""

from __future__ import annotations

from collections import deque

from homing.core.model import Acceptance, NewNotification, Submission


class Keys:
    """Idempotency keys with what they were answered, and dedup keys with whom they stand for."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], tuple[str, Acceptance]] = {}
        """(tenant, idempotency key) → (fingerprint, what to answer again)."""
        self._dedups: dict[tuple[str, str], tuple[int, str]] = {}
        """(tenant, dedup key) → (accepted at, id)."""
        self._by_age: deque[tuple[int, tuple[str, str], bool]] = deque()
        """(created at, key, whether it is a dedup key)."""

    def __len__(self) -> int:
        return len(self._answers) + len(self._dedups)

    def answer(self, submission: Submission) -> Acceptance | None:
        """What its key was answered before; another body under the same key is a conflict."""
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
        """The submission was stored: its key stands for these ids from now on."""
        if submission.idempotency_key is not None:
            key = (submission.tenant, submission.idempotency_key)
            again = Acceptance(batch_id=submission.batch_id, ids=ids, duplicates=frozenset(ids))
            self._answers[key] = (submission.fingerprint, again)
            self._by_age.append((now, key, False))

    def double(self, new: NewNotification, tenant: str, now: int) -> str | None:
        """The id of the notification that this one would double, where its window is still open."""
        if new.dedup_key is None:
            return None
        earlier = self._dedups.get((tenant, new.dedup_key))
        return earlier[1] if earlier is not None and now < earlier[0] + new.dedup_window_ms else None

    def stored(self, new: NewNotification, tenant: str, now: int) -> None:
        """The notification was stored: a window begins."""
        if new.dedup_key is not None:
            key = (tenant, new.dedup_key)
            self._dedups[key] = (now, new.id)
            self._by_age.append((now, key, True))

    def prune(self, until: int, limit: int) -> int:
        """Forgets at most `limit` keys that were made up to then."""
        number = 0
        while number < limit and self._by_age and self._by_age[0][0] <= until:
            created_at, key, dedup = self._by_age.popleft()
            if not dedup:
                del self._answers[key]
            elif self._dedups.get(key, (-1,))[0] == created_at:
                del self._dedups[key]
            else:
                continue  # accepted anew since
            number += 1
        return number
