"""The meaning of SMTP replies: the vectors, and the stage of the conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.notifications import OutcomeKind
from homing.providers.smtp.replies import SmtpReply, SmtpStage, classify_reply, event_outcome
from support.vector_files import vectors

K = OutcomeKind
REPLIES: dict[str, Any] = vectors("smtp_replies")
CLASSES = {
    "accepted": {K.ACCEPTED},
    "transient": {K.TRANSIENT},
    "rate_limited": {K.THROTTLED},
    "permanent": {K.BAD_CONTENT, K.BAD_RECIPIENT},
    "permanent_address": {K.DEAD_ADDRESS},
    "config": {K.PROVIDER_FAULT},
}


@pytest.mark.parametrize("case", REPLIES["cases"], ids=lambda case: f"{case['reply']}-{case['enhanced']}")
def test_each_reply_of_the_vectors_has_its_class(case: dict[str, Any]) -> None:
    reply = SmtpReply(int(case["reply"]), f"{case['enhanced'] or ''} some words")
    if case["class"] == "intermediate":
        assert reply.goes_on
        assert not reply.positive
        return
    for stage in (SmtpStage.RECIPIENT, SmtpStage.DOT):
        if case["class"] == "accepted" and stage is not SmtpStage.DOT:
            assert reply.positive
            continue
        assert classify_reply(reply, stage).kind in CLASSES[case["class"]], stage


def test_the_situations_of_the_vectors_have_their_texts() -> None:
    classes = {case["situation"]: case["class"] for case in REPLIES["extra"]}
    assert classes["connection refused / timeout / reset before any reply"] == "transient"
    for word in ("connect", "timeout", "dropped"):
        assert event_outcome(word).kind is K.TRANSIENT
    assert classes["connection lost after end-of-data dot was sent and before the reply"] == "unknown_outcome"
    assert event_outcome("dropped_after_dot").kind is event_outcome("timeout_after_dot").kind is K.AMBIGUOUS


@pytest.mark.parametrize(
    ("code", "text", "stage", "kind"),
    [
        (554, "5.7.1 no service for you", SmtpStage.GREETING, K.PROVIDER_FAULT),
        (535, "5.7.8 bad password", SmtpStage.GREETING, K.PROVIDER_FAULT),
        (454, "4.7.0 try later", SmtpStage.GREETING, K.TRANSIENT),
        (550, "5.7.1 sender refused", SmtpStage.SENDER, K.PROVIDER_FAULT),
        (530, "5.7.0 login first", SmtpStage.SENDER, K.PROVIDER_FAULT),
        (552, "too big", SmtpStage.SENDER, K.BAD_CONTENT),
        (500, "5.3.4 too big", SmtpStage.SENDER, K.BAD_CONTENT),
        (550, "no", SmtpStage.RECIPIENT, K.BAD_RECIPIENT),
        (554, "5.7.1 relay denied", SmtpStage.RECIPIENT, K.BAD_RECIPIENT),
        (550, "looks like spam", SmtpStage.DOT, K.BAD_CONTENT),
        (554, "5.7.1 looks like spam", SmtpStage.DOT, K.BAD_CONTENT),
        (550, "5.1.1 gone meanwhile", SmtpStage.DOT, K.DEAD_ADDRESS),
        (250, "ok", SmtpStage.SENDER, K.TRANSIENT),
        (354, "go on", SmtpStage.DOT, K.AMBIGUOUS),
        (99, "", SmtpStage.DOT, K.AMBIGUOUS),
        (-1, "", SmtpStage.RECIPIENT, K.TRANSIENT),
        (700, "", SmtpStage.DATA, K.TRANSIENT),
    ],
)
def test_the_same_code_has_another_meaning_at_another_stage(
    code: int, text: str, stage: SmtpStage, kind: OutcomeKind
) -> None:
    assert classify_reply(SmtpReply(code, text), stage).kind is kind


@pytest.mark.parametrize(
    ("code", "text"),
    [(450, "4.7.1 wait"), (451, "4.7.1 Greylisted"), (450, "Graylisting in effect"), (451, "grey-listed")],
)
def test_greylisting_is_retried(code: int, text: str) -> None:
    outcome = classify_reply(SmtpReply(code, text), SmtpStage.RECIPIENT)
    assert (outcome.kind, outcome.retry_after_ms) == (K.TRANSIENT, 300_000)


def test_code_and_text_are_kept_without_the_recipient() -> None:
    outcome = classify_reply(
        SmtpReply(550, "5.1.1 <ada@example.org>: User unknown\n5.1.1 in table"), SmtpStage.RECIPIENT
    )
    assert outcome.error_code == "550 5.1.1"
    assert "ada@" not in (outcome.error or "")
    assert "User unknown" in (outcome.error or "")


@given(st.integers(-10, 1000), st.text(max_size=60), st.sampled_from(SmtpStage))
def test_no_reply_makes_it_raise(code: int, text: str, stage: SmtpStage) -> None:
    outcome = classify_reply(SmtpReply(code, text), stage)
    assert (outcome.kind is K.ACCEPTED) == (stage is SmtpStage.DOT and 200 <= code <= 299)
    assert (outcome.kind is K.AMBIGUOUS) == (stage is SmtpStage.DOT and code // 100 not in (2, 4, 5))


@pytest.mark.parametrize(
    ("reply", "stage", "unlisted"),
    [
        ("554 Message rejected: Email address is not verified", SmtpStage.DOT, True),
        ("554 5.7.0 sending is suspended", SmtpStage.DOT, True),
        ("550 5.9.9 something new", SmtpStage.DOT, True),
        ("550 looks like spam", SmtpStage.DOT, False),
        ("554 5.7.1 looks like spam", SmtpStage.DOT, False),
        ("554 5.6.0 cannot be parsed", SmtpStage.DOT, False),
        ("552 5.9.9 too large", SmtpStage.DOT, False),
        ("554 no such user", SmtpStage.RECIPIENT, False),
        ("451 4.3.0 later", SmtpStage.DOT, False),
    ],
)
def test_a_refusal_of_the_email_missing_in_the_table_is_marked_as_unlisted(
    reply: str, stage: SmtpStage, unlisted: bool
) -> None:
    assert classify_reply(SmtpReply(int(reply[:3]), reply[4:]), stage).unlisted is unlisted


@pytest.mark.parametrize("code", ["5.4.5", "5.7.13", "5.7.20", "5.7.24", "5.7.57", "5.7.60", "5.7.708"])
def test_a_refusal_of_the_account_or_sender_is_a_fault_of_the_provider_at_every_stage(code: str) -> None:
    for stage in (SmtpStage.SENDER, SmtpStage.RECIPIENT, SmtpStage.DATA, SmtpStage.DOT):
        assert classify_reply(SmtpReply(550, f"{code} no"), stage).kind is OutcomeKind.PROVIDER_FAULT
