"""Decides which notifications of a submission are new, from what a store has read before."""

from __future__ import annotations

from abc import ABC, abstractmethod

from homing.core.lifecycle.claims import (
    Acceptance,
    Claim,
    NewNotification,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.rows import claim_of, new_row
from homing.stores.common.repeated_requests import earlier_id, is_stored, may_be_partly_stored


class SubmissionIntake(ABC):
    """State of one accept call: the stored requests and ids that were read, and what will be written."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.requests: dict[RequestKey, StoredRequest] = {}
        self.dedups: dict[RequestKey, tuple[str, int]] = {}
        """Dedup key → (id, time of acceptance) of what is stored under it."""
        self.stored: dict[str, tuple[str, str]] = {}
        """Id → (tenant, batch id) of what is stored already."""
        self.new_dedups: dict[RequestKey, tuple[str, int, int]] = {}
        """Dedup key → (id, time of acceptance, end of the dedup window)."""

    def accept(self, submission: Submission) -> Acceptance:
        """Collects what has to be stored of a submission, and returns the answer for its caller."""
        key = (submission.tenant, submission.idempotency_key or "")
        if submission.idempotency_key is not None and key in self.requests:
            return self.requests[key].answer(submission.fingerprint)
        repeated = self._repeated(submission)
        ids: list[str] = []
        duplicates: set[str] = set()
        claims: list[Claim] = []
        for new in submission.notifications:
            earlier = new.id if repeated else None
            if not repeated and (new.dedup_key is not None or self.stored):
                earlier = earlier_id(submission, new, self.stored, self.dedups, self.now)
            ids.append(earlier or new.id)
            if earlier is not None:
                duplicates.add(earlier)
                continue
            self.add_row(submission, new)
            if new.dedup_key is not None:
                dedup = (submission.tenant, new.dedup_key)
                self.dedups[dedup] = (new.id, self.now)
                self.new_dedups[dedup] = (new.id, self.now, self.now + new.dedup_window_ms)
            if submission.lease_to is not None:
                row = new_row(new, submission, self.now).row
                claims.append(claim_of(row, new.message, row.aged_from))
        if submission.idempotency_key is not None:
            request = StoredRequest(submission.fingerprint, submission.batch_id, tuple(ids))
            self.requests[key] = request
            self.add_request(key, request)
        if not duplicates and not claims:
            return Acceptance(submission.batch_id, tuple(ids))  # the usual case shares one empty set
        return Acceptance(
            submission.batch_id, tuple(ids), duplicates=frozenset(duplicates), claims=tuple(claims)
        )

    @abstractmethod
    def add_row(self, submission: Submission, new: NewNotification) -> None:
        """Adds a new notification to what will be written."""

    @abstractmethod
    def add_request(self, key: RequestKey, request: StoredRequest) -> None:
        """Adds the answer under a new idempotency key to what will be written."""

    def _repeated(self, submission: Submission) -> bool:
        """Returns True if the first id shows that the whole submission is stored already.

        Returns False for a submission with dedup keys, whose ids must be checked one by one.
        """
        if not self.stored or not submission.notifications or may_be_partly_stored(submission):
            return False
        return is_stored(submission, submission.notifications[0], self.stored)
