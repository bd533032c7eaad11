"""Apprise's own log, kept from leaving: it, and the HTTP client below it, may write credentials."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("apprise", "urllib3.connectionpool", "urllib3.util.retry", "requests", "requests_oauthlib")
_STATUS = re.compile(r"error[ =:]{1,3}([1-5]\d\d)\b")


class _Quiet(logging.Filter):
    """Holds back what the current thread logs while it is at work for us. Other users' logs go on."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        heard: list[str] | None = getattr(self._here, "heard", None)
        if heard is None:
            return True
        # Of all that was said only the HTTP status is sure to hold no secret.
        heard += _STATUS.findall(record.getMessage())[:1]
        return False

    @contextmanager
    def __call__(self) -> Iterator[list[str]]:
        heard: list[str] = []
        self._here.heard = heard
        try:
            yield heard
        finally:
            self._here.heard = None


quietly = _Quiet()
"""`with quietly() as statuses`: nothing of what Apprise logs in here comes out but the HTTP statuses."""

for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(quietly)
