"""Reads, commands, receipts and upkeep read few pages, however much data there is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Channel, Filter, Reason, Status
from homing.core.ports.stores import Backend, Retention
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.address import in_schema
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import a_receipt

ROWS = 120_000
MOST = 4_000
"""Pages that one statement may read: a few for each of some hundred rows. The messages alone have 6,600."""

# One of 200 is dead, one of 300 waits for a retry, one of 200 for its first attempt; all others were sent.
_FILL = f"""
INSERT INTO homing.queues (lane, tenant, outlet) VALUES
  ('standard.email', 'default', 'sendgrid'), ('standard.email', 'other', 'sendgrid');
CREATE TEMPORARY TABLE made AS
SELECT n AS seq, lpad(to_hex(1700000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0') AS hex,
  CASE WHEN n % 10 = 0 THEN 'other' ELSE 'default' END AS tenant,
  CASE WHEN n % 201 = 0 THEN 'failed' WHEN n % 301 = 1 THEN 'retrying' WHEN n % 200 = 2 THEN 'pending'
    ELSE 'sent' END AS status, 1700000000000 + n AS at
FROM generate_series(1, {ROWS}) AS n;
INSERT INTO homing.messages (seq, id, created_at, tenant, batch_id, channel, mode, type, category, priority,
  origin, address, message)
SELECT seq, hex::uuid, at, tenant, 'b-' || seq / 20, 'email', 'standard', 'order', 'general', 'medium',
  'test', 'ada@example.org', '{{"recipient":{{}},"content":{{"body":"' || repeat('x', 200)
    || '"}},"metadata":{{"order":"' || seq || '"}}}}'
FROM made;
INSERT INTO homing.live (seq, updated_at, aged_from, max_age_ms, queue, tenant, status, provider, due_at,
  deadline_at, last_attempt_at)
SELECT seq, at, at, 1, 1 + (tenant = 'other')::integer, tenant, status, 'sendgrid', at, at, at
FROM made WHERE status IN ('pending', 'retrying');
INSERT INTO homing.settled (seq, updated_at, aged_from, max_age_ms, queue, tenant, status, provider,
  failed_at, error_code, reason, attempts)
SELECT seq, at, at, 1, 1 + (tenant = 'other')::integer, tenant, status, 'sendgrid', at, '550',
  'BAD_RECIPIENT', 1
FROM made WHERE status NOT IN ('pending', 'retrying');
INSERT INTO homing.attempts (seq, change, number, provider, outcome, started_at, latency_ms, worker,
  provider_message_id)
SELECT seq, 1, 1, 'sendgrid', 'accepted', at, 10, 'w', 'm-' || seq FROM made WHERE status = 'sent';
INSERT INTO homing.receipts (received_at, provider, event_id, provider_message_id, kept)
SELECT at, 'sendgrid', 'e-' || seq, 'm-' || seq, NULL FROM made;
INSERT INTO homing.sink_events (at, sink, id, name, tenant, payload)
SELECT at, 'sink', hex, 'Alert', tenant, '{{}}' FROM made;
INSERT INTO homing.registry (updated_at, version, tenant, kind, key, value, updated_by)
SELECT 1, 1, tenant, 'device', hex, '{{}}', 'test' FROM made;
INSERT INTO homing.requests (created_at, tenant, idempotency_key, fingerprint, batch_id, ids)
SELECT at, tenant, hex, '', 'b', '{{}}' FROM made;
INSERT INTO homing.tallies (tenant, status, attempts, count)
SELECT tenant, status, 1, count(*) FROM made GROUP BY tenant, status;
DROP TABLE made;
"""
_ALL_TABLES = (
    "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class"
    " WHERE relnamespace = 'homing'::regnamespace AND relkind = 'r'"
)


def the_id(seq: int) -> str:
    head, tail = f"{1_700_000_000_000 + seq:012x}", f"{seq:012x}"
    return f"{head[:8]}-{head[8:]}-7000-8000-{tail}"


def listed(**fields: Any) -> Callable[[Backend], Awaitable[Any]]:
    return lambda store: store.list("default", Filter(**fields), limit=50)


def commanded(name: CommandName, **fields: Any) -> Callable[[Backend], Awaitable[Any]]:
    order = Command(name=name, who="ada")
    return lambda store: store.amend("default", Filter(**fields), order, limit=100)


CALLS: dict[str, Callable[[Backend], Awaitable[Any]]] = {
    "get": lambda store: store.get("default", the_id(77_777)),
    "list": listed(),
    "list, far back": lambda store: store.list("default", Filter(), limit=50, cursor=the_id(1_000)),
    "list, sent": listed(statuses=(Status.SENT,)),
    "list, failed": listed(statuses=(Status.FAILED,)),
    "list, failed and expired": listed(statuses=(Status.FAILED, Status.EXPIRED)),
    "list, failed for a reason": listed(statuses=(Status.FAILED,), reason=Reason.BAD_RECIPIENT),
    "list, pending": listed(statuses=(Status.PENDING,)),
    "list, retrying": listed(statuses=(Status.RETRYING,)),
    "list, sending: none": listed(statuses=(Status.SENDING,)),
    "list, of a batch": listed(batch_id="b-4000"),
    "list, of a channel": listed(channel=Channel.EMAIL),
    "list, by declared metadata": lambda store: store.list(
        "default", Filter(metadata={"order": "1234"}), scan=10
    ),
    "retries, by last attempt": lambda store: store.retrying("default"),
    "waiting, in groups": lambda store: store.waiting_groups("default", step_ms=60_000, limit=500),
    "waiting": lambda store: store.waiting("default"),
    "waiting, due": lambda store: store.waiting("default", ready=True),
    "due, by status": lambda store: store.count_due("default"),
    "tallies": lambda store: store.tallies("default"),
    "error groups": lambda store: store.error_groups("default"),
    "roll-ups": lambda store: store.roll_ups("default", since_ms=3_600_000),
    "oldest retry": lambda store: store.oldest_retry_at("default"),
    "oldest retry of all": lambda store: store.oldest_retry_at(None),
    "tenants": lambda store: store.tenants(),
    "silent": lambda store: store.silent(Status.SENT, ["sendgrid"], after=0, until=2**50, limit=100),
    "registry, a page": lambda store: store.list_entries("default", "device", prefix="018", limit=100),
    "registry, some": lambda store: store.get_many("default", "device", [f"{n:032x}" for n in range(50)]),
    "a receipt": lambda store: store.receipt([a_receipt("m-77777"), a_receipt("m-unknown")]),
    "a receipt that names its notification": lambda store: store.receipt(
        [a_receipt("m-77779", notification_id=the_id(77_779), attempt=1)]
    ),
    "cancel by ids": lambda store: store.amend(
        "default", [the_id(102), the_id(202)], Command(name=CommandName.CANCEL, who="ada")
    ),
    "acknowledge what failed": commanded(CommandName.ACKNOWLEDGE, statuses=(Status.FAILED,)),
    "retry of a batch": commanded(CommandName.RETRY, batch_id="b-500"),
    "outbox": lambda store: store.outbox("sink", "relay", 100, 60_000),
    "prune": lambda store: store.prune(Retention(delivered_ms=0, sent_ms=0, others_ms=0, keys_ms=0), 100),
}


class Meter:
    """Lets the server explain each statement of a call, and keeps the most expensive one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dearest = (0, "")
        for name in ("rows", "run"):
            monkeypatch.setattr(PostgresTransaction, name, self._measured(getattr(PostgresTransaction, name)))

    def _measured(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def measured(tx: PostgresTransaction, sql: str, *parameters: Any) -> Any:
            await self._explain(tx.connection, in_schema(sql, tx.schema), parameters)
            return await original(tx, sql, *parameters)

        return measured

    async def _explain(self, connection: Any, sql: str, parameters: tuple[Any, ...]) -> None:
        undo = "ROLLBACK TO SAVEPOINT meter" if connection.is_in_transaction() else "ROLLBACK"
        await connection.execute("SAVEPOINT meter" if connection.is_in_transaction() else "BEGIN")
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
        [(plan,)] = await connection.fetch(explained, *parameters)
        await connection.execute(undo)
        top = json.loads(plan)[0]["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        self.dearest = max(self.dearest, (pages, explained))


@pytest.fixture
async def filled(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store with that much data."""
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(_FILL)
    await store.index_metadata(("order",))
    await connection.execute(f"VACUUM ANALYZE {await connection.fetchval(_ALL_TABLES)}")
    await connection.close()
    yield store
    await store.close()


@pytest.mark.source("003", "406-411")
async def test_no_statement_reads_more_pages_than_needed_and_the_meter_would_notice_a_scan(
    filled: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(monkeypatch)
    for name, call in CALLS.items():
        meter.dearest = (0, "")
        await call(filled)
        assert 0 < meter.dearest[0] <= MOST, (name, meter.dearest)
    await filled.list("default", Filter(type="nothing like it"))
    assert meter.dearest[0] > MOST
