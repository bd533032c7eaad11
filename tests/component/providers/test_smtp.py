"""SMTP over real sockets: emails as a real server receives them, TLS, login, and broken connections."""

from __future__ import annotations

import asyncio
import email
import ssl
from collections.abc import Callable
from email.policy import SMTP as SMTP_POLICY
from typing import Any, cast

import pytest
import trustme

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.core.ports.providers import Provider
from homing.net.secrets import Secret
from homing.providers.common.http_provider import CheckFailed
from homing.providers.smtp.provider import SmtpProvider
from support.email_deliveries import FULL, ID, NOW_MS, a_mail
from support.smtp_servers import RecordingHandler, ScriptedSmtpServer, SmtpReply, accept_only, aiosmtpd_server

K = OutcomeKind
PATIENCE_S = 30


def an_smtp(port: int = 1, **options: Any) -> SmtpProvider:
    given: dict[str, Any] = {
        "host": "127.0.0.1", "port": port, "tls": "none", "from_email": "orders@example.com",
        "local_hostname": "app.example", "now_ms": lambda: NOW_MS,
    }  # fmt: skip
    return SmtpProvider(**{**given, **options})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """The server's TLS context, and the CA file that clients trust."""
    ca, folder = trustme.CA(), tmp_path_factory.mktemp("ca")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    return context, str(folder / "ca.pem")


# A real server ---------------------------------------------------------------------------------------


async def test_a_real_server_receives_every_part_of_the_email_unchanged() -> None:
    kept = RecordingHandler()
    async with aiosmtpd_server(kept) as port:
        provider = an_smtp(port, from_name="Vögel", envelope_from="bounces@example.com")
        outcome = await provider.send(a_mail(FULL))
        await provider.close()
    assert outcome.kind is K.ACCEPTED
    assert outcome.provider_message_id == f"<{ID}@example.com> 2.0.0 Ok: queued as Q1"
    (envelope,) = kept.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("bounces@example.com", ["ada@example.org"])
    message = email.message_from_bytes(cast(bytes, envelope.content), policy=SMTP_POLICY)
    assert message["Subject"] == FULL.subject
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    text, html, pdf, named = (part for part in message.walk() if not part.is_multipart())
    assert text.get_content().replace("\r\n", "\n") == FULL.text
    assert html.get_content() == FULL.html
    assert pdf.get_content().startswith(b"%PDF-1.4")
    assert named.get_filename() == 'Ünï "code".txt'


@pytest.mark.parametrize("mode", ["starttls", "tls"])
async def test_an_email_is_sent_encrypted_after_a_login(
    authority: tuple[ssl.SSLContext, str], mode: str
) -> None:
    context, ca_file = authority
    kept = RecordingHandler()
    options: dict[str, Any] = {"authenticator": accept_only("app", "s3cret"), "auth_required": True}
    options |= (
        {"tls": context, "auth_require_tls": False}
        if mode == "tls"
        else {"tls_context": context, "require_starttls": True}
    )
    async with aiosmtpd_server(kept, **options) as port:
        settings = {"host": "localhost", "tls": mode, "ca_file": ca_file, "username": "app"}
        good = an_smtp(port, **settings, password="s3cret")
        assert (await good.send(a_mail())).kind is K.ACCEPTED
        assert await good.check()
        assert await good.diagnose() == ""
        bad = an_smtp(port, **settings, password=Secret("wrong"))
        outcome = await bad.send(a_mail())
        assert (outcome.kind, outcome.error_code) == (K.PROVIDER_FAULT, "535 5.7.8")
        assert not await bad.check()
        with pytest.raises(CheckFailed, match=f"^localhost:{port}: .*[Aa]uthentication"):
            await bad.diagnose()
        untrusting = an_smtp(port, **{**settings, "ca_file": ""}, password="s3cret")
        refused = await untrusting.send(a_mail())
        assert (refused.kind, refused.error_code) == (K.PROVIDER_FAULT, "tls_certificate")
        for provider in (good, bad, untrusting):
            await provider.close()
    assert len(kept.envelopes) == 1
    assert kept.sessions[0].authenticated
    assert "wrong" not in repr(bad) + repr(vars(bad)) + str(outcome)


@pytest.mark.parametrize("mode", ["starttls", "tls", "none"])
async def test_one_connection_carries_emails_of_every_size(
    authority: tuple[ssl.SSLContext, str], mode: str
) -> None:
    """More emails than would fit if flow control got stuck, from a few bytes to a few megabytes."""
    context, ca_file = authority
    kept = RecordingHandler()
    options: dict[str, Any] = {"data_size_limit": 2**25}
    options |= {"tls": {"tls": context}, "starttls": {"tls_context": context}, "none": {}}[mode]
    large = ("c" * 900 + "\n") * 2_500
    texts = ["x", "y" * 70_000, ".", large, "z", large * 2, "a", "b", "c", large, "d", "e"]
    async with aiosmtpd_server(kept, **options) as port:
        provider = an_smtp(port, host="localhost", tls=mode, ca_file=ca_file)
        outcomes = [
            await provider.send(a_mail(Content(subject=f"{number}", text=text), timeout_ms=20_000))
            for number, text in enumerate(texts)
        ]
        await provider.close()
    assert [outcome.kind for outcome in outcomes] == [K.ACCEPTED] * len(texts)
    assert len({id(session) for session in kept.sessions}) == 1
    for envelope, text in zip(kept.envelopes, texts, strict=True):
        message = email.message_from_bytes(cast(bytes, envelope.content), policy=SMTP_POLICY)
        assert message.get_content().replace("\r\n", "\n").rstrip("\n") == text.rstrip("\n")


async def test_a_server_without_the_required_starttls_or_login_is_not_used() -> None:
    async with ScriptedSmtpServer() as server:
        assert (await an_smtp(server.port, tls="starttls").send(a_mail())).error_code == "starttls_missing"
        logged_in = an_smtp(server.port, username="app", password="s3cret")
        assert (await logged_in.send(a_mail())).error_code == "auth_missing"
    assert server.mails == []
    assert "AUTH" not in server.steps


async def test_an_international_address_needs_a_server_that_supports_it() -> None:
    kept, mail = RecordingHandler(), a_mail(address="ådå@bücher.example")
    async with aiosmtpd_server(kept, enable_SMTPUTF8=True) as port:
        provider = an_smtp(port)
        assert (await provider.send(mail)).kind is K.ACCEPTED
        assert (await provider.send(a_mail(address="ada@bücher.example"))).kind is K.ACCEPTED
        await provider.close()
    assert [envelope.rcpt_tos for envelope in kept.envelopes] == [
        ["ådå@xn--bcher-kva.example"],
        ["ada@xn--bcher-kva.example"],
    ]
    assert [envelope.smtp_utf8 for envelope in kept.envelopes] == [True, False]
    async with ScriptedSmtpServer() as server:
        outcome = await an_smtp(server.port).send(mail)
    assert (outcome.kind, outcome.error_code, server.mails) == (K.BAD_RECIPIENT, "smtputf8_missing", [])


async def test_an_email_above_the_server_s_size_limit_is_not_sent() -> None:
    async with ScriptedSmtpServer() as server:
        outcome = await an_smtp(server.port).send(a_mail(Content(subject="s", text="x" * 200_000)))
    assert (outcome.kind, outcome.error_code) == (K.BAD_CONTENT, "too_large")
    assert "MAIL" not in server.steps


async def test_lines_that_start_with_dots_arrive_unchanged() -> None:
    kept = RecordingHandler()
    async with aiosmtpd_server(kept) as port:
        provider = an_smtp(port)
        await provider.send(a_mail(Content(subject="s", text=".\n..\n.x\r\n\r\n.")))
        await provider.close()
    body = cast(bytes, kept.envelopes[0].content).partition(b"\r\n\r\n")[2]
    assert body == b".\r\n..\r\n.x\r\n\r\n.\r\n"


# Broken connections ----------------------------------------------------------------------------------


def at(step: str, told: SmtpReply) -> Callable[[int, str], SmtpReply | None]:
    return lambda number, now: told if now == step else None


@pytest.mark.parametrize("told", ["close", "reset"])
@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT", "DATA", "body"])
async def test_a_connection_that_breaks_before_the_final_dot_is_transient(step: str, told: str) -> None:
    async with ScriptedSmtpServer(at(step, told)) as server:
        outcome = await an_smtp(server.port).send(a_mail(Content(subject="s", text="x " * 40_000)))
    assert (outcome.kind, server.mails) == (K.TRANSIENT, [])
    assert outcome.error_code == ("connect" if step == "greeting" else "dropped")


@pytest.mark.parametrize("told", ["close", "reset"])
async def test_a_connection_that_breaks_after_the_final_dot_is_ambiguous(told: str) -> None:
    async with ScriptedSmtpServer(at("dot", told)) as server:
        outcome = await an_smtp(server.port).send(a_mail())
    assert (outcome.kind, outcome.error_code) == (K.AMBIGUOUS, "dropped_after_dot")
    assert len(server.mails) == 1


async def test_a_timeout_is_judged_by_how_much_was_sent() -> None:
    async def time_out(step: str) -> tuple[OutcomeKind, str | None]:
        async with ScriptedSmtpServer(at(step, "hang")) as server:
            outcome = await an_smtp(server.port).send(a_mail(timeout_ms=3_000))
        return outcome.kind, outcome.error_code

    steps = ("greeting", "EHLO", "RCPT", "DATA", "dot")
    found = dict(zip(steps, await asyncio.gather(*map(time_out, steps)), strict=True))
    assert found == {
        "greeting": (K.TRANSIENT, "timeout"),
        "EHLO": (K.TRANSIENT, "timeout"),
        "RCPT": (K.TRANSIENT, "timeout"),
        "DATA": (K.TRANSIENT, "timeout"),
        "dot": (K.AMBIGUOUS, "timeout_after_dot"),
    }


@pytest.mark.parametrize("mode", ["none", "tls"])
async def test_a_server_that_stops_reading_midway_has_not_received_the_email(
    authority: tuple[ssl.SSLContext, str], mode: str
) -> None:
    """More than all buffers together hold, so the dot cannot have been written."""
    context, ca_file = authority
    big = Content(subject="s", text="x" * 800 + "\n" + ("y" * 800 + "\n") * 15_000)

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hi\r\n")
        for reply in (b"250 hi\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go\r\n"):
            await reader.readline()
            writer.write(reply)
        await done.wait()
        writer.transport.abort()

    done = asyncio.Event()
    tls = context if mode == "tls" else None
    server = await asyncio.start_server(stuck, "127.0.0.1", 0, limit=1024, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    provider = an_smtp(port, host="localhost", tls=mode, ca_file=ca_file)
    outcome = await provider.send(a_mail(big, timeout_ms=1_500))
    done.set()
    server.close()
    await server.wait_closed()
    assert (outcome.kind, outcome.error_code) == (K.TRANSIENT, "timeout")


async def test_a_reply_in_the_middle_of_the_email_is_respected() -> None:
    async with ScriptedSmtpServer(at("body", b"552 5.3.4 enough\r\n")) as server:
        provider = an_smtp(server.port)
        text = ("x" * 800 + "\n") * 100
        outcome = await provider.send(a_mail(Content(subject="s", text=text)))
        server.script = lambda number, step: None
        again = await provider.send(a_mail())
        await provider.close()
    assert (outcome.kind, outcome.error_code) == (K.BAD_CONTENT, "552 5.3.4")
    assert (again.kind, server.connections) == (K.ACCEPTED, 2)


@pytest.mark.parametrize(
    ("step", "said", "kind"),
    [
        ("greeting", b"554 5.7.1 not you\r\n", K.PROVIDER_FAULT),
        ("greeting", b"421 4.3.2 not now\r\n", K.TRANSIENT),
        ("greeting", b"HTTP/1.1 400 Bad Request\r\n", K.TRANSIENT),
        ("greeting", b"\xff\xfe\x00garbage\r\n", K.TRANSIENT),
        ("EHLO", b"250" + b"-x" * 40_000 + b"\r\n", K.TRANSIENT),
        ("EHLO", b"451 4.3.0 later\r\n", K.TRANSIENT),
        ("MAIL", b"550 5.7.1 not from you\r\n", K.PROVIDER_FAULT),
        ("MAIL", b"421 4.7.0 too many\r\n", K.THROTTLED),
        ("RCPT", b"550-5.1.1 no such user\r\n550 5.1.1 really\r\n", K.DEAD_ADDRESS),
        ("RCPT", b"450 4.2.1 busy\r\n", K.TRANSIENT),
        ("RCPT", b"251 will forward\r\n", K.ACCEPTED),
        ("RCPT", b"nonsense\r\n", K.TRANSIENT),
        ("DATA", b"451 4.3.0 no disk\r\n", K.TRANSIENT),
        ("DATA", b"250 what\r\n", K.TRANSIENT),
        ("dot", b"554 5.7.1 spam\r\n", K.BAD_CONTENT),
        ("dot", b"451 4.7.1 greylisted\r\n", K.TRANSIENT),
        ("dot", b"250\r\n", K.ACCEPTED),
        ("dot", b"nonsense\r\n", K.AMBIGUOUS),
        ("dot", b"\r\n", K.AMBIGUOUS),
        ("dot", b"354 more\r\n", K.AMBIGUOUS),
        ("dot", b"25", K.AMBIGUOUS),
        ("dot", b"250-" + b"x" * 100_000, K.AMBIGUOUS),
    ],
)
async def test_any_reply_of_a_server_has_an_outcome(step: str, said: bytes, kind: OutcomeKind) -> None:
    async with ScriptedSmtpServer(at(step, said)) as server:
        provider = an_smtp(server.port)
        outcome = await provider.send(a_mail(timeout_ms=3_000))
        await provider.close()
    assert outcome.kind is kind


async def test_a_server_without_esmtp_is_greeted_with_helo() -> None:
    old = {"EHLO": b"500 what?\r\n", "HELO": b"250 hello\r\n"}
    async with ScriptedSmtpServer(lambda number, step: old.get(step)) as server:
        provider = an_smtp(server.port)
        assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()


async def test_a_refused_connection_is_transient() -> None:
    async with ScriptedSmtpServer() as server:
        port = server.port
    outcome = await an_smtp(port).send(a_mail())
    assert (outcome.kind, outcome.error_code) == (K.TRANSIENT, "connect")
    assert not await an_smtp(port).check()
    with pytest.raises(CheckFailed, match=f":{port}: the server could not be reached$"):
        await an_smtp(port).diagnose()
    unknown = await an_smtp(25, host="no-such-host.invalid", allow_plaintext=True).send(a_mail())
    assert (unknown.kind, unknown.error_code) == (K.TRANSIENT, "dns")


# The pool --------------------------------------------------------------------------------------------


async def test_a_connection_is_reused_after_a_noop() -> None:
    async with ScriptedSmtpServer() as server:
        provider = an_smtp(server.port)
        for _ in range(3):
            assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()
    assert (server.connections, len(server.mails)) == (1, 3)
    assert (server.steps.count("RSET"), server.steps[-1]) == (2, "QUIT")


@pytest.mark.parametrize("told", ["close", "reset", b"421 4.4.2 idle too long\r\n", b"500 what\r\n"])
async def test_a_stale_connection_is_replaced_and_the_email_sent_once(told: SmtpReply) -> None:
    async with ScriptedSmtpServer(
        lambda number, step: told if (number, step) == (1, "RSET") else None
    ) as server:
        provider = an_smtp(server.port)
        await provider.send(a_mail())
        assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()
    assert (server.connections, len(server.mails)) == (2, 2)


async def test_a_connection_that_the_server_closed_is_not_used() -> None:
    async with ScriptedSmtpServer() as server:
        provider = an_smtp(server.port)
        await provider.send(a_mail())
        (writer,) = server.open
        writer.close()
        await writer.wait_closed()
        assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()
    assert (server.connections, len(server.mails)) == (2, 2)


async def test_a_refused_mail_leaves_the_connection_usable() -> None:
    replies = iter([b"550 5.1.1 no\r\n", None])
    async with ScriptedSmtpServer(lambda number, step: next(replies) if step == "RCPT" else None) as server:
        provider = an_smtp(server.port)
        assert (await provider.send(a_mail())).kind is K.DEAD_ADDRESS
        assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()
    assert (server.connections, len(server.mails)) == (1, 1)


async def test_the_number_of_connections_is_limited_and_all_emails_are_sent() -> None:
    async with ScriptedSmtpServer() as server:
        provider = an_smtp(server.port, max_connections=2)
        outcomes = await asyncio.gather(*(provider.send(a_mail()) for _ in range(20)))
        await provider.close()
    assert {outcome.kind for outcome in outcomes} == {K.ACCEPTED}
    assert (len(server.mails), server.connections) == (20, 2)


async def test_waiting_too_long_for_a_connection_is_transient() -> None:
    async with ScriptedSmtpServer(at("dot", "hang")) as server:
        provider = an_smtp(server.port, max_connections=1)
        first = asyncio.create_task(provider.send(a_mail(timeout_ms=4_000)))
        await asyncio.wait_for(server.took.wait(), PATIENCE_S)
        second = await provider.send(a_mail(timeout_ms=300))
        assert (second.kind, second.error_code) == (K.TRANSIENT, "pool")
        assert (await first).kind is K.AMBIGUOUS


async def test_a_connection_carries_a_limited_number_of_emails() -> None:
    async with ScriptedSmtpServer() as server:
        provider = an_smtp(server.port, mails_per_connection=2)
        for _ in range(4):
            await provider.send(a_mail())
        await provider.close()
    assert server.connections == 2


async def test_a_connection_is_used_for_a_limited_time() -> None:
    async with ScriptedSmtpServer() as server:
        provider = an_smtp(server.port, idle_ms=30)
        await provider.send(a_mail())
        await asyncio.wait_for(server.alone.wait(), PATIENCE_S)
        await provider.send(a_mail())
        await provider.close()
    assert server.connections == 2


async def test_a_cancelled_send_closes_its_connection() -> None:
    async with ScriptedSmtpServer(
        lambda number, step: "hang" if (number, step) == (1, "dot") else None
    ) as server:
        provider = an_smtp(server.port, max_connections=1)
        sending = asyncio.create_task(provider.send(a_mail()))
        await asyncio.wait_for(server.took.wait(), PATIENCE_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await provider.send(a_mail())).kind is K.ACCEPTED
        await provider.close()
    assert server.connections == 2


# Settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("host", {"host": " "}),
        ("tls", {"tls": "ssl"}),
        ("local_hostname", {"local_hostname": "my host"}),
        ("tls", {"host": "mail.example.com"}),
        ("from_email", {"from_email": "nobody"}),
        ("envelope_from", {"envelope_from": "a b"}),
        ("password", {"username": "app"}),
        ("ca_file", {"tls": "tls", "ca_file": "/nowhere/ca.pem"}),
        ("max_connections", {"max_connections": 0}),
        ("idle_ms", {"idle_ms": 0}),
        ("mails_per_connection", {"mails_per_connection": 0}),
    ],
)
def test_a_wrong_setting_is_named_at_start(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=field):
        an_smtp(**options)


def test_unencrypted_smtp_is_used_only_on_this_machine_unless_forced() -> None:
    allowed = [an_smtp(host=host) for host in ("localhost", "127.0.0.1", "::1")]
    allowed.append(an_smtp(host="mail.example.com", allow_plaintext=True))
    assert all(isinstance(one, SmtpProvider) for one in allowed)
    with pytest.raises(ConfigError, match="allow_plaintext"):
        an_smtp(host="mail.example.com")


def test_it_serves_the_channel_email() -> None:
    provider: Provider = an_smtp()
    assert SmtpProvider.channels == (Channel.EMAIL,)
    assert provider is not None


async def test_an_email_that_cannot_be_sent_is_not_attempted() -> None:
    outcome = await an_smtp().send(a_mail(Content(subject="=?utf-8?q?a?=", body="b")))
    assert (outcome.kind, outcome.error_code) == (K.BAD_CONTENT, "unsendable_content")
