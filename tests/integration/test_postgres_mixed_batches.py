"""New rows of many kinds in one batch: each is stored correctly, whatever it has in common with others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.notifications import Content
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.accept import known_requests
from homing.testing.builders import HOUR_MS, a_message, a_notification, a_submission
from support.postgres_servers import opened


async def _stored_as_given(store: PostgresStore, batch: Sequence[Submission]) -> None:
    answers = await store.accept(batch)
    assert [answer.ids for answer in answers] == [(s.notifications[0].id,) for s in batch]
    for submission in batch:
        new = submission.notifications[0]
        history = await store.get(submission.tenant, new.id)
        assert history is not None
        found = history.notification
        assert (found.batch_id, found.type, found.origin) == (submission.batch_id, new.type, new.origin)
        assert (found.provider, found.pinned) == (new.provider, new.pinned)
        assert (found.max_attempts, found.attempts_before) == (new.max_attempts, new.attempts_before)
        assert (found.last_error, found.content) == (new.last_error, new.message.content)
        assert (found.send_at is None) == (new.send_at is None)


async def test_only_what_is_stored_under_the_given_keys_is_read(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        keyed = [a_submission(key=key) for key in ("one", "two")]
        await store.accept(keyed)
        wanted = {("default", "one"), ("default", "none")}
        found = await store._read(lambda tx: known_requests(tx, wanted))
        assert {key: stored.batch_id for key, stored in found.items()} == {
            ("default", "one"): keyed[0].batch_id
        }


def _one(fields: dict[str, Any]) -> NewNotification:
    return replace(a_notification(), **fields)


KINDS: list[dict[str, Any]] = [
    {},
    {"type": "otp"},
    {"origin": "shop"},
    {"provider": "other", "outlet": "other@host", "pinned": True},
    {"send_at": 2_000_000_000_000},
    {"attempts_before": 2, "delay_ms": HOUR_MS, "last_error": "two\nlines", "max_attempts": 7},
    {"attempts_before": 1, "delay_ms": HOUR_MS},
    {"expires_at": 2_000_000_000_000},
    {"address": "two\nlines"},
    {"address": ""},
]


@pytest.mark.parametrize("number", [1, 2, 5, 10, 40])
async def test_rows_of_different_kinds_are_stored_correctly(store: PostgresStore, number: int) -> None:
    batch = [a_submission(_one(KINDS[n % len(KINDS)])) for n in range(number)]
    await _stored_as_given(store, batch)


@pytest.mark.parametrize("kind", range(len(KINDS)))
async def test_rows_of_one_kind_are_stored_correctly(store: PostgresStore, kind: int) -> None:
    await _stored_as_given(store, [a_submission(_one(KINDS[kind])) for _ in range(9)])


async def test_rows_of_several_tenants_are_stored_correctly(store: PostgresStore) -> None:
    await _stored_as_given(store, [a_submission(tenant=f"t{n % 3}") for n in range(20)])


async def test_messages_with_every_kind_of_line_end_are_kept_apart(store: PostgresStore) -> None:
    texts = ["a\nb", "a\r\nb", "\x85", "\u2028", "\\n", "", "Grüße 🐦", '"quoted"\t']
    said = [replace(a_message(), content=Content(body=f"x{text}")) for text in texts]
    await _stored_as_given(store, [a_submission(_one({"message": one})) for one in said])


async def test_rows_due_at_the_same_time_are_claimed_in_the_order_of_their_ids(store: PostgresStore) -> None:
    given: list[NewNotification] = [a_notification(type=f"t{n % 2}") for n in range(30)]
    await store.accept([a_submission(new) for new in reversed(given)])
    page = await store.waiting("default", limit=30)
    assert [one.id for one in page.items] == sorted(new.id for new in given)
    assert all(re.fullmatch("t[01]", one.type) for one in page.items)
