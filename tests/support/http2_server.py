"""An HTTP/2 server that ends streams as a test plans: with a response, a reset or a GOAWAY."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trustme

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_PREFACE_BYTES = 24
_STATUS_200 = b"\x88"  # an entry of HPACK's static table
REFUSED_STREAM, CANCEL = 7, 8


class Http2Server:
    """Answers each request by the next planned action, and by 200 once the plan is used up."""

    def __init__(self) -> None:
        self.url = ""
        self.requests = 0
        self._plan: list[str] = []

    def play(self, plan: Iterable[str]) -> None:
        """Plans the next actions: `ok`, `refuse`, `cancel` or `goaway`."""
        self._plan = list(plan)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(_PREFACE_BYTES)
            writer.write(_frame(_SETTINGS, 0, 0))
            while True:
                head = await reader.readexactly(9)
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
                payload = await reader.readexactly(int.from_bytes(head[:3]))
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                    writer.write(self._ending(stream))
                await writer.drain()
        writer.close()

    def _ending(self, stream: int) -> bytes:
        self.requests += 1
        match self._plan.pop(0) if self._plan else "ok":
            case "refuse":
                return _frame(_RST_STREAM, 0, stream, struct.pack(">I", REFUSED_STREAM))
            case "cancel":
                return _frame(_RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
            case "goaway":
                return _frame(_GOAWAY, 0, 0, struct.pack(">II", max(0, stream - 2), 0))
            case _:
                return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _STATUS_200)


@asynccontextmanager
async def http2_server(folder: Path) -> AsyncIterator[tuple[Http2Server, str]]:
    """Starts a server. Returns it, and the file of the authority that signed its certificate."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    made = Http2Server()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
    try:
        yield made, str(folder / "ca.pem")
    finally:
        server.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
