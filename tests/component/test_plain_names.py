"""The public API accepts enum members and their plain strings, and errors list the values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from homing import (
    Channel,
    CommandName,
    ConfigError,
    Delivery,
    Filter,
    Homing,
    InvalidRequest,
    Listed,
    Outcome,
    PolicyPatch,
    Priority,
    Recipient,
    Rule,
    SendRequest,
    Status,
    Template,
    TemplateParts,
)
from homing.core.notifications import Mode
from homing.core.retry.policy import Backoff, Jitter, MatchKeys
from homing.core.routing.breaker import Phase
from homing.providers.local.function import FunctionProvider

BODY: dict[str, Any] = {"content": {"body": "x"}}


def quiet(delivery: Delivery) -> None:
    """Accepts everything silently."""


@pytest.fixture
async def homing() -> AsyncIterator[Homing]:
    async with Homing("memory:", providers={"mail": quiet}) as opened:
        yield opened


@pytest.mark.parametrize("channel", ["email", Channel.EMAIL])
@pytest.mark.parametrize("priority", ["high", Priority.HIGH])
async def test_send_and_submit(homing: Homing, channel: str, priority: str) -> None:
    sent = await homing.send("a@example.org", channel=channel, priority=priority, body="x")
    request = SendRequest(
        recipient=Recipient(email="a@example.org"), channel=channel, priority=priority, **BODY
    )
    for id in (sent.id, (await homing.submit(request)).id):
        found = await homing.get(id)
        assert (found.channel, found.priority) == (Channel.EMAIL, Priority.HIGH)
        assert [type(found.channel), type(found.priority)] == [Channel, Priority]


@pytest.mark.parametrize(
    "filter",
    [
        Filter(statuses=(Status.CANCELLED,), channel=Channel.EMAIL),
        Filter(statuses=("cancelled",), channel="email"),  # type: ignore[arg-type]
        Filter(statuses="cancelled"),  # type: ignore[arg-type]
        {"statuses": ["cancelled"], "channel": "email"},
        {"statuses": Status.CANCELLED},
        {"createdFrom": None, "statuses": "cancelled"},
        {"statuses": {"cancelled"}, "created_from": "2020-01-01T00:00:00Z"},
    ],
)
async def test_filters(homing: Homing, filter: Any) -> None:
    sent = await homing.send("a@example.org", channel="email", body="x")
    await homing.send("b@example.org", channel="email", body="x")
    await homing.cancel(sent.id)
    assert [n.id for n in (await homing.list(filter)).items] == [sent.id]
    progress = [one async for one in homing.bulk("retry", filter, who="ada")]
    assert [(one.matched, one.done) for one in progress] == [(1, 1)]


@pytest.mark.parametrize("name", ["cancel", CommandName.CANCEL])
async def test_command_names(homing: Homing, name: str) -> None:
    await homing.send("a@example.org", channel="email", body="x")
    dry = [one async for one in homing.bulk(name, Filter(), who="ada", dry_run=True)]
    assert dry[-1].done == 1
    job = await homing.jobs.start("default", name, {"channel": "email"}, who="ada")
    assert job.command is CommandName.CANCEL
    assert job.filter.channel is Channel.EMAIL


@pytest.mark.parametrize("phase", ["open", Phase.OPEN])
async def test_breaker_phases(homing: Homing, phase: str) -> None:
    await homing.force_breaker("mail", phase, who="ada")
    assert [one.breaker.phase for one in await homing.providers()] == [Phase.OPEN]


@pytest.mark.parametrize("channel", ["email", Channel.EMAIL])
async def test_channels_of_test_messages_and_previews(homing: Homing, channel: Any) -> None:
    assert (await homing.try_provider("mail", "a@example.org", channel)).channel is Channel.EMAIL
    parts = {channel: TemplateParts(subject="Hi", text="Hello")}
    await homing.templates.put(Template(key="hello", locales={"en-US": parts}), who="ada")
    assert (await homing.templates.preview("hello", channel=channel)).contents[Channel.EMAIL].subject == "Hi"


async def test_statuses_of_a_resolution(homing: Homing) -> None:
    sent = await homing.send("a@example.org", channel="email", body="x")
    for status in ("sent", Status.SENT):
        with pytest.raises(Exception, match="resolve is not possible"):
            await homing.resolve(sent.id, status, who="ada")


def test_fields_of_rules() -> None:
    patch = PolicyPatch(backoff="fixed", jitter=Jitter.NONE)  # type: ignore[arg-type]
    assert patch.backoff is Backoff.FIXED
    assert patch == PolicyPatch(backoff=Backoff.FIXED, jitter="none")  # type: ignore[arg-type]
    plain = Rule(name="a", channel="email", priority="high", policy=patch)
    assert plain == Rule(name="a", channel=Channel.EMAIL, priority=Priority.HIGH, policy=patch)


async def test_keys_of_a_delay_and_channels_of_a_provider() -> None:
    listed = Listed(id="mail", provider=FunctionProvider(quiet), channels=("email",))  # type: ignore[arg-type]
    async with Homing("memory:", providers={"mail": listed}) as homing:
        assert [one.channels for one in await homing.providers()] == [(Channel.EMAIL,)]
        plain = MatchKeys("default", "order", "", "email", "high")  # type: ignore[arg-type]
        keys = MatchKeys("default", "order", "", Channel.EMAIL, Priority.HIGH)
        assert homing.calculate_delay(2, keys=plain) == homing.calculate_delay(2, keys=keys)


async def test_outcomes_of_a_provider() -> None:
    async with Homing("memory:", providers={"mail": lambda _: Outcome("bad_content")}) as homing:  # type: ignore[arg-type]
        sent = await homing.send("a@example.org", channel="email", body="x")
        await homing.process()
        assert (await homing.get(sent.id)).status is Status.FAILED


async def _link(homing: Homing, channel: Any = "email", mode: Any = "bulk") -> str | None:
    recipient = Recipient(email="a@example.org")
    return await homing.unsubscribe_links.link("default", recipient, "a@example.org", channel, "news", mode)


async def test_channels_and_modes_of_unsubscribe_links() -> None:
    async with Homing(
        "memory:",
        providers={"mail": quiet},
        service={"public_url": "https://example.org"},
        unsubscribe={"enabled": True},
    ) as homing:
        for channel, mode in (("email", "bulk"), (Channel.EMAIL, Mode.BULK)):
            assert await _link(homing, channel, mode)
        assert await _link(homing, mode="synchronous") is None
        assert await _link(homing, channel="sms") is None


@pytest.mark.parametrize("field", ["channel", "priority"])
async def test_an_unknown_key_of_a_delay_is_refused(homing: Homing, field: str) -> None:
    keys = MatchKeys("default", "order", "", Channel.EMAIL, Priority.HIGH)
    with pytest.raises(InvalidRequest, match="it must be one of") as refused:
        homing.calculate_delay(2, keys=msgspec.structs.replace(keys, **{field: "fax"}))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("call", "field", "values"),
    [
        (lambda homing: homing.send("a@b.org", channel="fax", body="x"), "channel", "sms, email"),
        (
            lambda homing: homing.send("a@b.org", channel="email", priority="top", body="x"),
            "priority",
            "high",
        ),
        (lambda homing: homing.list({"statuses": ("gone",)}), "statuses", "pending, sending"),
        (lambda homing: homing.list({"channel": "fax"}), "channel", "sms, email"),
        (lambda homing: homing.list({"reason": "bad luck"}), "reason", "one of"),
        (lambda homing: homing.list({"state": "sent"}), "state", "statuses"),
        (lambda homing: homing.list({"statuses": 5}), "statuses", "must be an array, not a whole number"),
        (lambda homing: homing.list({"statuses": [5]}), "statuses", "pending, sending"),
        (lambda homing: homing.list({"createdFrom": "soon"}), "createdFrom", "is not a time"),
        (
            lambda homing: homing.list({"acknowledged": "yes"}),
            "acknowledged",
            "must be true or false, not a string",
        ),
        (lambda homing: homing.list(Filter(type=5)), "type", "str"),  # type: ignore[arg-type]
        (lambda homing: homing.send("a@b.org", channel=5, body="x"), "channel", "is 5.*sms, email"),
        (lambda homing: homing.send("a@b.org", channels=[5], body="x"), "channel", "is 5.*sms, email"),
        (lambda homing: _link(homing, channel="fax"), "channel", "sms, email"),
        (lambda homing: _link(homing, mode="fast"), "mode", "bulk"),
        (lambda homing: anext(homing.bulk("explode", {}, who="ada")), "command", "cancel, retry"),
        (lambda homing: homing.jobs.start("default", "explode", {}, who="ada"), "command", "cancel, retry"),
        (lambda homing: homing.force_breaker("mail", "ajar", who="ada"), "phase", "closed, open, half_open"),
        (lambda homing: homing.try_provider("mail", "a@b.org", "fax"), "channel", "sms, email"),
        (lambda homing: homing.templates.preview("hello", channel="fax"), "channel", "sms, email"),
        (lambda homing: homing.resolve("x", "gone", who="ada"), "status", "pending, sending"),
        (
            lambda homing: homing.send("a@b.org", channel="email", body="x", if_unavailable="wait"),
            "if_unavailable",
            "raise, spool",
        ),
    ],
)
async def test_an_unknown_value_is_refused_with_its_field_and_the_values(
    homing: Homing, call: Any, field: str, values: str
) -> None:
    with pytest.raises(InvalidRequest, match=values) as refused:
        await call(homing)
    assert refused.value.field == field


def test_an_unknown_value_in_a_rule_or_a_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backoff.*must be one of exponential"):
        PolicyPatch(backoff="quadratic")  # type: ignore[arg-type]
    listed = Listed(id="mail", provider=FunctionProvider(quiet), channels=("fax",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"channels.*'fax'.*sms, email"):
        Homing("memory:", providers={"mail": listed})
