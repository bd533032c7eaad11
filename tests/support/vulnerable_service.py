"""The command line with weaknesses planted in its HTTP service. Attacks on it must succeed and be noticed.

    python tests/support/vulnerable_service.py serve …

The server is uvicorn's own protocol, without the limits of `homing.http_server.server`: trailers become
headers, headers may be repeated, and a byte after a response cancels the only timer. Forms on unsubscribe
links may be large and are parsed by the standard library's MIME parser.
"""

from __future__ import annotations

import sys
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from msgspec.structs import replace
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from homing.api.intake import unsubscribe
from homing.cli.app import run
from homing.http_server import server
from homing.http_server.settings import ServerSettings


class UnlimitedConnection(HttpToolsProtocol):
    """Accepts the arguments of `ClientConnection` and ignores the limits."""

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def enforce_timeouts(self, now: float, head_s: float, idle_s: float, write_s: float) -> None: ...


def parsed_as_mime(content_type: str, body: bytes) -> bool:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    form = BytesParser(policy=HTTP).parsebytes(head + body)
    names = [part.get_param("name", header="content-disposition") for part in form.iter_parts()]
    return names == ["List-Unsubscribe"]


def plant() -> None:
    server.ClientConnection = UnlimitedConnection  # type: ignore[assignment,misc]
    unsubscribe.is_one_click = parsed_as_mime
    routes = unsubscribe.routes.all
    routes[:] = [replace(route, max_bytes=None) for route in routes]


if __name__ == "__main__":
    plant()
    sys.exit(run(sys.argv[1:]))
