"""Routes for one-click unsubscribe (RFC 8058). Recipients need no API key, only the link."""

from __future__ import annotations

import re
from html import escape
from typing import Annotated, Literal
from urllib.parse import parse_qsl

from msgspec import Meta, Struct

from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.http.routing import Routes
from homing.api.service import ApiCall
from homing.core.access.scopes import Caller
from homing.core.recipients.unsubscribe_links import LONGEST_TOKEN, ONE_CLICK, Subscription

routes = Routes("Unsubscribe", prefix="")


LinkToken = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$", max_length=LONGEST_TOKEN)]


_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"

_MAX_BODY_BYTES = 1024

_FIELD, _VALUE = ONE_CLICK

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
"""A multipart boundary, as defined in RFC 2046."""

_DISPOSITION = re.compile(
    rf"(?i:content-disposition:[ \t]*form-data[ \t]*;[ \t]*name=)(?:\"{_FIELD}\"|{_FIELD})[ \t]*"
)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Robots-Tag": "noindex",
}

_STYLE = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"
    "button{font:inherit;padding:.5rem 1.2rem}"
)


class OneClickForm(Struct, frozen=True, rename={"said": _FIELD}):
    """Form that a mail program or the unsubscribe page posts."""

    said: Literal["One-Click"]


@routes.get("/unsubscribe/{token}", errors=("INVALID_LINK",))
async def show_unsubscribe(call: ApiCall, token: LinkToken) -> ApiResponse[bytes]:
    """Show the unsubscribe page, which asks for confirmation.

    Opening the page changes nothing, because link scanners and previews open it too.
    """
    found = await call.service.engine.unsubscribe_links.subscription(token)
    form = (
        '<form method="post">'
        f'<input type="hidden" name="{_FIELD}" value="{_VALUE}">'
        "<button>Unsubscribe</button></form>"
    )
    return _page("Unsubscribe?", f"<p>No more {_what(found)}?</p>{form}")


@routes.post(
    "/unsubscribe/{token}",
    raw=True,
    max_bytes=_MAX_BODY_BYTES,
    bodies={_FORM: OneClickForm, _MULTIPART: OneClickForm},
    errors=("INVALID_LINK",),
)
async def unsubscribe(call: ApiCall, token: LinkToken) -> ApiResponse[bytes]:
    """Unsubscribe from one category with one click.

    Mail programs post `List-Unsubscribe=One-Click` as a URL-encoded or multipart form. The page's button does
    the same. The body may have at most 1 KiB and no other field. Any other body is rejected and changes
    nothing. Repeating the request is harmless. Other categories are not affected.
    """
    unsubscribe_links = call.service.engine.unsubscribe_links
    found = await unsubscribe_links.subscription(token)
    if not is_one_click(call.headers.get("content-type", ""), call.raw):
        raise ApiError(
            "MALFORMED_REQUEST",
            f"{_FIELD}: is missing, or is not the only field; post {_FIELD}={_VALUE} as a form",
            field=_FIELD,
        )
    if await unsubscribe_links.changes(found):  # repeated clicks must not fill the audit trail
        await _note(call, found)
    await unsubscribe_links.unsubscribe(token)
    return _page("Unsubscribed", f"<p>You will get no more {_what(found)}.</p>")


async def _note(call: ApiCall, found: Subscription) -> None:
    """Writes an audit entry in the name of the recipient."""
    who = Caller(tenant=found.tenant, who="recipient", scopes=frozenset())
    detail = {"category": found.category, "channel": found.channel.value}
    await call.service.trail.note(who, "recipient.unsubscribe", found.recipient_id or "", detail)


def is_one_click(content_type: str, body: bytes) -> bool:
    """Returns True if the body is a form with the one field of RFC 8058 and nothing else.

    The running time is linear in the size of header and body. No general MIME parser is used, because anyone
    can call this.
    """
    if len(body) > _MAX_BODY_BYTES:
        return False
    try:
        text = body.decode("ascii")
    except UnicodeDecodeError:
        return False
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() == _MULTIPART:
        return _is_one_click_part(_boundary(parameters), text)
    return text.count("&") == 0 and ONE_CLICK in parse_qsl(text.strip("\r\n"))


def _boundary(parameters: str) -> str:
    """Returns the boundary in a Content-Type's parameters, or an empty string if there is no valid one."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "boundary":
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] == '"':
                value = value[1:-1]
            return value if _BOUNDARY.fullmatch(value) else ""
    return ""


def _is_one_click_part(boundary: str, text: str) -> bool:
    """Returns True if a multipart form consists of the one part that RFC 8058 describes.

    Lines may end with LF. Headers of the part other than Content-Disposition are ignored.
    """
    if not boundary:
        return False
    parts = f"\n{text}".replace("\r\n", "\n").split(f"\n--{boundary}")
    if len(parts) != 3 or parts[0].strip() or parts[2].rstrip() != "--":
        return False
    head, _, value = parts[1].partition("\n\n")
    first, *lines = head.split("\n")
    named = [line for line in lines if line.lower().startswith("content-disposition:")]
    is_named = len(named) == 1 and _DISPOSITION.fullmatch(named[0]) is not None
    return is_named and not first.strip() and value.strip() == _VALUE


def _what(found: Subscription) -> str:
    return f"<strong>{escape(found.category)}</strong> by {escape(found.channel.value)}"


def _page(title: str, body: str) -> ApiResponse[bytes]:
    """Returns a small HTML page without scripts or external resources."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{title}</h1>{body}</body></html>"
    )
    return ApiResponse(text.encode(), headers=_HEADERS, content_type="text/html; charset=utf-8")
