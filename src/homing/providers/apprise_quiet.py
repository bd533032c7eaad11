"""Suppresses the log of Apprise and of its HTTP client, because both may write credentials."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("apprise", "urllib3.connectionpool", "urllib3.util.retry", "requests", "requests_oauthlib")
_STATUS = re.compile(r"error[ =:]{1,3}([1-5]\d\d)\b")


class _LogCapture(logging.Filter):
    """Suppresses what the current thread logs within the context manager. Other threads' logs pass."""

    def __init__(self) -> None:
        super().__init__()
        self._thread_local = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        statuses: list[str] | None = getattr(self._thread_local, "statuses", None)
        if statuses is None:
            return True
        # The HTTP status is the only part that certainly contains no secret.
        statuses += _STATUS.findall(record.getMessage())[:1]
        return False

    @contextmanager
    def __call__(self) -> Iterator[list[str]]:
        statuses: list[str] = []
        self._thread_local.statuses = statuses
        try:
            yield statuses
        finally:
            self._thread_local.statuses = None


quietly = _LogCapture()
"""`with … as statuses`: suppresses everything that Apprise logs, and collects the HTTP statuses in it."""

for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(quietly)
