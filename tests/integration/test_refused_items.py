"""What a store refuses for good harms nothing that shares its batch, transaction or commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from homing import Delivery, Homing, Rejection, SendResult, Status
from homing.core.errors import StoreRejected
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from support.refusing_stores import refuse

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
async def latin1_url(postgres_server: str) -> Any:
    """A database that cannot store most characters."""
    name = "homing_test_latin1"
    connection = await asyncpg.connect(postgres_server)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        yield f"{postgres_server.rpartition('/')[0]}/{name}"
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


async def test_a_latin1_database_takes_the_error_with_escaped_characters(latin1_url: str) -> None:
    mail = Mail("rejected 🚫")
    async with Homing(latin1_url, providers={"mail": mail}) as homing:
        ids = {subject: await sent(homing, subject) for subject in ("good", "refused")}
        await asyncio.wait_for(homing.process(), 30)
        found = {subject: await homing.get(id) for subject, id in ids.items()}
    assert mail.sends == {"good": 1, "refused": 1}
    assert (found["good"].status, found["refused"].status) == (Status.SENT, Status.FAILED)
    assert found["refused"].last_error == r"rejected \U0001f6ab"
