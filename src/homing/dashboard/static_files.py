"""The files that pages need: the style sheet and scripts. They are part of the package and never change."""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib import resources

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPES = {
    "pages.css": "text/css",
    "htmx.js": "text/javascript",
    "pages.js": "text/javascript",
    "htmx.LICENSE.txt": "text/plain",
}
"""Name of each file → its media type."""

_FOREVER = "public, max-age=31536000, immutable"

_AGAIN = "no-cache"


class StaticFile(Struct, frozen=True):
    """A file in memory."""

    content: bytes
    zipped: bytes
    version: str
    """Start of the digest of the content. A page names it, so that a new release is loaded at once."""


@cache
def static_file(name: str) -> StaticFile:
    """Returns a file of the package. Raises `KeyError` if there is no such file."""
    if name not in MEDIA_TYPES:
        raise KeyError(name)
    content = resources.files("homing.dashboard").joinpath("static", name).read_bytes()
    return StaticFile(content, gzip.compress(content, mtime=0), sha256(content).hexdigest()[:16])


def static_url(name: str) -> str:
    """Returns the path of a file below the folder of the pages, with its version."""
    return f"{name}?v={static_file(name).version}"


def respond_with_file(name: str, request: Request) -> Response:
    """Returns a file. Browsers keep it for good if the request names its version."""
    found = static_file(name)
    current = request.query_params.get("v") == found.version
    headers = {
        "Cache-Control": _FOREVER if current else _AGAIN,
        "ETag": f'"{found.version}"',
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    content = found.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = found.zipped, "gzip"
    return Response(content, media_type=MEDIA_TYPES[name], headers=headers)
