"""Apprise over sockets: its json:// and form:// services, and a custom one made with its decorator."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apprise
import pytest
from apprise.decorators import notify

from homing import Channel, Content, Delivery, Outcome, OutcomeKind
from homing.core.errors import ConfigError
from homing.core.notifications import Attachment
from homing.core.ports.providers import UsesThreads
from homing.providers.apprise.provider import AppriseProvider
from homing.providers.common.thread_pool import ThreadPool
from homing.testing.fault_server import (
    RESET_AFTER_READING,
    FaultServer,
    answer,
    html_page,
    refusing_url,
)
from support.push_deliveries import a_push

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

K = OutcomeKind
HELLO = Content(title="T", body="B")


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as made:
        yield made


@pytest.fixture
def custom() -> Iterator[list[Any]]:
    """The service `birdhouse://` calls the functions in the list and keeps its arguments."""
    calls: list[Any] = []

    def birdhouse(body: str, title: str, notify_type: str, *args: Any, **kwargs: Any) -> Any:
        got = {"body": body, "title": title, **kwargs}
        return calls.pop(0)(got) if calls else True

    notify(on="birdhouse")(birdhouse)  # type: ignore[no-untyped-call]
    yield calls
    apprise.manager_plugins.NotificationManager().remove("birdhouse")  # type: ignore[no-untyped-call]


def message(**fields: Any) -> Delivery:
    return a_push(**{"channel": Channel.CHAT, "content": HELLO, **fields})


async def sent(provider: AppriseProvider, **fields: Any) -> Outcome:
    outcome = await provider.send(message(**fields))
    await provider.close()
    return outcome


def url(server: FaultServer, scheme: str = "json") -> str:
    return f"{scheme}://user:s3cret-pass@127.0.0.1:{server.port}/t0ken-path"


# Answers -----------------------------------------------------------------------------------------------


async def test_a_success_is_accepted(server: FaultServer) -> None:
    assert await sent(AppriseProvider(urls=url(server))) == Outcome(K.ACCEPTED)
    (received,) = server.received
    body = json.loads(received.body)
    assert (body["title"], body["message"]) == ("T", "B")
    assert received.path == "/t0ken-path"


async def test_a_failure_without_a_status_is_ambiguous(server: FaultServer) -> None:
    server.play(RESET_AFTER_READING)
    outcome = await sent(AppriseProvider(urls=url(server)))
    assert (outcome.kind, outcome.error_code) == (K.AMBIGUOUS, "no")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, K.BAD_CONTENT),
        (401, K.PROVIDER_FAULT),
        (404, K.PROVIDER_FAULT),
        (413, K.BAD_CONTENT),
        (429, K.THROTTLED),
        (500, K.AMBIGUOUS),
    ],
)
async def test_the_status_of_a_single_request_decides(
    server: FaultServer, status: int, kind: OutcomeKind
) -> None:
    server.play(html_page(status))
    outcome = await sent(AppriseProvider(urls=url(server)))
    assert (outcome.kind, outcome.error_code) == (kind, str(status))


@pytest.mark.parametrize(("status", "kind"), [(400, K.BAD_CONTENT), (404, K.BAD_RECIPIENT)])
async def test_a_rejected_url_of_a_recipient_is_the_recipient_s_fault(
    server: FaultServer, status: int, kind: OutcomeKind
) -> None:
    server.play(html_page(status))
    provider = AppriseProvider(url_from_recipient=True, schemes=["json"], recipient_hosts=["127.0.0.1"])
    assert (await sent(provider, address=url(server))).kind is kind


async def test_a_refused_part_of_a_message_with_attachments_is_ambiguous(server: FaultServer) -> None:
    server.play(html_page(400))
    content = Content(title="T", body="B", attachments=(Attachment("a.txt", "QQ==", "text/plain"),))
    assert (await sent(AppriseProvider(urls=url(server)), content=content)).kind is K.AMBIGUOUS


async def test_a_failure_shows_only_its_status(server: FaultServer) -> None:
    server.play(html_page(403))
    assert (await sent(AppriseProvider(urls=url(server)))).error == "Apprise reported a failure (HTTP 403)"


async def test_a_refused_connection_is_a_failure_too() -> None:
    address = refusing_url().removeprefix("http://")
    assert (await sent(AppriseProvider(urls=f"json://{address}"))).kind is K.AMBIGUOUS


async def test_a_failure_of_one_of_several_services_is_ambiguous(server: FaultServer) -> None:
    server.play(html_page(200), html_page(500))
    outcome = await sent(AppriseProvider(urls=[url(server), url(server, "form")]))
    assert outcome.kind is K.AMBIGUOUS
    assert len(server.received) == 2


async def test_an_error_inside_a_plugin_is_ambiguous(custom: list[Any]) -> None:
    def burst(got: object) -> bool:
        raise RuntimeError("with the s3cret in it")

    custom.append(burst)
    outcome = await sent(AppriseProvider(urls="birdhouse://"))
    assert outcome.kind is K.AMBIGUOUS
    assert "s3cret" not in repr(outcome)


async def test_an_error_of_apprise_itself_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, custom: list[Any]
) -> None:
    def raises(*args: object, **kwargs: object) -> None:
        raise RuntimeError("with the s3cret in it")

    provider = AppriseProvider(urls="birdhouse://")
    monkeypatch.setattr(apprise.Apprise, "notify", raises)
    outcome = await sent(provider)
    assert outcome == Outcome(K.AMBIGUOUS, error_code="raised", error="Apprise raised RuntimeError")


async def test_a_cancelled_send_ends_only_when_its_call_has_returned(custom: list[Any]) -> None:
    """At its deadline, the engine cancels a send. The call keeps its slot while it keeps a thread."""
    end, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(got: object) -> bool:
        loop.call_soon_threadsafe(began.set)
        return end.wait(60)

    custom.append(hang)
    provider = AppriseProvider(urls="birdhouse://", max_threads=1)
    task = asyncio.ensure_future(provider.send(message(timeout_ms=1)))
    await began.wait()
    await asyncio.sleep(0.01)
    assert not task.done()  # the engine ends the attempt, not the provider
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    end.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert (await provider.send(message())).kind is K.ACCEPTED
    await provider.close()


async def test_it_uses_the_threads_that_it_is_given(custom: list[Any]) -> None:
    names: list[str] = []

    def note(got: object) -> bool:
        names.append(threading.current_thread().name)
        return True

    custom.append(note)
    provider = AppriseProvider(urls="birdhouse://")
    assert isinstance(provider, UsesThreads)
    provider.use_threads(ThreadPool[Any]("given", 1))
    assert (await provider.send(message())).kind is K.ACCEPTED
    assert names == ["given-1"]
    await provider.close()


async def test_many_sends_share_few_threads(server: FaultServer) -> None:
    provider = AppriseProvider(urls=url(server), max_threads=4)
    outcomes = await asyncio.gather(*(provider.send(message()) for _ in range(40)))
    assert {outcome.kind for outcome in outcomes} == {K.ACCEPTED}
    assert len(server.received) == 40
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("homing-apprise")]
    assert len(names) <= 4
    await provider.close()


# Log contents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "title", "body"),
    [
        (Content(title="T", body="B"), "T", "B"),
        (Content(subject="S", text="X", body="B"), "S", "X"),
        (Content(title="only a title"), "", "only a title"),
        (Content(subject="S", html="<b>bold</b>", text="X"), "S", "<b>bold</b>"),
    ],
)
async def test_the_parts_of_the_content_are_mapped(
    custom: list[Any], content: Content, title: str, body: str
) -> None:
    got: list[Any] = []
    custom.append(got.append)  # a return value of None is a success
    assert (await sent(AppriseProvider(urls="birdhouse://"), content=content)).kind is K.ACCEPTED
    assert (got[0]["title"], got[0]["body"]) == (title, body)


async def test_html_becomes_plain_text_for_a_service_without_html(server: FaultServer) -> None:
    await sent(
        AppriseProvider(urls=f"{url(server)}?format=text"), content=Content(html="<b>bold</b> &amp; more")
    )
    assert json.loads(server.received[0].body)["message"].strip() == "bold & more"


async def test_attachments_are_sent(server: FaultServer) -> None:
    attached = Attachment(filename="a.txt", content=b64encode(b"inside").decode(), content_type="text/plain")
    content = Content(body="B", attachments=(attached,))
    await sent(AppriseProvider(urls=url(server)), content=content)
    (one,) = json.loads(server.received[0].body)["attachments"]
    assert (one["filename"], one["base64"], one["mimetype"]) == ("a.txt", attached.content, "text/plain")


async def test_empty_content_is_refused(server: FaultServer) -> None:
    outcome = await sent(AppriseProvider(urls=url(server)), content=Content(data={"k": "v"}))
    assert (outcome.kind, server.received) == (K.BAD_CONTENT, [])


async def test_an_attachment_that_is_not_base64_is_refused(server: FaultServer) -> None:
    content = Content(body="B", attachments=(Attachment(filename="a.txt", content="a"),))
    outcome = await sent(AppriseProvider(urls=url(server)), content=content)
    assert (outcome.kind, outcome.error_code, server.received) == (K.BAD_CONTENT, "attachment", [])


async def test_a_redirect_is_not_followed(server: FaultServer) -> None:
    server.play(answer(307, headers={"location": f"{server.url}/there"}))
    assert (await sent(AppriseProvider(urls=url(server)))).kind is K.PROVIDER_FAULT
    assert [one.path for one in server.received] == ["/t0ken-path"]


# URLs of recipients ------------------------------------------------------------------------------------


async def test_a_recipient_s_url_is_used_if_the_settings_allow_it(server: FaultServer) -> None:
    provider = AppriseProvider(url_from_recipient=True, schemes=["json"], recipient_hosts=["127.0.0.1"])
    assert (await sent(provider, address=url(server))).kind is K.ACCEPTED
    assert len(server.received) == 1


async def test_a_recipient_s_url_is_always_a_single_url(server: FaultServer) -> None:
    async with FaultServer() as other:
        provider = AppriseProvider(url_from_recipient=True, schemes=["json"], recipient_hosts=["127.0.0.1"])
        await sent(provider, address=f"{url(server)}, {url(other)}")
    assert (len(server.received), len(other.received)) == (1, 0)


@pytest.mark.parametrize(
    "address",
    [
        "form://127.0.0.1/",
        "http://127.0.0.1/",
        "nonsense",
        "",
        "json://",
        "json://127.0.0.2/",
        "json://localhost/",
        "json://example.org/",
        "json://127.0.0.1/?redirect=yes",
        "json://127.0.0.1@example.org/",
        "discord://",
    ],
)
async def test_any_other_url_of_a_recipient_is_refused(server: FaultServer, address: str) -> None:
    provider = AppriseProvider(
        url_from_recipient=True, schemes=["json", "discord"], recipient_hosts=["127.0.0.1"]
    )
    outcome = await sent(provider, address=address)
    assert (outcome.kind, outcome.error_code) == (K.BAD_RECIPIENT, "url")


# Settings and secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("urls", {}),
        ("urls", {"urls": "json://a", "url_from_recipient": True}),
        ("urls[1]", {"urls": ["json://localhost", "nonsense-s3cret"]}),
        ("urls[0]", {"urls": "discord://s3cret"}),
        ("schemes", {"url_from_recipient": True}),
        ("schemes", {"url_from_recipient": True, "schemes": ["json", "pigeon"]}),
        ("max_threads", {"urls": "json://localhost", "max_threads": 0}),
        ("max_threads", {"urls": "json://localhost", "max_threads": 1000}),
    ],
)
def test_a_wrong_setting_is_named_without_its_secret(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        AppriseProvider(**settings)
    assert caught.value.field == field
    assert "s3cret" not in str(caught.value)


async def test_a_file_may_contain_several_urls(server: FaultServer, tmp_path: Path) -> None:
    listed = tmp_path / "urls"
    listed.write_text(f"# ours\n{url(server)}\n\n{url(server, 'form')}\n")
    assert (await sent(AppriseProvider(urls=f"file:{listed}"))).kind is K.ACCEPTED
    assert len(server.received) == 2


async def test_neither_apprise_nor_its_client_logs_a_secret(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG - 1)
    server.play(html_page(500), html_page(200))
    provider = AppriseProvider(urls=url(server))
    outcomes = [await provider.send(message()), await provider.send(message())]
    recipients = AppriseProvider(url_from_recipient=True, schemes=["json"], recipient_hosts=["127.0.0.1"])
    outcomes.append(await recipients.send(message(address=url(server))))
    await provider.close()
    await recipients.close()
    shown = repr(outcomes) + repr(provider) + repr(vars(provider)) + caplog.text
    for hidden in ("s3cret-pass", "t0ken-path"):
        assert hidden not in shown


async def test_other_users_of_apprise_keep_their_logging(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    await sent(AppriseProvider(urls=url(server)))
    logging.getLogger("apprise").warning("from other code")
    assert "from other code" in caplog.text


async def test_its_health_check_always_succeeds_because_nothing_can_be_checked(server: FaultServer) -> None:
    provider = AppriseProvider(urls=url(server))
    assert await provider.check()
    await provider.close()
    assert server.received == []
