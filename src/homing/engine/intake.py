"""From a request to what the store accepts: validate → resolve recipients → render → mode, route, keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.backoff import delay_ms
from homing.core.errors import InvalidRequest
from homing.core.events import moment
from homing.core.ids import uuid7
from homing.core.locale import LocalePolicy
from homing.core.model import (
    Channel,
    Content,
    Message,
    Mode,
    NewNotification,
    Recipient,
    Submission,
)
from homing.core.modes import SYNCHRONOUS_TYPES
from homing.core.policy import RetryPolicy
from homing.core.ports import Chance, Clock, Directory, Renderer
from homing.core.request import (
    SendLimits,
    SendRequest,
    address_of,
    check_content,
    check_json,
    check_names,
    recipients_of,
)
from homing.engine.planning import Plan, Planner, Way
from homing.engine.policies import Policies
from homing.engine.resolving import NO_DEVICES, SYNCHRONOUS_TIMEOUT_MS, Resolving, reached
from homing.engine.roster import Roster
from homing.engine.unsubscribing import Unsubscribing
from homing.engine.wording import Wording

LEASE_MARGIN_MS = 10_000
"""A lease is an attempt's timeout and this much more."""


class Earlier(Struct, frozen=True, kw_only=True):
    """What a request brings along from where it was tried before (the SQL inbox, a broker's message).

    No part of the public request: only who takes over from another system knows it.
    """

    attempts: int = 0
    """Made elsewhere; the next one here is due after the policy's delay for that many, or at `send_at`."""
    max_attempts: int | None = None
    """The maximum that it brings along: it wins over the policy's."""
    last_error: str | None = None
    """What the last of its attempts said."""


NOTHING_EARLIER = Earlier()
_MOST_ATTEMPTS = 1000


class IntakeSettings(Struct, frozen=True, kw_only=True):
    """What intake may be told."""

    limits: SendLimits = SendLimits()
    synchronous_types: frozenset[str] = SYNCHRONOUS_TYPES
    dedup_windows_ms: Mapping[str, int] = field(default_factory=dict)
    """Type → window: the same message to the same recipient within it is accepted once."""
    dedup_key_window_ms: int = 10 * 60_000
    """For a request with a dedup key whose type has no window of its own."""
    locales: LocalePolicy | None = None
    """The project's; without it a renderer gets the recipient's locale as it is."""


class Intake:
    """Everything that is checked and worked out before a notification is promised."""

    def __init__(
        self,
        *,
        roster: Roster,
        policies: Policies,
        directory: Directory,
        renderer: Renderer | None,
        clock: Clock,
        chance: Chance,
        settings: IntakeSettings,
        name: str,
        usable: Callable[[str], bool] = lambda provider: True,
        links: Unsubscribing | None = None,
    ) -> None:
        """`usable`: whether a provider's breaker is not open, as far as this process knows without asking."""
        self._roster = roster
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._name = name
        self._usable = usable
        self._resolving = Resolving(directory)
        self._wording = Wording(renderer, settings.locales, links)
        self._planner = Planner(policies, settings.synchronous_types)

    async def prepare(
        self,
        tenant: str,
        request: SendRequest,
        *,
        asked: str = "",
        ask_directory: bool = True,
        earlier: Earlier = NOTHING_EARLIER,
    ) -> Submission:
        """One submission for the store, or `InvalidRequest` naming the field.

        `asked` says what the caller gave where the request holds what was made of it (durations became
        times): the same words under the same idempotency key are the same request.
        """
        self._check(request)
        plan = self._planner.plan(tenant, request)
        recipients = recipients_of(request, self._settings.limits)
        synchronous = plan.mode is Mode.SYNCHRONOUS
        if synchronous:
            _check_synchronous(request, plan, recipients)
        if earlier is not NOTHING_EARLIER:
            _check_earlier(earlier, plan.mode)
        devices = NO_DEVICES
        if ask_directory:
            recipients, devices = await self._resolving.resolve(tenant, recipients, plan.mode)
        now = self._clock.now_ms()
        notifications = [
            await self._notification(tenant, request, one, plan, way, earlier, now)
            for recipient in recipients
            for way in plan.ways
            for one in (reached(recipient, way.channel, devices) if devices else (recipient,))
        ]
        return Submission(
            tenant=tenant,
            batch_id=self._id(now),
            notifications=tuple(notifications),
            idempotency_key=request.idempotency_key,
            fingerprint=_fingerprint(request, asked, earlier) if request.idempotency_key else "",
            lease_to=self._name if synchronous else None,
            lease_ms=SYNCHRONOUS_TIMEOUT_MS + LEASE_MARGIN_MS if synchronous else 0,
        )

    def _check(self, request: SendRequest) -> None:
        limits = self._settings.limits
        check_names(request)
        check_json(request.metadata, "metadata", limits, limits.metadata_bytes)
        check_json(request.data, "data", limits, limits.content_bytes)
        if request.template_key is None and request.content is None:
            raise InvalidRequest("content", "is missing; give content, or templateKey and data")
        if request.template_key is not None and request.content is not None:
            raise InvalidRequest("content", "and templateKey are both given; give one of them")
        if request.send_at is not None:
            _check_zone("sendAt", request.send_at)
        if request.expires_at is not None:
            _check_zone("expiresAt", request.expires_at)
        if (expires_at := _ms(request.expires_at)) is not None:
            now = self._clock.now_ms()
            if expires_at <= max(now, _ms(request.send_at) or now):
                raise InvalidRequest(
                    "expiresAt", "is not after now and sendAt; nothing could be sent in time"
                )

    async def _notification(
        self,
        tenant: str,
        request: SendRequest,
        recipient: Recipient,
        plan: Plan,
        way: Way,
        earlier: Earlier,
        now: int,
    ) -> NewNotification:
        channel = way.channel
        address = address_of(recipient, channel)
        version: str | None
        if request.content is not None and self._wording.leaves_alone:
            content, locale, version = request.content, recipient.locale, None
        else:
            content, locale, version = await self._wording.said(
                tenant, request, recipient, channel, address, plan
            )
        check_content(content, channel, self._settings.limits)
        id = self._id(now)
        stop = self._roster.first_stop(channel, plan.provider, id, self._usable)
        window_ms = self._settings.dedup_windows_ms.get(
            plan.type, self._settings.dedup_key_window_ms if request.dedup_key else 0
        )
        return NewNotification(
            id=id,
            channel=channel,
            mode=plan.mode,
            lane=way.lane,
            type=plan.type,
            category=plan.category,
            priority=plan.priority,
            origin=request.origin,
            provider=stop.provider,
            outlet=stop.outlet(address),
            pinned=plan.provider is not None,
            address=address,
            message=Message(
                recipient=recipient,
                content=content,
                template_key=request.template_key,
                template_version=version,
                locale=locale,
                metadata=request.metadata,
            ),
            send_at=_ms(request.send_at),
            expires_at=_ms(request.expires_at),
            max_age_ms=way.policy.max_age_ms,
            dedup_key=_dedup_key(request.dedup_key, plan.type, channel, address, content)
            if window_ms
            else None,
            dedup_window_ms=window_ms,
            attempts_before=earlier.attempts,
            delay_ms=0 if request.send_at else self._delay_ms(way.policy, earlier),
            max_attempts=earlier.max_attempts,
            last_error=earlier.last_error,
        )

    def _delay_ms(self, policy: RetryPolicy, earlier: Earlier) -> int:
        """How long after acceptance it is due: at once, or after the backoff of what was tried elsewhere."""
        return delay_ms(policy, earlier.attempts, self._chance.random()) if earlier.attempts else 0

    def _id(self, now: int) -> str:
        return uuid7(now, self._chance.getrandbits(74))


def _check_zone(name: str, at: datetime) -> None:
    if at.tzinfo is None:
        raise InvalidRequest(name, "has no time zone; give one, e.g. 2026-01-31T09:00:00Z")


def _check_synchronous(request: SendRequest, plan: Plan, recipients: Sequence[Recipient]) -> None:
    if len(plan.ways) > 1 or len(recipients) > 1:
        raise InvalidRequest("synchronous", "is for one recipient and one channel")
    if request.send_at is not None:
        raise InvalidRequest("sendAt", "and synchronous exclude each other: it is sent now or not at all")


def _ms(at: datetime | None) -> int | None:
    return None if at is None else (at - moment(0)) // timedelta(milliseconds=1)


def _check_earlier(earlier: Earlier, mode: Mode) -> None:
    if mode is Mode.SYNCHRONOUS and earlier.attempts:
        raise InvalidRequest("synchronous", "is for what is sent now or not at all; this was tried before")
    if not 0 <= earlier.attempts <= _MOST_ATTEMPTS:
        raise InvalidRequest("attempts", f"is {earlier.attempts}; allowed are 0 to {_MOST_ATTEMPTS}")
    if earlier.max_attempts is not None and not 1 <= earlier.max_attempts <= _MOST_ATTEMPTS:
        raise InvalidRequest("maxAttempts", f"is {earlier.max_attempts}; allowed are 1 to {_MOST_ATTEMPTS}")


def _fingerprint(request: SendRequest, asked: str, earlier: Earlier) -> str:
    """Of what was asked, not of the key it was asked under."""
    bare = replace(request, idempotency_key=None)
    if asked:
        bare = replace(bare, send_at=None, expires_at=None)
    said = msgspec.json.encode(bare, order="deterministic") + asked.encode()
    if earlier != NOTHING_EARLIER:
        said += msgspec.json.encode(earlier, order="deterministic")
    return sha256(said).hexdigest()


def _dedup_key(given: str | None, type_: str, channel: Channel, address: str, content: Content) -> str:
    """The caller's key, else the content, for this type, channel and address."""
    what = given if given is not None else msgspec.json.encode(content, order="deterministic").decode()
    return sha256("\x00".join((type_, channel.value, address, what)).encode()).hexdigest()
