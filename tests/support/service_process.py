"""`homing serve` as a separate process, for tests that call it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cli_driver import Cli

PATIENCE_S = 120
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


class Service:
    """A running process. Its first line shows its address."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        assert process.stdout is not None
        self.greeting = process.stdout.readline()
        found = re.match(r"serving on http://(127\.0\.0\.1:\d+) ", self.greeting)
        assert found, self.greeting or process.communicate()[1]
        self.address = found[1]

    @property
    def key(self) -> str:
        return (self.folder / ".homing/admin.key").read_text().strip()

    def call(
        self, method: str, path: str, json_body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        sent = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(headers or {})}
        try:
            connection.request(method, path, None if json_body is None else json.dumps(json_body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(self) -> str:
        status, body = self.call("POST", "/api/v1/notifications/send", MAIL)
        assert status == 202, body
        return str(json.loads(body)["notificationId"])

    def until_sent(self, id: str) -> None:
        self.until(id, "sent")

    def until(self, id: str, status: str, attempts: int = 0) -> Any:
        """Polls until the notification has this status (and this many attempts), and returns it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            found = json.loads(self.call("GET", f"/api/v1/notifications/{id}")[1])
            if found["status"] == status and found.get("attemptCount", 0) >= attempts:
                return found
            assert time.monotonic() < until, found
            time.sleep(0.05)


@contextmanager
def serving(cli: Cli, *argv: str, **env: str) -> Iterator[Service]:
    process = cli.start("serve", "--listen", "127.0.0.1:0", *argv, **env)
    try:
        yield Service(process, cli.folder)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
        process.communicate()
