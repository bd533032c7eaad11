"""Text rendered by Django or Jinja is plain text in every entry point and every store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, cast

import asyncpg
import jinja2
import pytest
from django.utils.safestring import mark_safe  # type: ignore[import-untyped]
from django.utils.translation import gettext_lazy  # type: ignore[import-untyped]
from markupsafe import Markup

from homing import (
    Content,
    Delivery,
    Homing,
    InvalidRequest,
    Recipient,
    Rejection,
    SendRequest,
    SendResult,
    SyncHoming,
)
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.ports.plug_ins import Rendered
from homing.stores.sqlite import SqliteStore

ADA = "ada@example.org"
GOOD: dict[str, Any] = {"recipient": ADA, "channel": "email", "content": {"body": "x"}}


class Kind(StrEnum):
    ORDER = "order"


class Size(IntEnum):
    BIG = 3


def took(delivery: Delivery) -> None:
    """A provider that accepts everything."""


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return str(tmp_path / "homing.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def homing(url: str) -> AsyncIterator[Homing]:
    async with Homing(url, providers={"mail": took}) as opened:
        yield opened


def rendered(text: str) -> Any:
    """Returns the result of a Jinja template with autoescape."""
    return Markup(jinja2.Environment(autoescape=True).from_string(text).render())


def fields(kind: Any) -> dict[str, Any]:
    """Returns a request in which every text has this type."""
    return {
        "recipient": {kind("email"): kind(ADA), "id": kind("u1")},
        "channel": kind("email"),
        "type": kind("order"),
        "category": kind("news"),
        "priority": kind("high"),
        "origin": kind("shop"),
        "content": {
            "subject": kind("Hi"),
            "html": kind("<p>Hello</p>"),
            "body": kind("Hello"),
            "data": {kind("k"): [kind("v"), {kind("deep"): kind("er")}]},
            "headers": {kind("X-A"): kind("b")},
            "attachments": [{"filename": kind("a.txt"), "content": kind("eA==")}],
        },
        "metadata": {kind("m"): {kind("n"): kind("o")}},
        "idempotency_key": kind("key"),
    }


@pytest.mark.parametrize("kind", [mark_safe, Markup, rendered])
async def test_rendered_text_is_stored_as_plain_text_and_is_the_same_request(
    homing: Homing, kind: Any
) -> None:
    (first,) = [one async for one in homing.send_many([fields(kind)])]
    (again,) = [one async for one in homing.send_many([fields(str)])]
    assert isinstance(first, SendResult), first
    assert isinstance(again, SendResult), again
    assert (again.notification_ids, again.duplicate) == (first.notification_ids, True)
    (kept,) = (await homing.list()).items
    assert (kept.type, kept.category, kept.origin) == ("order", "news", "shop")
    assert kept.content is not None
    assert (kept.content.html, kept.content.headers) == ("<p>Hello</p>", {"X-A": "b"})
    assert kept.content.data == {"k": ["v", {"deep": "er"}]}
    assert kept.metadata == {"m": {"n": "o"}}
    texts = (kept.type, kept.origin, kept.content.html, kept.recipient.email, kept.metadata["m"]["n"])
    assert {type(text) for text in texts} == {str}
    assert (await homing.process()).succeeded == 1


async def test_a_struct_with_rendered_text_is_sent(homing: Homing) -> None:
    request = SendRequest(
        recipient=Recipient(email=Markup(ADA)),
        channel=cast("str", Markup("email")),
        type=Kind.ORDER,
        content=Content(html=mark_safe("<p>x</p>"), data={"size": Size.BIG, "price": Decimal("1.50")}),
        dedup_key=Markup("d"),
        metadata={"at": datetime(2026, 1, 1, tzinfo=UTC)},
    )
    first = await homing.submit(request)
    plain = SendRequest(
        recipient=Recipient(email=ADA),
        channel="email",
        type="order",
        content=Content(html="<p>x</p>", data={"size": 3, "price": "1.50"}),
        dedup_key="d",
        metadata={"at": "2026-01-01T00:00:00Z"},
    )
    assert (await homing.submit(plain)).duplicate
    kept = await homing.get(first.id)
    assert kept.content is not None
    assert kept.content.data == {"size": 3, "price": "1.50"}
    assert kept.metadata == {"at": "2026-01-01T00:00:00Z"}


async def test_a_cached_plan_never_keeps_a_framework_s_text(homing: Homing) -> None:
    """Requests with the same texts share a plan, so the first must not pass its types on."""
    for type_ in (Markup("welcome"), "welcome", Markup("welcome")):
        sent = await homing.send(ADA, channel="email", body="x", type=type_, origin=Markup("shop"))
        kept = await homing.get(sent.id)
        assert {type(kept.type), type(kept.origin), type(kept.category)} == {str}


BAD: list[tuple[Any, str]] = [
    ({**GOOD, "content": {"body": "\ud800"}}, "content.body"),
    ({**GOOD, "content": {"subject": gettext_lazy("Hello"), "body": "x"}}, "content.subject"),
    ({**GOOD, "content": {"body": "x", "data": {"a": [gettext_lazy("Hello")]}}}, "content.data.a[0]"),
    ({**GOOD, "metadata": {"a": {"b": object()}}}, "metadata.a.b"),
    ({**GOOD, "metadata": {"a": "\udfff"}}, "metadata.a"),
    ({**GOOD, "metadata": {"\ud800": 1}}, "metadata['\\ud800']"),
    ({**GOOD, "recipient": "a\ud800@example.org"}, "recipient.email"),
    ({**GOOD, "recipient": {"email": ADA, "id": "\ud800"}}, "recipient.id"),
    ({**GOOD, "type": "\ud800"}, "type"),
    ({**GOOD, "origin": "\ud800"}, "origin"),
    ({**GOOD, "channel": "\ud800"}, "channel"),
    ({**GOOD, "priority": "\ud800"}, "priority"),
    ({**GOOD, "provider": "\ud800"}, "provider"),
    ({**GOOD, "idempotency_key": "\ud800"}, "idempotencyKey"),
    ({**GOOD, "dedup_key": Markup("\ud800")}, "dedupKey"),
    ({**GOOD, "accept_language": "\ud800"}, "acceptLanguage"),
    ({**GOOD, "\ud800": 1}, "\\ud800"),
    ({**GOOD, "content": {"body": "x", "headers": {"X-A": "\ud800"}}}, "content.headers.X-A"),
    ({**GOOD, "content": {"body": "x", "unsubscribe_url": "https://a/\ud800"}}, "content.unsubscribeUrl"),
    (
        {**GOOD, "content": {"body": "x", "attachments": [{"filename": "\ud800", "content": "eA=="}]}},
        "content.attachments.filename",
    ),
    (SendRequest(channel="email", recipient=Recipient(email=ADA), metadata=cast("Any", [1])), "metadata"),
    (SendRequest(channel="email", recipient=cast("Recipient", 5), content=Content(body="x")), "recipient"),
    (
        SendRequest(channel=cast("str", 5), recipient=Recipient(email=ADA), content=Content(body="x")),
        "channel",
    ),
    (5, "request"),
]


@pytest.mark.parametrize(("bad", "field"), BAD)
async def test_one_invalid_request_is_one_rejection_and_affects_no_other(
    homing: Homing, bad: Any, field: str
) -> None:
    results = [one async for one in homing.send_many([GOOD, bad, GOOD])]
    assert [type(one) for one in results] == [SendResult, Rejection, SendResult]
    assert isinstance(results[1], Rejection)
    assert (results[1].index, results[1].field) == (1, field)
    results[1].message.encode()
    assert len((await homing.list()).items) == 2


@pytest.mark.parametrize(("bad", "field"), [one for one in BAD if isinstance(one[0], dict)][:13])
async def test_an_invalid_send_raises_and_names_the_field(
    homing: Homing, bad: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await homing.send(**bad)
    assert caught.value.field == field
    assert (await homing.list()).items == ()


async def test_lone_surrogates_cause_no_unhandled_errors_elsewhere(homing: Homing) -> None:
    from homing import Filter, NotFound

    sent = await homing.send(ADA, channel="email", body="x")
    for call in (homing.get, homing.cancel, homing.retry, homing.resend, homing.explain):
        with pytest.raises(NotFound):
            await call("\ud800")
    with pytest.raises(InvalidRequest, match=r"^why: "):
        await homing.cancel(sent.id, why="\ud800")
    with pytest.raises(InvalidRequest, match=r"^who: "):
        await homing.cancel(sent.id, who="\ud800")
    with pytest.raises(InvalidRequest, match=r"^address: "):
        await homing.list(Filter(address="\ud800"))


async def test_the_synchronous_class_accepts_rendered_text_too(tmp_path: Path) -> None:
    import asyncio

    def use() -> list[Any]:
        with SyncHoming(tmp_path / "sync.db", providers={"mail": took}) as homing:
            homing.send(Markup(ADA), channel="email", html=mark_safe("<p>x</p>"))
            return list(homing.send_many([GOOD, {**GOOD, "metadata": {"a": object()}}, fields(Markup)]))

    results = await asyncio.to_thread(use)
    assert [type(one) for one in results] == [SendResult, Rejection, SendResult]


# A caller's transaction, the spool, templates, directories ---------------------------------------------


async def test_rendered_text_in_a_joined_transaction_on_sqlite(tmp_path: Path) -> None:
    async with Homing(tmp_path / "app.db", providers={"mail": took}) as homing:
        own = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        sent = await homing.send(ADA, channel="email", html=Markup("<p>x</p>"), connection=own)
        with pytest.raises(InvalidRequest):
            await homing.send(ADA, channel="email", body="\ud800", connection=own)
        results = [
            one async for one in homing.send_many([GOOD, BAD[0][0], fields(mark_safe)], connection=own)
        ]
        own.execute("COMMIT")
        own.close()
        assert [type(one) for one in results] == [SendResult, Rejection, SendResult]
        assert len((await homing.list()).items) == 3
        assert (await homing.get(sent.id)).content == Content(html="<p>x</p>")


async def test_rendered_text_in_a_joined_transaction_on_postgresql(postgres_url: str) -> None:
    async with Homing(postgres_url, providers={"mail": took}) as homing:
        own = await asyncpg.connect(postgres_url)
        async with own.transaction():
            sent = await homing.send(ADA, channel="email", html=Markup("<p>x</p>"), connection=own)
            with pytest.raises(InvalidRequest):
                await homing.send(ADA, channel="email", body="\ud800", connection=own)
            many = [GOOD, BAD[0][0], fields(mark_safe)]
            results = [one async for one in homing.send_many(many, connection=own)]
        await own.close()
        assert [type(one) for one in results] == [SendResult, Rejection, SendResult]
        assert (await homing.get(sent.id)).content == Content(html="<p>x</p>")


class UnreliableSqliteStore(SqliteStore):
    """A store that can be unavailable."""

    away = False

    async def accept(self, batch: Any, *, tx: Any = None) -> tuple[Acceptance, ...]:
        if self.away:
            raise StoreUnavailable
        return await super().accept(cast("list[Submission]", batch), tx=tx)


async def test_the_spool_keeps_rendered_text_and_refuses_text_that_no_store_can_keep(tmp_path: Path) -> None:
    store, file = UnreliableSqliteStore(tmp_path / "app.db"), tmp_path / "spool.jsonl"
    async with Homing(store, providers={"mail": took}, spool=str(file)) as homing:
        store.away = True
        sent = await homing.send(ADA, channel="email", html=Markup("<p>x</p>"), if_unavailable="spool")
        assert sent.status == "spooled"
        with pytest.raises(InvalidRequest):
            await homing.send(ADA, channel="email", body="\ud800", if_unavailable="spool")
        store.away = False
        while not (await homing.list()).items:
            await homing._sends.drain_spool_once()
        assert (await homing.get(sent.id)).content == Content(html="<p>x</p>")


async def test_templates_get_plain_data(tmp_path: Path) -> None:
    folder = tmp_path / "templates" / "hello" / "en-US"
    folder.mkdir(parents=True)
    (folder / "email.subject.txt").write_text("Hi {{ name }}")
    (folder / "email.html").write_text("<p>{{ name }}</p>")
    templates = {"folder": str(tmp_path / "templates")}
    async with Homing(tmp_path / "app.db", providers={"mail": took}, templates=templates) as homing:
        data = {"name": Markup("A & B"), "n": Size.BIG}
        sent = await homing.send(ADA, channel="email", template_key=Markup("hello"), data=data)
        kept = (await homing.get(sent.id)).content
        assert kept is not None
        assert (kept.subject, kept.html) == ("Hi A & B", "<p>A &amp; B</p>")


class OwnRenderer:
    """A user's renderer that returns Jinja's text."""

    async def render(self, tenant: str, key: str, channel: Any, locale: Any, data: Any) -> Rendered:
        return Rendered(content=Content(html=Markup("<p>x</p>"), data={"k": Markup("v")}), locale=None)


class OwnDirectory:
    """A user's directory that returns text from a template filter."""

    async def resolve(self, tenant: str, ids: Any) -> dict[str, Recipient]:
        return {id: Recipient(id=id, email=mark_safe(ADA), locale=Markup("en-US")) for id in ids}

    async def facts(self, claims: Any) -> dict[str, Any]:
        return {}


async def test_plug_ins_may_return_rendered_text(tmp_path: Path) -> None:
    async with Homing(
        tmp_path / "app.db",
        providers={"mail": took},
        renderer=OwnRenderer(),
        directory=cast("Any", OwnDirectory()),
    ) as homing:
        sent = await homing.send({"id": "u1"}, channel="email", template_key="hello")
        kept = await homing.get(sent.id)
        assert kept.content == Content(html="<p>x</p>", data={"k": "v"})
        assert kept.recipient == Recipient(id="u1", email=ADA, locale="en-US")
        assert (await homing.process()).succeeded == 1
