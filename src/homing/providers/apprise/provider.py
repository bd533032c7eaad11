"""Sends to any Apprise URL: one adapter for more than a hundred services.

A call to Apprise blocks its thread and returns nothing but success or failure.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apprise as lib
from apprise.attachment.memory import AttachMemory

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import BlockingCalls
from homing.net.secrets import Secret, read_secret
from homing.providers.common.error_tables import build_refusal, load_error_table
from homing.providers.common.http_provider import Unsendable
from homing.providers.common.thread_pool import ThreadPool

_MAX_THREADS = 256

_CLOSE_MS = 5_000

_ABOUT_URL = ("3", "401", "403", "404", "405", "410")
"""HTTP statuses, or classes of them, that concern the address or the credentials in the URL."""


class _MessageText(NamedTuple):
    title: str
    body: str
    body_format: str


class _Reply(NamedTuple):
    """Apprise's result, and the last HTTP status that it logged."""

    accepted: bool
    status: str | None
    definite: bool = False
    """True if the message was a single request, so that its HTTP status says what became of it."""


class AppriseProvider:
    """Calls Apprise in threads. See docs/reference/providers/apprise.md."""

    def __init__(
        self,
        *,
        urls: str | Secret | Sequence[str | Secret] = (),
        url_from_recipient: bool = False,
        schemes: Sequence[str] = (),
        recipient_hosts: Sequence[str] = (),
        max_threads: int = 8,
    ) -> None:
        if isinstance(max_threads, bool) or not 1 <= max_threads <= _MAX_THREADS:
            raise ConfigError(
                "max_threads", f"is {max_threads!r}; use a whole number from 1 to {_MAX_THREADS}"
            )
        self._urls = tuple(_split_urls(urls))
        self._from_recipient = url_from_recipient
        self.host_slots = 64 if url_from_recipient else None
        """Maximum number of attempts in flight per recipient's service. None if all share configured ones."""
        if self._from_recipient == bool(self._urls):
            raise ConfigError("urls", "set either urls or url_from_recipient, not both")
        self._schemes = frozenset(scheme.lower() for scheme in schemes)
        self._hosts = frozenset(host.lower() for host in recipient_hosts)
        if self._from_recipient and not self._schemes:
            message = "is empty; list the schemes that recipients may use, such as discord"
            raise ConfigError("schemes", message)
        for scheme in self._schemes - _known_schemes():
            raise ConfigError("schemes", f"contains {scheme!r}, which Apprise does not support")
        self.max_in_flight = max_threads
        """Default number of attempts in flight. The setting `max_in_flight` overrides it."""
        self._thread_local = threading.local()
        self._threads: BlockingCalls | None = None
        for index, url in enumerate(self._urls):
            with capture_apprise_logs():
                if not len(_services((url,))):
                    raise ConfigError(f"urls[{index}]", "is not a URL that Apprise supports")

    def use_threads(self, threads: BlockingCalls) -> None:
        """Sets where Apprise runs. Without this, the provider makes a thread pool of its own."""
        self._threads = threads

    async def send(self, delivery: Delivery) -> Outcome:
        if self._threads is None:
            self._threads = ThreadPool[Any]("homing-apprise", self.max_in_flight)
        try:
            reply = await self._threads.call(lambda: self._notify(delivery))
        except asyncio.CancelledError:
            raise
        except Unsendable as error:
            return error.outcome
        except BaseException as error:
            # Only the exception's type: a plugin's error text may contain the URL.
            return load_error_table("apprise").outcome("raised", 0, f"Apprise raised {type(error).__name__}")
        return _outcome(reply, url_from_recipient=self._from_recipient)

    async def check(self) -> bool:
        """Returns True: Apprise offers no check other than sending."""
        return True

    async def close(self) -> None:
        """Waits a few seconds for calls in progress. A call that hangs is left behind."""
        if self._threads is not None:
            await self._threads.close(_CLOSE_MS)

    def _notify(self, delivery: Delivery) -> _Reply:
        """Sends one message.

        Runs in a thread of the pool, which creates its own services, because services keep state.
        """
        message, attachments = _message_text(delivery.content), _attachments(delivery.content)
        with capture_apprise_logs() as statuses:
            services = (
                self._recipient_services(delivery.address)
                if self._from_recipient
                else self._configured_services()
            )
            accepted = services.notify(
                body=message.body,
                title=message.title,
                body_format=message.body_format,
                attach=attachments or None,
            )
            definite = len(statuses) == 1 and not attachments and _targets(services) == 1
            return _Reply(bool(accepted), statuses[-1] if statuses else None, definite)

    def _configured_services(self) -> lib.Apprise:
        made: lib.Apprise | None = getattr(self._thread_local, "services", None)
        if made is None:
            made = self._thread_local.services = _services(self._urls)
        return made

    def _recipient_services(self, address: str) -> lib.Apprise:
        """Returns the service for a recipient's URL.

        Raises `Unsendable` if Apprise does not support the URL, if the URL has a query, or if its scheme or
        host is not allowed.
        """
        scheme = address.partition("://")[0].lower()
        if scheme not in self._schemes:
            raise _bad_url("has a scheme that is not listed in the setting schemes")
        if "?" in address:  # query options may name another host or enable redirects
            raise _bad_url("has a query, which is not allowed for recipients")
        parts: dict[str, Any] | None = lib.plugins.url_to_dict(address)  # type: ignore[no-untyped-call]
        services = _services((Secret(address),))
        if parts is None or not len(services):
            raise _bad_url("is not a URL that Apprise supports")
        if _uses_host_of_url(scheme) and str(parts.get("host")).lower() not in self._hosts:
            raise _bad_url("has a host that is not listed in the setting recipient_hosts")
        return services


def _outcome(reply: _Reply, *, url_from_recipient: bool) -> Outcome:
    """Returns the outcome of a call to Apprise.

    A failure is ambiguous, because one of several services may have accepted the message. If there is only
    one, and the message is a single request, the HTTP status decides.
    """
    accepted, status, definite = reply
    if accepted:
        return Outcome(OutcomeKind.ACCEPTED)
    error_text = f"Apprise reported a failure (HTTP {status})" if status else None
    if status is not None and definite:
        code = "rejected_url" if url_from_recipient and status.startswith(_ABOUT_URL) else None
        return load_error_table("apprise").outcome(code, int(status), error_text)
    return load_error_table("apprise").outcome("no", 0, error_text)


def _targets(services: lib.Apprise) -> int:
    """Returns the number of recipients at all services: a URL may name several, for example chats."""
    return sum(len(service) for service in services)


def _message_text(content: Content) -> _MessageText:
    title = content.title or content.subject or ""
    if content.html:
        return _MessageText(title, content.html, "html")
    body = content.text or content.body or ""
    if not body and not title:
        raise build_refusal("apprise", "empty")
    # A title without a body is sent as the body, because not every service has titles.
    return _MessageText(title, body, "text") if body else _MessageText("", title, "text")


def _attachments(content: Content) -> list[AttachMemory]:
    try:
        return [
            AttachMemory(  # type: ignore[no-untyped-call]
                content=b64decode(one.content), name=one.filename, mimetype=one.content_type
            )
            for one in content.attachments
        ]
    except ValueError:
        raise build_refusal("apprise", "attachment") from None


def _services(urls: Iterable[Secret]) -> lib.Apprise:
    made = lib.Apprise(asset=_asset())
    for url in urls:
        # `add` would split a text with a comma into several URLs.
        service = lib.Apprise.instantiate(url.reveal(), asset=_asset())
        if service is not None:
            made.add(service)
    return made


def _asset() -> lib.AppriseAsset:
    """Returns Apprise's options: services run one by one in our thread, without disk storage or redirects."""
    return lib.AppriseAsset(
        async_mode=False,
        service_timeout=0,
        storage_mode="memory",
        secure_logging=True,
        http_redirects=False,
    )


def _plugins() -> Any:
    """Returns Apprise's plugins. The first access loads all of them, which takes seconds."""
    return lib.manager_plugins.NotificationManager()  # type: ignore[no-untyped-call]


def _known_schemes() -> frozenset[str]:
    return frozenset(_plugins().schemas())


def _uses_host_of_url(scheme: str) -> bool:
    """Returns True if the service connects to the host in its URL rather than to a fixed one."""
    plugin = _plugins()[scheme]
    return any("{host}" in template for template in plugin.templates) or not plugin.templates


def _split_urls(urls: str | Secret | Sequence[str | Secret]) -> Iterable[Secret]:
    """Yields the URLs.

    A secret, such as a file, may contain several: one per line. Lines that start with `#` are comments.
    """
    for given in (urls,) if isinstance(urls, (str, Secret)) else urls:
        for line in read_secret("urls", given).reveal().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield Secret(line.strip())


def _bad_url(error: str) -> Unsendable:
    return build_refusal("apprise", "url", f"the recipient's address {error}")


_LOGGERS = ("apprise", "urllib3.connectionpool", "urllib3.util.retry", "requests", "requests_oauthlib")

_STATUS = re.compile(r"error[ =:]{1,3}([1-5]\d\d)\b")


class _LogCapture(logging.Filter):
    """Log filter that, inside its `with` block, drops what the current thread logs.

    Other threads log as usual.
    """

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


capture_apprise_logs = _LogCapture()
"""Context manager (`with … as statuses`) that hides what Apprise logs in this thread.

It collects the HTTP statuses in the hidden log messages.
"""


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(capture_apprise_logs)
