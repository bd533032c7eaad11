"""Builds the content of a message: the request's content or a rendered template, plus an unsubscribe link."""

from __future__ import annotations

from functools import lru_cache, partial

from msgspec.structs import replace

from homing.core.content.locales import LocalePolicy
from homing.core.errors import TemplateFailed, TemplateNotFound
from homing.core.notifications import Channel, Content, Recipient
from homing.core.plain_values import plain_text
from homing.core.ports.plug_ins import Rendered, Renderer
from homing.core.send_request import SendRequest
from homing.engine.intake.planning import DeliveryPlan
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks
from homing.engine.plug_in_calls import contain

_MAX_CACHED_LOCALES = 4_096
"""Maximum number of cached locale lookups. Tenants and locales are few and recur often."""

UNSUBSCRIBE_LINK_VARIABLE = "unsubscribeUrl"
"""Name of the template variable that holds the unsubscribe link."""


BuiltContent = tuple[Content, str | None, str | None]
"""(content, locale, template version)."""


class ContentBuilder:
    """Builds the content of notifications."""

    def __init__(
        self, renderer: Renderer | None, locales: LocalePolicy | None, links: UnsubscribeLinks | None
    ) -> None:
        self._renderer = renderer
        self._locales = locales
        if locales is not None:
            self._locale = lru_cache(_MAX_CACHED_LOCALES)(locales.resolve)
        self._links = links if links is not None and links.offers else None
        self.keeps_given_content = self._links is None
        """True if the content of a request is used unchanged, because no unsubscribe links are added."""

    async def build(
        self,
        tenant: str,
        request: SendRequest,
        recipient: Recipient,
        channel: Channel,
        address: str,
        plan: DeliveryPlan,
    ) -> BuiltContent:
        """Returns the content, locale and template version of one notification."""
        link = None
        if self._links is not None:
            link = await self._links.link(tenant, recipient, address, channel, plan.category, plan.mode)
        if request.content is not None:
            content, locale, version = request.content, recipient.locale, None
        else:
            content, locale, version = await self._rendered(tenant, request, recipient, channel, link)
        if link is not None and content.unsubscribe_url is None:
            content = replace(content, unsubscribe_url=link)
        return content, locale, version

    async def _rendered(
        self, tenant: str, request: SendRequest, recipient: Recipient, channel: Channel, link: str | None
    ) -> BuiltContent:
        assert request.template_key is not None, "intake has checked that there is content or a template"
        if self._renderer is None:
            raise TemplateNotFound(
                "templateKey", f"{request.template_key!r} does not exist; no templates are configured"
            )
        locale = recipient.locale
        if self._locales is not None:
            locale = self._locale(tenant, locale, request.accept_language)
        data = request.data or {}
        if link is not None:
            data = {UNSUBSCRIBE_LINK_VARIABLE: link, **data}
        render = partial(self._renderer.render, tenant, request.template_key, channel, locale, data)
        rendered: object = await contain(render)
        if not isinstance(rendered, Rendered):
            problem = f"the renderer returned a {type(rendered).__name__} instead of Rendered"
            raise TemplateFailed("templateKey", problem)
        return rendered.content, _name(rendered.locale, "locale"), _name(rendered.version, "version")


def _name(value: object, where: str) -> str | None:
    """Returns a text of the renderer as an exact `str`. Raises `InvalidRequest` if it cannot be stored."""
    if value is None:
        return None
    if not isinstance(value, str):
        kind = type(value).__name__
        raise TemplateFailed(
            "templateKey", f"the renderer returned a {where} of type {kind}; it must be text"
        )
    return plain_text(value, where)
