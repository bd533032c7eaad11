"""Checks of email content: nothing that could become a header, a path or a second address is accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.content.email import RESERVED_HEADERS, RESERVED_PREFIXES, list_unsubscribe
from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Channel, Content, Recipient
from homing.core.send_request import SendLimits, address_of, check_content

LIMITS = SendLimits()
MAIL = Content(subject="s", body="b")
EMIT: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors/list_unsubscribe.json").read_text())


def refused(content: Content, channel: Channel = Channel.EMAIL) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        check_content(content, channel, LIMITS)
    return error.value


def attached(**fields: str) -> Content:
    return replace(MAIL, attachments=(Attachment(**{"filename": "f", "content": "QQ==", **fields}),))


# Injection -------------------------------------------------------------------------------------------

BREAKS = [
    "\r\n",
    "\n",
    "\r",
    "\x00",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u2029",
    "\r\n ",
    "\n\t",
    "\x1c",
    "\x7f",
]
PAYLOADS = ["Bcc: eve@example.org", "To: eve@example.org", "", "\r\n<script>", ".", "Content-Type: text/html"]
WORDS = [
    "=?utf-8?q?a=0d=0aBcc:_eve@example.org?=",
    "=?UTF-8?B?DQpCY2M6IGV2ZUBleGFtcGxlLm9yZw==?=",
    "=?us-ascii?Q?=0A?=",
    "=?iso-8859-1?q?x?= =?iso-8859-1?q?y?=",
    "=?utf-8*en?q?a?=",
    "=?x?y?z?=",
    "=??q??=",
    "=?utf-8?q?unfinished =?utf-8?q?a?=",
]


def attacks() -> Iterator[str]:
    for middle, payload, before, after in product(BREAKS, PAYLOADS, ("", "Hello"), ("", " world")):
        yield f"{before}{middle}{payload}{after}"
    for word, before, after in product(WORDS, ("", "Re: ", "x"), ("", " tail", "x")):
        yield f"{before}{word}{after}"


PLACES = {
    "content.subject": lambda text: replace(MAIL, subject=text),
    "content.title": lambda text: replace(MAIL, title=text),
    "content.headers": lambda text: replace(MAIL, headers={text: "v"}),
    "content.headers.X-A": lambda text: replace(MAIL, headers={"X-A": text}),
    "content.unsubscribeUrl": lambda text: replace(MAIL, unsubscribe_url=f"https://example.org/{text}"),
    "content.attachments.filename": lambda text: attached(filename=f"{text}.pdf"),
    "content.attachments.contentType": lambda text: attached(content_type=f"text/{text}"),
}


@pytest.mark.parametrize("field", PLACES)
def test_every_attempt_to_smuggle_a_header_is_refused(field: str) -> None:
    tried = list(attacks())
    assert len(tried) > 350
    for attack in tried:
        assert refused(PLACES[field](attack)).field == field, repr(attack)


def test_every_attempt_to_smuggle_a_header_through_an_address_is_refused() -> None:
    for attack in attacks():
        for address in (f"a{attack}b@example.org", f"a@example{attack}x.org"):
            with pytest.raises(InvalidRequest):
                address_of(Recipient(email=address), Channel.EMAIL)


@pytest.mark.parametrize(
    "address",
    [
        "a(b)@x.org",
        "a@[127.0.0.1]",
        "a:b@x.org",
        "a\\b@x.org",
        ".a@x.org",
        "a.@x.org",
        "a@.x.org",
        "a@x.org.",
    ],
)
def test_an_address_that_would_need_quotes_in_a_header_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"recipient\.email"):
        address_of(Recipient(email=address), Channel.EMAIL)


@pytest.mark.parametrize("address", ["ö@example.org", "a@bücher.example", "a+b=c@x.org", "o'neil@x.org"])
def test_unusual_but_valid_addresses_are_accepted(address: str) -> None:
    assert address_of(Recipient(email=address), Channel.EMAIL) == address


@given(st.text(max_size=200))
def test_an_accepted_subject_is_one_line_without_encoded_words(text: str) -> None:
    try:
        check_content(replace(MAIL, subject=text), Channel.EMAIL, LIMITS)
    except InvalidRequest:
        return
    assert len(text.splitlines()) <= 1
    assert not ("=?" in text and "?=" in text.partition("=?")[2])


def test_an_encoded_word_is_allowed_on_channels_other_than_email() -> None:
    check_content(replace(MAIL, subject="=?utf-8?q?a?=", data={"a": 1}), Channel.WEBHOOK, LIMITS)


# Headers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS) + [f"{p}anything" for p in RESERVED_PREFIXES])
def test_a_header_that_homing_writes_itself_is_refused_in_any_case(name: str) -> None:
    for spelled in (name, name.upper(), name.title()):
        error = refused(replace(MAIL, headers={spelled: "x"}))
        assert (error.field, "reserved" in error.message) == (f"content.headers.{spelled}", True)


@pytest.mark.parametrize("name", ["", " X", "X ", "X:", "X Y", "Ü", "X\u00a0", "-X", "X" * 65, "X@Y"])
def test_an_invalid_header_name_is_refused(name: str) -> None:
    assert refused(replace(MAIL, headers={name: "x"})).field == "content.headers"


@pytest.mark.parametrize("value", ["", " x", "x ", "é", "x\ty", "v" * 901])
def test_a_header_value_that_would_be_altered_in_transit_is_refused(value: str) -> None:
    assert refused(replace(MAIL, headers={"X-A": value})).field == "content.headers.X-A"


def test_headers_are_limited_in_number_unique_and_count_towards_the_content_size() -> None:
    assert refused(replace(MAIL, headers={f"X-{n}": "v" for n in range(33)})).field == "content.headers"
    assert refused(replace(MAIL, headers={"X-A": "v", "x-a": "w"})).field == "content.headers.x-a"
    with pytest.raises(InvalidRequest, match="at most 500 are allowed"):
        check_content(replace(MAIL, headers={"X-A": "v" * 600}), Channel.EMAIL, SendLimits(content_bytes=500))


def test_the_docs_list_every_reserved_header() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/email-content.md").read_text()
    paragraph = page.partition("These headers are written for you")[2].partition("\n\n")[0]
    named = {name.lower() for name in re.findall(r"`([\w-]+)`", paragraph)}
    assert named == RESERVED_HEADERS | set(RESERVED_PREFIXES)


def test_common_headers_are_accepted() -> None:
    headers = {"X-Entity-Ref-ID": "17", "Auto-Submitted": "auto-generated", "References": "<a@b> <c@d>"}
    check_content(replace(MAIL, headers=headers), Channel.EMAIL, LIMITS)


def test_an_email_subject_has_a_length_limit() -> None:
    assert refused(replace(MAIL, subject="x" * 901)).field == "content.subject"


# One-click unsubscribe -------------------------------------------------------------------------------


def test_the_unsubscribe_headers_are_those_of_rfc_8058() -> None:
    url, mailto = "https://notify.example.com/u/opaque-token", "unsub@notify.example.com?subject=unsubscribe"
    assert dict(list_unsubscribe(url, mailto)) == EMIT["emit"]
    only_url = dict(list_unsubscribe(url))
    assert only_url["List-Unsubscribe"] == f"<{url}>"
    assert only_url["List-Unsubscribe-Post"] == EMIT["one_click_request"]["body"]
    assert list_unsubscribe(None) == ()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/u", "mailto:a@example.org", "https://", "https://example.org/a b", "//x.org",
        "https://example.org/>,<https://evil.example", 'https://example.org/"', "https://exämple.org/u",
        "https://[::1/u", "https://example.org/" + "x" * 900, "HTTPS://example.org/\n",
    ],
)  # fmt: skip
def test_only_a_plain_https_url_is_accepted_for_unsubscribing(url: str) -> None:
    assert refused(replace(MAIL, unsubscribe_url=url)).field == "content.unsubscribeUrl"


# Attachments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        " ",
        " a.pdf",
        "a.pdf ",
        "../a.pdf",
        "a/b.pdf",
        "a\\b.pdf",
        "gpj.\u202eexe",
        "x" * 201,
        "a\nb",
    ],
)
def test_an_invalid_or_misleading_file_name_is_refused(name: str) -> None:
    assert refused(attached(filename=name)).field == "content.attachments.filename"


@pytest.mark.parametrize(
    "kind",
    ["", "pdf", "text/plain; charset=utf-8", "text/", "/plain", "message/rfc822", "Multipart/mixed", "a/b/c"],
)
def test_a_content_type_is_a_media_type_without_parameters(kind: str) -> None:
    assert refused(attached(content_type=kind)).field == "content.attachments.contentType"


@pytest.mark.parametrize("id", ["logo", "img_1.png", "logo@example.org", "x" * 100])
def test_a_content_id_names_a_file_that_the_html_shows(id: str) -> None:
    check_content(attached(content_id=id), Channel.EMAIL, LIMITS)


@pytest.mark.parametrize(
    "id", ["", "<logo>", "a b", "a@", "@a", "a@b@c", ".a", "a..b", "ä", "a\n", "a\r\nX: y", "x" * 101]
)
def test_a_content_id_that_could_not_be_a_header_is_refused(id: str) -> None:
    assert refused(attached(content_id=id)).field == "content.attachments.contentId"


def test_two_files_do_not_have_the_same_content_id() -> None:
    (one,) = attached(content_id="logo").attachments
    assert "the same" in refused(replace(MAIL, attachments=(one, one))).message


@pytest.mark.parametrize(
    "content", ["", "\r\n", "Q", "QQ", "QQ=", "QQ==Q", "Q===", "=QQ=", "Q-_=", "QQ==\x00", " QQ=="]
)
def test_incomplete_base64_is_refused(content: str) -> None:
    assert refused(attached(content=content)).field == "content.attachments.content"


@pytest.mark.parametrize("content", ["QQ==", "QUE=", "QUFB", "QUFB\r\nQUFB\r\n", "QU\nFB"])
def test_base64_may_contain_line_breaks(content: str) -> None:
    check_content(attached(content=content), Channel.EMAIL, LIMITS)


def test_the_number_of_attachments_is_limited() -> None:
    many = replace(MAIL, attachments=(Attachment("f", "QQ=="),) * 101)
    assert refused(many).field == "content.attachments"
