"""Any Apprise URL: more than a hundred services by one adapter. It blocks, and answers yes or no."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apprise as lib
from apprise.attachment.memory import AttachMemory

from homing.core.errors import ConfigError
from homing.core.model import Content, Outcome, OutcomeKind
from homing.core.ports import Delivery
from homing.providers.answers import error_table
from homing.providers.apprise_quiet import quietly
from homing.providers.refusals import refusal
from homing.providers.secret import Secret, secret
from homing.providers.threads import Threads
from homing.providers.wire import Unsendable, inside

_MOST_THREADS = 256
_CLOSE_MS = 5_000


class _Words(NamedTuple):
    title: str
    body: str
    body_format: str


class _Reply(NamedTuple):
    """What Apprise said, and the HTTP status that it told its log of."""

    yes: bool
    status: str | None


class AppriseProvider:
    """Hands messages to Apprise in threads of its own. See docs/reference/providers/apprise.md."""

    def __init__(
        self,
        *,
        urls: str | Secret | Sequence[str | Secret] = (),
        url_from_recipient: bool = False,
        schemes: Sequence[str] = (),
        recipient_hosts: Sequence[str] = (),
        max_threads: int = 8,
    ) -> None:
        if isinstance(max_threads, bool) or not 1 <= max_threads <= _MOST_THREADS:
            raise ConfigError("max_threads", f"is {max_threads!r}; allowed are 1 to {_MOST_THREADS}")
        self._urls = tuple(_lines(urls))
        self._from_recipient = url_from_recipient
        if self._from_recipient == bool(self._urls):
            raise ConfigError("urls", "or url_from_recipient must be given, and not both")
        self._schemes = frozenset(scheme.lower() for scheme in schemes)
        self._hosts = frozenset(host.lower() for host in recipient_hosts)
        if self._from_recipient and not self._schemes:
            raise ConfigError("schemes", "is empty; name the schemes that recipients may use, e.g. discord")
        for scheme in self._schemes - _known_schemes():
            raise ConfigError("schemes", f"names {scheme!r}, which Apprise does not know")
        self._here = threading.local()
        self._threads: Threads[_Reply] = Threads("homing-apprise", max_threads)
        for index, url in enumerate(self._urls):
            with quietly():
                if not len(_services((url,))):
                    raise ConfigError(f"urls[{index}]", "is not a URL that Apprise can use")

    async def send(self, delivery: Delivery) -> Outcome:
        deadline = asyncio.get_running_loop().time() + inside(delivery.timeout_ms) / 1000
        try:
            # Half of the time at most for a thread: what ends while it waits was certainly not sent.
            place_ms = delivery.timeout_ms // 2
            reply = await self._threads.run(lambda: self._notify(delivery), place_within_ms=place_ms)
        except TimeoutError:
            return error_table("apprise").outcome("busy", 0, None)
        left_s = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({reply}, timeout=max(0.0, left_s))
        return _outcome(reply)

    async def check(self) -> bool:
        """Nothing can be asked without sending."""
        return True

    async def close(self) -> None:
        """Waits a little for what is under way; a call that hangs is left behind."""
        await self._threads.close(_CLOSE_MS)

    def _notify(self, delivery: Delivery) -> _Reply:
        """In a thread of the pool. Configured services are made once per thread: they keep state."""
        words, attachments = _words(delivery.content), _attachments(delivery.content)
        with quietly() as statuses:
            services = self._recipients(delivery.address) if self._from_recipient else self._configured()
            said = services.notify(
                body=words.body,
                title=words.title,
                body_format=words.body_format,
                attach=attachments or None,
            )
            return _Reply(bool(said), statuses[-1] if statuses else None)

    def _configured(self) -> lib.Apprise:
        made: lib.Apprise | None = getattr(self._here, "services", None)
        if made is None:
            made = self._here.services = _services(self._urls)
        return made

    def _recipients(self, address: str) -> lib.Apprise:
        """A service from a recipient's URL: of a scheme that is allowed, to a host that it may name."""
        scheme = address.partition("://")[0].lower()
        if scheme not in self._schemes:
            raise _bad_url("has a scheme that the setting schemes does not allow")
        if "?" in address:  # its options may name another host, or follow redirects to one
            raise _bad_url("has a query, which a recipient's may not")
        parts: dict[str, Any] | None = lib.plugins.url_to_dict(address)  # type: ignore[no-untyped-call]
        services = _services((Secret(address),))
        if parts is None or not len(services):
            raise _bad_url("is not a URL that Apprise can use")
        if _goes_to_its_host(scheme) and str(parts.get("host")).lower() not in self._hosts:
            raise _bad_url("names a host that the setting recipient_hosts does not allow")
        return services


def _outcome(reply: asyncio.Future[_Reply]) -> Outcome:
    """A yes is a yes. A no may have been taken all the same: by one of several services, for instance."""
    if not reply.done():
        return error_table("apprise").outcome("timeout", 0, None)
    error = reply.exception()
    if isinstance(error, Unsendable):
        return error.outcome
    if error is not None:
        # Only its kind: the text of a plugin's error may hold the URL.
        return error_table("apprise").outcome("raised", 0, f"Apprise raised {type(error).__name__}")
    yes, status = reply.result()
    if yes:
        return Outcome(OutcomeKind.ACCEPTED)
    return error_table("apprise").outcome("no", 0, f"Apprise says no (HTTP {status})" if status else None)


def _words(content: Content) -> _Words:
    title = content.title or content.subject or ""
    if content.html:
        return _Words(title, content.html, "html")
    body = content.text or content.body or ""
    if not body and not title:
        raise refusal("apprise", "empty")
    # A title alone is the message: not every service has titles.
    return _Words(title, body, "text") if body else _Words("", title, "text")


def _attachments(content: Content) -> list[AttachMemory]:
    try:
        return [
            AttachMemory(  # type: ignore[no-untyped-call]
                content=b64decode(one.content), name=one.filename, mimetype=one.content_type
            )
            for one in content.attachments
        ]
    except ValueError:
        raise refusal("apprise", "attachment") from None


def _services(urls: Iterable[Secret]) -> lib.Apprise:
    made = lib.Apprise(asset=_asset())
    for url in urls:
        # `add` of a text would take it for several URLs where it has a comma.
        service = lib.Apprise.instantiate(url.reveal(), asset=_asset())
        if service is not None:
            made.add(service)
    return made


def _asset() -> lib.AppriseAsset:
    """One service after the other in the thread that we gave it; nothing on disk; no redirects."""
    return lib.AppriseAsset(
        async_mode=False,
        service_timeout=0,
        storage_mode="memory",
        secure_logging=True,
        http_redirects=False,
    )


def _plugins() -> Any:
    """Apprise's list of services. All of them are loaded when it is first asked, which takes seconds."""
    return lib.manager_plugins.NotificationManager()  # type: ignore[no-untyped-call]


def _known_schemes() -> frozenset[str]:
    return frozenset(_plugins().schemas())


def _goes_to_its_host(scheme: str) -> bool:
    """Whether the service connects to a host that its URL names, rather than to one of its own."""
    plugin = _plugins()[scheme]
    return any("{host}" in template for template in plugin.templates) or not plugin.templates


def _lines(urls: str | Secret | Sequence[str | Secret]) -> Iterable[Secret]:
    """Each URL; a secret, such as a file, may hold several of them, one per line."""
    for given in (urls,) if isinstance(urls, (str, Secret)) else urls:
        for line in secret("urls", given).reveal().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield Secret(line.strip())


def _bad_url(error: str) -> Unsendable:
    return refusal("apprise", "url", f"the recipient's address {error}")
