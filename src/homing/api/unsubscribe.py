"""One-click unsubscribe (RFC 8058), for recipients: without a key, by the link alone."""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP
from html import escape
from typing import Annotated, Literal
from urllib.parse import parse_qsl

from msgspec import Meta, Struct

from homing.api.answers import Answer, ApiError
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Caller
from homing.core.unsubscribe import LONGEST_TOKEN, ONE_CLICK, Subscription

routes = Routes("Unsubscribe", prefix="")

LinkToken = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$", max_length=LONGEST_TOKEN)]

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MOST_FIELDS = 20
_FIELD, _VALUE = ONE_CLICK
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Robots-Tag": "noindex",
}
_STYLE = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"
    "button{font:inherit;padding:.5rem 1.2rem}"
)


class OneClick(Struct, frozen=True, rename={"said": _FIELD}):
    """What a mail program posts."""

    said: Literal["One-Click"]


@routes.get("/unsubscribe/{token}", errors=("INVALID_LINK",))
async def show_unsubscribe(call: Call, token: LinkToken) -> Answer[bytes]:
    """A page that asks whether it is meant. It changes nothing: programs that look at links come here too."""
    found = await call.service.engine.unsubscribing.subscription(token)
    form = (
        '<form method="post">'
        f'<input type="hidden" name="{_FIELD}" value="{_VALUE}">'
        "<button>Unsubscribe</button></form>"
    )
    return _page("Unsubscribe?", f"<p>No more {_what(found)}?</p>{form}")


@routes.post(
    "/unsubscribe/{token}",
    raw=True,
    bodies={_FORM: OneClick, _MULTIPART: OneClick},
    errors=("INVALID_LINK",),
)
async def unsubscribe(call: Call, token: LinkToken) -> Answer[bytes]:
    """Unsubscribe from one category with one click.

    Mail programs post `List-Unsubscribe=One-Click`, as a form of either kind; so does the button of the page.
    Anything else changes nothing. Repeating it is harmless. Other categories are not touched.
    """
    unsubscribing = call.service.engine.unsubscribing
    found = await unsubscribing.subscription(token)
    if not _is_one_click(call):
        raise ApiError(
            "INVALID_REQUEST", f"{_FIELD}: is missing; post {_FIELD}={_VALUE} as a form", field=_FIELD
        )
    if await unsubscribing.changes(found):  # a click that is repeated for ever is noted once
        await _note(call, found)
    await unsubscribing.unsubscribe(token)
    return _page("Unsubscribed", f"<p>You will get no more {_what(found)}.</p>")


async def _note(call: Call, found: Subscription) -> None:
    """There is no caller: the recipient themselves did it."""
    who = Caller(tenant=found.tenant, who="recipient", scopes=frozenset())
    detail = {"category": found.category, "channel": found.channel.value}
    await call.service.trail.note(who, "recipient.unsubscribe", found.recipient_id or "", detail)


def _is_one_click(call: Call) -> bool:
    kind = call.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() == _MULTIPART:
        return ONE_CLICK in _parts(kind, call.raw)
    try:
        return ONE_CLICK in parse_qsl(call.raw.decode("ascii"), max_num_fields=_MOST_FIELDS)
    except ValueError:  # no form, or one of another kind
        return False


def _parts(kind: str, body: bytes) -> list[tuple[str, str]]:
    """The fields of a multipart form."""
    head = f"Content-Type: {kind}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    found = []
    for part in list(form.iter_parts())[:_MOST_FIELDS] if form.is_multipart() else ():
        content = part.get_payload(decode=True)
        if isinstance(content, bytes):
            name = part.get_param("name", header="content-disposition")
            found.append((str(name), content.decode("ascii", "replace").strip()))
    return found


def _what(found: Subscription) -> str:
    return f"<strong>{escape(found.category)}</strong> by {escape(found.channel.value)}"


def _page(title: str, body: str) -> Answer[bytes]:
    """Small and plain: no script, nothing from elsewhere."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{title}</h1>{body}</body></html>"
    )
    return Answer(text.encode(), headers=_HEADERS, content_type="text/html; charset=utf-8")
