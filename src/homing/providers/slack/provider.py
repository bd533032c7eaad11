"""Slack's incoming webhooks. The webhook's URL is the credential."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret, read_secret
from homing.providers.common.error_tables import build_refusal, load_error_table
from homing.providers.common.http_provider import HttpProvider, WallClock, wall_clock_ms

_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")

_OWN_CODES = ("not_slack", "unreadable")
"""Codes of the error table that Slack itself never returns."""


class SlackProvider(HttpProvider):
    """Posts to the webhook in the settings or, without one, to the recipient's webhook."""

    channels: ClassVar[tuple[Channel, ...]] = (Channel.CHAT,)

    def __init__(
        self,
        transport: Transport,
        *,
        webhook_url: str | Secret = "",
        base_url: str = "",
        escape: bool = True,
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        self._configured_url = (
            _check_webhook_url(read_secret("webhook_url", webhook_url)) if webhook_url else None
        )
        self._base_url = check_base_url(base_url) if base_url else ""
        self._escape = escape

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        hook = (
            self._configured_url.reveal() if self._configured_url else _check_recipient_url(delivery.address)
        )
        url = self._base_url + urlsplit(hook).path if self._base_url else hook
        body = msgspec.json.encode(build_message(delivery.content, escape=self._escape))
        return HttpRequest(url=url, body=body, headers=(("content-type", "application/json"),))

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        table = load_error_table("slack")
        said = answer.body[:200].decode("utf-8", "replace").strip()
        if answer.status == 200 and said == "ok":
            return Outcome(OutcomeKind.ACCEPTED)
        if 200 <= answer.status < 300:
            return table.outcome("unreadable", answer.status, None)
        code = said if said in table.codes and said not in _OWN_CODES else None
        wait_ms = parse_retry_after_ms(answer.headers.get("retry-after"), now_ms)
        outcome = table.outcome(
            code, answer.status, None, retry_after_ms=wait_ms, other_code=bool(said) and code is None
        )
        if self._configured_url and outcome.kind is OutcomeKind.DEAD_ADDRESS:
            return replace(outcome, kind=OutcomeKind.PROVIDER_FAULT)
        # A recipient's webhook URL is of no use to any other provider.
        return outcome if self._configured_url else replace(outcome, unlisted=False)


def build_message(content: Content, *, escape: bool = True) -> dict[str, Any]:
    """Returns the message: the text with the title in bold above it, and `blocks` from `data` unchanged."""
    text = content.text or content.body or ""
    clean = _escaped if escape else str
    title = f"*{clean(content.title)}*" if content.title else ""
    said: dict[str, Any] = {"text": "\n".join(part for part in (title, clean(text)) if part)}
    blocks = (content.data or {}).get("blocks")
    if isinstance(blocks, list):
        said["blocks"] = blocks
    return said


def _escaped(text: str) -> str:
    """Escapes Slack's three special characters, so that `<!channel>` in a text does not notify everyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _check_recipient_url(address: str) -> str:
    """Returns the recipient's URL. Raises `Unsendable` unless it leads to one of Slack's own hosts."""
    try:
        parts = urlsplit(address)
        fine = parts.scheme == "https" and parts.netloc.lower() in _HOSTS
    except ValueError:
        fine = False
    if not fine:
        raise build_refusal("slack", "not_slack")
    return address


def _check_webhook_url(hook: Secret) -> Secret:
    try:
        url = check_base_url(hook.reveal(), "webhook_url")
    except ConfigError:
        url = ""
    if len(urlsplit(url).path) < 2:
        raise ConfigError("webhook_url", "must be a webhook URL like https://hooks.slack.com/services/…")
    return Secret(url)
