"""Items that a store, a sink or intake refuses for good. Checks invariant 22.

The database refuses rows of a certain type and results with a certain text. A sink refuses the events of some
notifications. The inbox is scripted, because only PostgreSQL has one: its entries are in memory, and an entry
is removed together with the commit of its notification.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.lifecycle.claims import Submission
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind, Status
from homing.core.ports.stores import AcceptedEntry, InboxEntry, InboxEntryKind
from simulation.database import SimulatedDatabase
from simulation.plan import SimulationPlan
from simulation.shadow_state import SimulationState

POISON = "poison"
"""Type of a request that the store refuses, and part of an error text that it refuses."""

INBOX_TENANT = "inbox"
"""Tenant of the inbox. The operator acts on its notifications, too, and resends its dead letters."""

PICKY_SINK = "audit"
"""Name of the sink that refuses some events."""

POISONED_EVENTS = f"sink = '{PICKY_SINK}' AND coalesce(notification_id, '') LIKE '%7'"
"""SQL condition for the events that `is_poisoned_event` describes."""

_TRIGGERS = {
    "homing_notifications": f"NEW.type = '{POISON}' AND NEW.address <> ''",
    "homing_attempts": f"NEW.error LIKE '%{POISON}%'",
}

_LEASE_MS = 30_000


def refuse_poison(database: SimulatedDatabase) -> None:
    """Makes the database refuse poisoned requests and results."""
    for table, condition in _TRIGGERS.items():
        database.connection.execute(
            f"CREATE TEMP TRIGGER poison_{table} BEFORE INSERT ON main.{table} WHEN {condition} "
            "BEGIN SELECT RAISE(ABORT, 'poison'); END"
        )


def poisoned_outcome(outcome: object, id: str) -> object:
    """Returns the outcome of an attempt, with a text that the store refuses for some notifications."""
    if isinstance(outcome, Outcome) and outcome.kind is not OutcomeKind.ACCEPTED and id[-1] in "05a":
        return replace(outcome, error=f"{POISON} {outcome.error}")
    return outcome


def is_poisoned_event(sink: str, event: Event) -> bool:
    """Returns True if the sink refuses the event."""
    return sink == PICKY_SINK and event.notification_id is not None and event.notification_id[-1] == "7"


class _Written(Struct):
    """An entry that the script has written to the inbox."""

    entry: InboxEntry
    poisoned: bool
    leased_until_ms: int = 0


class ScriptedInbox:
    """The inbox of a run. All processes share it."""

    def __init__(self, plan: SimulationPlan, state: SimulationState) -> None:
        self._state = state
        self._waiting: dict[int, _Written] = {}
        self._all: list[_Written] = []
        self._plan = plan
        self._rng = Random(f"{plan.seed}/inbox")

    def write_entries(self, number: int) -> None:
        """Writes entries to the inbox, some of them poisoned."""
        for place in range(number):
            rng = self._rng
            request: dict[str, object] = {
                "channel": self._plan.channels[0].value,
                "type": "order",
                "recipient": {
                    "email": f"inbox-{place}@example.org",
                    "phone": f"+1556{place:07d}",
                    "deviceToken": f"inbox-token-{place}",
                    "url": f"https://host.example.org/inbox/{place}",
                },
                "content": {"title": "Hello", "body": f"inbox {place}"},
            }
            kind = rng.choice(("good", "good", "refused", "deep", "unreadable"))
            if kind == "refused":
                request["type"] = POISON
            text = msgspec.json.encode(request).decode()
            if kind == "deep":
                text = text[:-1] + f', "data": {"[" * 1500}{"]" * 1500}}}'
            elif kind == "unreadable":
                text = text[:-1]
            id = f"{rng.getrandbits(48):012x}"
            entry = InboxEntry(
                number=place,
                kind=InboxEntryKind.SEND,
                tenant=INBOX_TENANT,
                id=f"01940000-0000-7000-8000-{id}",
                request=text,
            )
            written = _Written(entry, poisoned=kind != "good")
            self._waiting[place] = written
            self._all.append(written)

    @property
    def waiting(self) -> int:
        """Number of entries that are not processed yet."""
        return len(self._waiting)

    def take(self, limit: int, now_ms: int) -> tuple[InboxEntry, ...]:
        free = [one for one in self._waiting.values() if one.leased_until_ms <= now_ms][:limit]
        for one in free:
            one.leased_until_ms = now_ms + _LEASE_MS
        return tuple(one.entry for one in free)

    def submissions(self, batch: Sequence[AcceptedEntry]) -> list[Submission]:
        """Returns the submissions of the entries that still exist."""
        return [one.submission for one in batch if one.entry.number in self._waiting]

    def remove(self, entries: Sequence[InboxEntry]) -> None:
        for entry in entries:
            self._waiting.pop(entry.number, None)

    def finish(self, database: SimulatedDatabase, removed: Sequence[str]) -> None:
        """Checks, after the run, what has become of the entries (invariant 22)."""
        for one in self._all:
            id, stored = one.entry.id, database.find_row(one.entry.id)
            if id in removed:
                continue
            if stored is None:
                self._state.violate("22", f"inbox entry {one.entry.number} is neither stored nor waits", id)
            refused = stored.status is Status.FAILED and stored.attempts == 0 and stored.provider == ""
            if refused is not one.poisoned:
                kind = "a poisoned" if one.poisoned else "a valid"
                self._state.violate("22", f"{kind} inbox entry became {stored.status}", id)
