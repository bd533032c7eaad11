"""What a store refuses for good harms nothing that shares its batch, transaction or commit."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import asyncpg
import pytest
from msgspec.structs import replace

from homing import CommandRefused, Delivery, Homing, Rejection, SendResult, Status
from homing.core.errors import StoreRejected, StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Content, OutcomeKind
from homing.engine.intake.spool import Spool
from homing.providers.local.scripted import ScriptedProvider
from homing.stores.postgres import PostgresStore, migrations
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_message, a_notification, a_submission
from support.engine_harness import serving
from support.refusing_stores import allow, refuse

ADA = "ada@example.org"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def latin1_url(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A database that cannot store most characters, with a schema from before `migrate` refused it."""
    name = "homing_test_latin1"
    connection = await asyncpg.connect(postgres_server)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        url = f"{postgres_server.rpartition('/')[0]}/{name}"
        store = PostgresStore(url)
        await store.open()
        with monkeypatch.context() as older_release:
            older_release.setattr(migrations, "_check_encoding", AsyncMock())
            await store.migrate()
        await store.close()
        yield url
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()


class Mail:
    """Answers each mail as its subject says, and counts the sends."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.sends: Counter[str] = Counter()

    async def __call__(self, delivery: Delivery) -> Outcome:
        subject = delivery.content.subject or ""
        self.sends[subject] += 1
        await asyncio.sleep(0)
        if subject == "good":
            return Outcome(OutcomeKind.ACCEPTED, "m1")
        if subject == "refused":
            return Outcome(OutcomeKind.BAD_CONTENT, error=self.error)
        return Outcome(OutcomeKind.ACCEPTED, self.error)


async def sent(homing: Homing, subject: str, **fields: Any) -> str:
    return (await homing.send(ADA, channel="email", subject=subject, body="x", **fields)).id


# Settlements -------------------------------------------------------------------------------------------


async def test_a_result_with_a_refused_text_is_recorded_without_it_and_the_others_as_they_are(
    url: str,
) -> None:
    mail = Mail("too long 🚫")
    async with Homing(url, providers={"mail": mail}) as homing:
        await refuse(
            url, "attempts", "NEW.error LIKE '%too long%' OR NEW.provider_message_id LIKE '%too long%'"
        )
        ids = {subject: await sent(homing, subject) for subject in ("good", "refused", "taken")}
        await asyncio.wait_for(homing.process(), 30)
        for _ in range(2):
            await homing.process()
        found = {subject: await homing.get(id) for subject, id in ids.items()}
    assert mail.sends == {"good": 1, "refused": 1, "taken": 1}
    statuses = {subject: one.status for subject, one in found.items()}
    assert statuses == {"good": Status.SENT, "refused": Status.FAILED, "taken": Status.SENT}
    assert "bad_content" in (found["refused"].last_error or "")


async def test_a_result_that_cannot_be_recorded_at_all_puts_its_notification_in_doubt(url: str) -> None:
    mail = Mail("no")
    async with Homing(url, providers={"mail": mail}) as homing:
        await refuse(url, "attempts", "NEW.outcome = 'bad_content'")
        ids = {subject: await sent(homing, subject) for subject in ("good", "refused")}
        await asyncio.wait_for(homing.process(), 30)
        await homing.process()
        found = {subject: (await homing.get(id)).status for subject, id in ids.items()}
    assert mail.sends == {"good": 1, "refused": 1}
    assert found == {"good": Status.SENT, "refused": Status.IN_DOUBT}


async def test_a_synchronous_send_with_a_refused_text_is_recorded_as_what_it_is(url: str) -> None:
    mail = Mail("too long")
    async with Homing(url, providers={"mail": mail}) as homing:
        await refuse(url, "attempts", "NEW.provider_message_id LIKE '%too long%'")
        result = await homing.send(ADA, channel="email", subject="taken", body="x", synchronous=True)
        assert (result.status, mail.sends) == ("sent", {"taken": 1})


async def test_a_latin1_database_takes_the_error_with_escaped_characters(latin1_url: str) -> None:
    mail = Mail("rejected 🚫")
    async with Homing(latin1_url, providers={"mail": mail}) as homing:
        ids = {subject: await sent(homing, subject) for subject in ("good", "refused")}
        await asyncio.wait_for(homing.process(), 30)
        found = {subject: await homing.get(id) for subject, id in ids.items()}
    assert mail.sends == {"good": 1, "refused": 1}
    assert (found["good"].status, found["refused"].status) == (Status.SENT, Status.FAILED)
    assert found["refused"].last_error == r"rejected \U0001f6ab"


# Requests ----------------------------------------------------------------------------------------------


def request(number: int, **fields: Any) -> dict[str, Any]:
    return {"recipient": ADA, "channel": "email", "content": {"body": "x"}, "type": f"t{number}", **fields}


async def refuse_type(url: str, type_: str) -> None:
    table = "messages" if url.startswith("postgresql:") else "notifications"
    await refuse(url, table, f"NEW.type = '{type_}' AND NEW.address <> ''")


async def test_one_refused_request_of_a_batch_is_one_rejection(url: str) -> None:
    async with Homing(url, providers={"mail": Mail("")}) as homing:
        await refuse_type(url, "t1234")
        results = [one async for one in homing.send_many(request(number) for number in range(4500))]
        refused = [one for one in results if isinstance(one, Rejection)]
        assert [(one.index, one.code) for one in refused] == [(1234, "STORE_REJECTED")]
        assert sum(isinstance(one, SendResult) for one in results) == 4499
        assert str(url) not in refused[0].message


async def test_a_refused_request_in_the_callers_transaction_leaves_the_transaction_usable(
    postgres_url: str,
) -> None:
    async with Homing(postgres_url, providers={"mail": Mail("")}) as homing:
        await refuse_type(postgres_url, "t2")
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            sending = homing.send_many([request(number) for number in range(5)], connection=connection)
            results = [type(one).__name__ async for one in sending]
        await connection.close()
        assert results == ["SendResult", "SendResult", "Rejection", "SendResult", "SendResult"]
        assert len((await homing.list()).items) == 4


async def test_a_refused_send_fails_no_other_send_of_its_commit(url: str) -> None:
    async with Homing(url, providers={"mail": Mail("")}) as homing:
        await refuse_type(url, "t20")
        found = await asyncio.gather(
            *(homing.send(**request(number)) for number in range(60)), return_exceptions=True
        )
        assert [n for n, one in enumerate(found) if isinstance(one, BaseException)] == [20]
        assert isinstance(found[20], StoreRejected)


async def test_a_refused_request_in_the_spool_becomes_a_dead_letter_and_the_others_are_stored(
    url: str, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool.jsonl")
    submissions = [a_submission(a_notification(type=f"t{number}"), tenant="t") for number in range(30)]
    for one in submissions:
        await spool.write(one)
    store = PostgresStore(url) if url.startswith("postgresql:") else SqliteStore(url)
    await store.open()
    await store.migrate()
    await refuse_type(url, "t7")
    assert await spool.drain(store) == 30
    statuses = Counter[Status]()
    for one in submissions:
        found = await store.get("t", one.notifications[0].id)
        assert found is not None
        statuses[found.notification.status] += 1
    assert statuses == {Status.PENDING: 29, Status.FAILED: 1}
    dead = await store.get("t", submissions[7].notifications[0].id)
    assert dead is not None
    assert dead.notification.batch_id == submissions[7].batch_id
    assert "Your order is on its way." in str(dead.notification.content)
    assert "refused" in (dead.notification.last_error or "")
    assert spool.waiting() == 0
    assert not (tmp_path / "spool.jsonl.refused").exists()
    await store.close()


async def test_a_spooled_request_that_cannot_even_be_a_dead_letter_is_kept_in_a_file(tmp_path: Path) -> None:
    class Refusing(SqliteStore):
        async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
            if any(one.notifications[0].id == poison for one in batch):
                raise StoreRejected
            return await super().accept(batch, tx=tx)

    spool = Spool(tmp_path / "spool.jsonl")
    submissions = [a_submission(a_notification()) for _ in range(5)]
    poison = submissions[3].notifications[0].id
    for one in submissions:
        await spool.write(one)
    assert await spool.drain(Refusing(":memory:")) == 5
    (line,) = (tmp_path / "spool.jsonl.refused").read_text().splitlines()
    assert poison in line


async def test_a_spooled_request_too_long_for_its_dead_letter_is_kept_whole_in_a_file(
    url: str, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool.jsonl")
    long = replace(a_message(), content=Content(body="x" * 150_000 + "the end"))
    submission = a_submission(a_notification(type="t7", message=long), tenant="t")
    await spool.write(submission)
    store = PostgresStore(url) if url.startswith("postgresql:") else SqliteStore(url)
    await store.open()
    await store.migrate()
    await refuse_type(url, "t7")
    assert await spool.drain(store) == 1
    dead = await store.get("t", submission.notifications[0].id)
    await store.close()
    assert dead is not None
    assert "spool.jsonl.refused" in (dead.notification.last_error or "")
    (line,) = (tmp_path / "spool.jsonl.refused").read_text().splitlines()
    assert "the end" in line


async def test_poison_in_the_inbox_becomes_dead_letters_and_the_rest_goes_on(postgres_url: str) -> None:
    mail, hook = Mail(""), serving("hook", ScriptedProvider("hook"), "webhook", host_slots=2)
    async with Homing(postgres_url, providers={"mail": mail, "hook": hook}) as homing:
        await refuse_type(postgres_url, "t2")
        connection = await asyncpg.connect(postgres_url)
        insert = (
            "INSERT INTO homing.inbox (enqueued_at, kind, tenant, id, request)"
            " VALUES (0, 'send', 'default', gen_random_uuid(), $1) RETURNING id::text"
        )
        body = '{"recipient": {"email": "a@example.org"}, "channel": "email", "content": {%s"body": "x"}}'
        labels = [sha256(bytes([number])).hexdigest()[:60] for number in range(100)]
        long_url = f"https://{'.'.join(labels)}/"  # longer than an index entry may be, even if compressed
        texts = [
            body % '"subject": "good", ',
            body % f'"data": {"[" * 1500}{"]" * 1500}, ',
            json.dumps({"channel": "webhook", "recipient": {"url": long_url}, "content": {"body": "x"}}),
            json.dumps(request(2)),
            body % '"subject": "good", ',
        ]
        ids = [await connection.fetchval(insert, text) for text in texts]
        await connection.execute(
            "INSERT INTO homing.inbox (enqueued_at, kind, tenant, id, notification_id, who)"
            " VALUES (0, 'retry', 'default', gen_random_uuid(), gen_random_uuid(), 'x')"
        )
        await homing.process()
        left = await connection.fetchval("SELECT count(*) FROM homing.inbox")
        await connection.close()
        found = [await homing.get(id_) for id_ in ids]
    assert left == 0
    statuses = [one.status for one in found]
    assert statuses == [Status.SENT, Status.FAILED, Status.FAILED, Status.FAILED, Status.SENT]
    assert found[2].content.data is not None
    assert labels[9] in found[2].content.data["request"]
    assert found[3].content.data == {"request": texts[3]}
    assert found[3].last_error == "the store refused the request; the log of the process says why"
    assert mail.sends == {"good": 2}


async def test_a_request_whose_recipient_the_store_cannot_look_up_is_one_rejection(latin1_url: str) -> None:
    async with Homing(latin1_url, providers={"mail": Mail("")}) as homing:
        requests = [request(number) for number in range(5)]
        requests[2]["recipient"] = {"id": "🚫"}
        results = [one async for one in homing.send_many(requests)]
        refused = [one for one in results if isinstance(one, Rejection)]
        assert [(one.index, one.code) for one in refused] == [(2, "STORE_REJECTED")]
        assert len((await homing.list()).items) == 4


async def test_an_inbox_entry_whose_recipient_cannot_be_looked_up_becomes_a_dead_letter(
    latin1_url: str,
) -> None:
    async with Homing(latin1_url, providers={"mail": Mail("")}) as homing:
        text = json.dumps(request(1, recipient={"id": "🚫"}))  # escaped, so the database takes the text
        connection = await asyncpg.connect(latin1_url)
        id = await connection.fetchval(
            "INSERT INTO homing.inbox (enqueued_at, kind, tenant, id, request)"
            " VALUES (0, 'send', 'default', gen_random_uuid(), $1) RETURNING id::text",
            text,
        )
        await homing.process()
        left = await connection.fetchval("SELECT count(*) FROM homing.inbox")
        await connection.close()
        found = await homing.get(id)
    assert left == 0
    assert (found.status, found.content.data) == (Status.FAILED, {"request": text})
    assert found.last_error == "the store refused the request; the log of the process says why"


async def test_a_store_that_is_away_rejects_nothing() -> None:
    class AwayStore(SqliteStore):
        async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
            raise StoreUnavailable

    async with Homing(AwayStore(":memory:"), providers={"mail": Mail("")}) as homing:
        with pytest.raises(StoreUnavailable):
            [one async for one in homing.send_many(request(number) for number in range(5))]


# Rows that cannot be read ------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", ['{"to": 1}', "{no JSON", '{}, {"to": 1}'])
async def test_an_unreadable_message_is_listed_as_such_and_becomes_a_dead_letter(
    url: str, damaged: str
) -> None:
    mail = Mail("")
    async with Homing(url, providers={"mail": mail}) as homing:
        ids = [await sent(homing, "good") for _ in range(3)]
        await damage(url, ids[1], damaged)
        page = await homing.list()
        assert {one.id for one in page.items} == set(ids)
        assert "cannot be read" in ((await homing.get(ids[1])).content.text or "")
        assert len([one for one in page.items if "cannot be read" in (one.content.text or "")]) == 1
        await asyncio.wait_for(homing.process(), 30)
        statuses = [(await homing.get(id)).status for id in ids]
    assert statuses == [Status.SENT, Status.FAILED, Status.SENT]
    assert mail.sends == {"good": 2}


async def damage(url: str, id: str, text: str) -> None:
    """Replaces the stored message by one that this version of Homing cannot read."""
    if url.startswith("postgresql:"):
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE homing.messages SET message = $1 WHERE id = $2", text, id)
        await connection.close()
        return
    with closing(sqlite3.connect(url, timeout=10)) as file, file:
        file.execute(
            "UPDATE homing_messages SET message = ? WHERE seq ="
            " (SELECT seq FROM homing_notifications WHERE id = ?)",
            (text, id),
        )


# Dead letters of requests ------------------------------------------------------------------------------


async def inbox_entry(url: str, text: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(
            await connection.fetchval(
                "INSERT INTO homing.inbox (enqueued_at, kind, tenant, id, request)"
                " VALUES (0, 'send', 'default', gen_random_uuid(), $1) RETURNING id::text",
                text,
            )
        )
    finally:
        await connection.close()


async def test_a_resend_accepts_the_request_of_an_inbox_entry_once_its_cause_is_mended(
    postgres_url: str,
) -> None:
    mail = Mail("")
    refused = ("messages", "NEW.type = 't2' AND NEW.address <> ''")
    async with Homing(postgres_url, providers={"first": Mail(""), "mail": mail}) as homing:
        await refuse(postgres_url, *refused)
        text = json.dumps(request(2, content={"subject": "good", "body": "x"}, idempotencyKey="k"))
        id = await inbox_entry(postgres_url, text)
        await homing.process()
        with pytest.raises(CommandRefused, match="Resend it instead"):
            await homing.retry(id, who="ada")
        with pytest.raises(CommandRefused, match="Resend it instead"):
            await homing.retry(id, who="ada", provider="mail")
        with pytest.raises(StoreRejected):
            await homing.resend(id, who="ada")
        assert (await homing.get(id)).acknowledged_by is None
        for command in ("retry", "resend"):
            dead = {"statuses": ["failed"]}
            steps = [step async for step in homing.bulk(command, dead, who="ada")]
            assert steps == []
        await allow(postgres_url, *refused)
        new = await homing.resend(id, who="ada", provider="mail")
        assert await homing.resend(id, who="ada", provider="mail") == new
        with pytest.raises(CommandRefused, match="already resent"):
            await homing.resend(id, who="ada", provider="first")
        await homing.process()
        found = await homing.get(new)
        assert (found.status, found.resend_of, found.provider_names) == (Status.SENT, id, ("mail",))
        original = await homing.get(id)
        assert (original.status, original.acknowledged_by) == (Status.FAILED, "ada")
        assert new in (original.acknowledged_why or "")
    assert mail.sends == {"good": 1}


async def test_a_resend_of_a_request_that_is_still_invalid_is_refused_with_its_error(
    postgres_url: str,
) -> None:
    async with Homing(postgres_url, providers={"mail": Mail("")}) as homing:
        ids = [
            await inbox_entry(postgres_url, text)
            for text in ("{", "[1]", json.dumps(request(1, channel="pigeon")))
        ]
        await homing.process()
        for id, why in zip(ids, ("cannot be read", "not a JSON object", "channel"), strict=True):
            with pytest.raises(CommandRefused, match=why):
                await homing.resend(id, who="ada")
            assert (await homing.get(id)).acknowledged_by is None


async def test_a_resend_through_the_inbox_of_a_request_that_was_never_accepted_is_refused(
    postgres_url: str,
) -> None:
    async with Homing(postgres_url, providers={"mail": Mail("")}) as homing:
        id = await inbox_entry(postgres_url, "{")
        await homing.process()
        connection = await asyncpg.connect(postgres_url)
        for kind in ("retry", "resend"):
            await connection.execute(
                "INSERT INTO homing.inbox (enqueued_at, kind, tenant, id, notification_id, who)"
                " VALUES (0, $1, 'default', gen_random_uuid(), $2::text::uuid, 'x')",
                kind,
                id,
            )
        await connection.close()
        await homing.process()
        assert [one.status for one in (await homing.list()).items] == [Status.FAILED]


async def test_a_resend_accepts_a_spooled_request_once_its_cause_is_mended(url: str, tmp_path: Path) -> None:
    mail = Mail("")
    table = "messages" if url.startswith("postgresql:") else "notifications"
    refused = (table, "NEW.type = 't2' AND NEW.address <> ''")
    content = Content(subject="good", body="Grüße\n🚫")
    message = replace(a_message(), content=content)
    new = a_notification(type="t2", provider="mail", outlet="mail", message=message)
    async with Homing(url, providers={"mail": mail}, spool=str(tmp_path / "spool.jsonl")) as homing:
        await refuse(url, *refused)
        await Spool(tmp_path / "spool.jsonl").write(a_submission(new, tenant="default"))
        await homing.process()
        assert (await homing.get(new.id)).status is Status.FAILED
        await allow(url, *refused)
        resent = await homing.resend(new.id, who="ada")
        assert await homing.resend(new.id, who="ada") == resent
        await homing.process()
        found = await homing.get(resent)
        assert found.resend_of == new.id
        assert (found.status, found.content.body) == (Status.SENT, "Grüße\n🚫")
    assert mail.sends == {"good": 1}
