"""From a request to what the store accepts: validate → resolve recipients → render → mode, route, keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import chain
from operator import attrgetter

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.backoff import delay_ms
from homing.core.errors import InvalidRequest
from homing.core.ids import BITS_EACH, uuid7, uuids7
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
from homing.core.plain import NotPlain, builtin
from homing.core.policy import RetryPolicy
from homing.core.ports import Chance, Clock, Directory, Renderer
from homing.core.reading import plain_content, plain_recipient, plain_request
from homing.core.request import (
    SendLimits,
    SendRequest,
    address_of,
    check_content,
    check_json,
    check_keys,
    check_kinds,
    check_recipient,
    recipients_of,
)
from homing.core.times import EPOCH, epoch_ms
from homing.engine.planning import Plan, Planner, Way
from homing.engine.policies import Policies
from homing.engine.resolving import NO_DEVICES, SYNCHRONOUS_TIMEOUT_MS, Resolving, reached
from homing.engine.roster import Roster
from homing.engine.unsubscribing import Unsubscribing
from homing.engine.wording import Said, Wording

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
_MS = timedelta(milliseconds=1)
_SYNCHRONOUS = Mode.SYNCHRONOUS
_id_of = attrgetter("id")

_Wrong = dict[int, InvalidRequest]
"""Place of a request → what is wrong with it."""
_Draft = tuple[int, SendRequest, Plan, tuple[Recipient, ...]]
"""(place, request, plan, recipients)."""
_Letter = tuple[int, SendRequest, Plan, Way, Recipient, str]
"""(place, request, plan, way, recipient, address): what becomes a notification."""


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
        (found,) = await self.prepare_many(
            tenant, (request,), asked=asked, ask_directory=ask_directory, earlier=earlier
        )
        if isinstance(found, InvalidRequest):
            raise found
        return found

    async def prepare_many(
        self,
        tenant: str,
        requests: Sequence[SendRequest | InvalidRequest],
        *,
        asked: str = "",
        ask_directory: bool = True,
        earlier: Earlier = NOTHING_EARLIER,
    ) -> list[Submission | InvalidRequest]:
        """One answer for each of them, in order; what was found wrong with one before stays so.

        Their notifications' ids ascend: what is due together goes in the order in which it was asked for.
        All take one step before any takes the next: the code of a step fits into a processor's cache, that
        of all steps does not, and so it takes two thirds of the time.
        """
        now = self._clock.now_ms()
        wrong: _Wrong = {}
        drafts = self._drafts(tenant, requests, earlier, now, wrong)
        letters = await self._letters(tenant, drafts, ask_directory, wrong)
        texts = await self._texts(tenant, letters, wrong)
        made = self._notifications(letters, texts, earlier, self._ids(now, len(letters)), wrong)
        batches = self._ids(now, len(drafts))
        done: dict[int, Submission | InvalidRequest] = {**wrong}
        for place, request, plan, _ in drafts:
            if place not in wrong:
                notifications, batch_id = made[place], next(batches)
                done[place] = self._submission(tenant, request, plan, notifications, asked, earlier, batch_id)
        return [done[place] for place in range(len(requests))]

    def _drafts(
        self,
        tenant: str,
        requests: Sequence[SendRequest | InvalidRequest],
        earlier: Earlier,
        now: int,
        wrong: _Wrong,
    ) -> list[_Draft]:
        """Those that are well formed, each with its plan."""
        drafts: list[_Draft] = []
        for place, request in enumerate(requests):
            try:
                if isinstance(request, InvalidRequest):
                    raise request
                try:
                    drafts.append(self._draft(tenant, place, request, earlier, now))
                except (TypeError, AttributeError):
                    # A value of a type that its field does not declare, e.g. text that a framework rendered.
                    drafts.append(self._draft(tenant, place, plain_request(request), earlier, now))
            except InvalidRequest as error:
                wrong[place] = error
        return drafts

    def _draft(self, tenant: str, place: int, request: SendRequest, earlier: Earlier, now: int) -> _Draft:
        """One request with its plan. Raises `NotPlain` if some of its values are not of built-in types."""
        request = self._checked(request, now)
        plan = self._planner.plan(tenant, request)
        recipients = recipients_of(request, self._settings.limits)
        if plan.mode is _SYNCHRONOUS:
            _check_synchronous(request, plan, recipients)
        if earlier is not NOTHING_EARLIER:
            _check_earlier(earlier, plan.mode)
        return place, request, plan, recipients

    async def _letters(
        self, tenant: str, drafts: Sequence[_Draft], ask_directory: bool, wrong: _Wrong
    ) -> list[_Letter]:
        """What becomes a notification: for whom, over which channel, to which address."""
        letters: list[_Letter] = []
        for place, request, plan, recipients in drafts:
            devices = NO_DEVICES
            try:
                if ask_directory and any(map(_id_of, recipients)):
                    recipients, devices = await self._resolving.resolve(tenant, recipients, plan.mode)
                    recipients = tuple(map(_known, recipients))
                if len(recipients) == len(plan.ways) == 1 and not devices:  # as most are
                    (recipient,), (way,) = recipients, plan.ways
                    letters.append((place, request, plan, way, recipient, address_of(recipient, way.channel)))
                    continue
                letters += [
                    (place, request, plan, way, one, address_of(one, way.channel))
                    for recipient in recipients
                    for way in plan.ways
                    for one in (reached(recipient, way.channel, devices) if devices else (recipient,))
                ]
            except InvalidRequest as error:
                wrong[place] = error
        return letters

    async def _texts(self, tenant: str, letters: Sequence[_Letter], wrong: _Wrong) -> list[Said | None]:
        """What each of them says; None: something is wrong with its request."""
        wording = self._wording
        texts: list[Said | None] = []
        for place, request, plan, way, recipient, address in letters:
            if place in wrong:
                texts.append(None)
            elif request.content is not None and wording.leaves_alone:
                texts.append((request.content, recipient.locale, None))
            else:
                try:
                    said = await wording.said(tenant, request, recipient, way.channel, address, plan)
                    texts.append(said if request.content is not None else _rendered(said))
                except InvalidRequest as error:
                    wrong[place] = error
                    texts.append(None)
        return texts

    def _notifications(
        self,
        letters: Sequence[_Letter],
        texts: Sequence[Said | None],
        earlier: Earlier,
        ids: Iterator[str],
        wrong: _Wrong,
    ) -> dict[int, list[NewNotification]]:
        """By the places of their requests."""
        made: dict[int, list[NewNotification]] = {}
        for letter, said in zip(letters, texts, strict=True):
            place = letter[0]
            if said is None or place in wrong:
                continue
            try:
                new = self._notification(next(ids), letter, said, earlier)
            except InvalidRequest as error:
                wrong[place] = error
                continue
            if place in made:
                made[place].append(new)
            else:
                made[place] = [new]
        return made

    def _submission(
        self,
        tenant: str,
        request: SendRequest,
        plan: Plan,
        notifications: Sequence[NewNotification],
        asked: str,
        earlier: Earlier,
        batch_id: str,
    ) -> Submission:
        key, synchronous = request.idempotency_key, plan.mode is _SYNCHRONOUS
        return Submission(
            tenant,
            batch_id,
            tuple(notifications),
            key,
            "" if key is None else _fingerprint(request, asked, earlier),
            self._name if synchronous else None,
            SYNCHRONOUS_TIMEOUT_MS + LEASE_MARGIN_MS if synchronous else 0,
        )

    def _checked(self, request: SendRequest, now: int) -> SendRequest:
        """The request, with free JSON of built-in types."""
        limits, metadata, data = self._settings.limits, request.metadata, request.data
        check_keys(request)
        if type(metadata) is not dict or (data is not None and type(data) is not dict):
            raise NotPlain
        if metadata:
            metadata = check_json(metadata, "metadata", limits, limits.metadata_bytes)
        if data:
            data = check_json(data, "data", limits, limits.content_bytes)
        if metadata is not request.metadata or data is not request.data:
            request = replace(request, metadata=metadata, data=data)
        if request.template_key is None and request.content is None:
            raise InvalidRequest("content", "is missing; give content, or templateKey and data")
        if request.template_key is not None and request.content is not None:
            raise InvalidRequest("content", "and templateKey are both given; give one of them")
        if request.content is not None:
            check_kinds(request.content)
        if request.send_at is not None or request.expires_at is not None:
            _check_times(request, now)
        return request

    def _notification(self, id: str, letter: _Letter, said: Said, earlier: Earlier) -> NewNotification:
        _, request, plan, way, recipient, address = letter
        content, locale, version = said
        channel, settings = way.channel, self._settings
        content = check_content(content, channel, settings.limits)
        stop = self._roster.first_stop(channel, plan.provider, id, self._usable)
        window_ms = 0
        if request.dedup_key or settings.dedup_windows_ms:
            by_key_ms = settings.dedup_key_window_ms if request.dedup_key else 0
            window_ms = settings.dedup_windows_ms.get(plan.type, by_key_ms)
        # By position: with names, the search for each field costs more than all else here.
        return NewNotification(
            id,
            channel,
            plan.mode,
            way.lane,
            plan.type,
            plan.category,
            plan.priority,
            plan.origin,
            stop.provider,
            stop.outlet(address),
            address,
            Message(recipient, content, plan.template_key, version, locale, request.metadata),
            way.policy.max_age_ms,
            plan.provider is not None,
            None if request.send_at is None else _ms(request.send_at),
            None if request.expires_at is None else _ms(request.expires_at),
            _dedup_key(request.dedup_key, plan.type, channel, address, content) if window_ms else None,
            window_ms,
            earlier.attempts,
            self._delay_ms(way.policy, earlier) if earlier.attempts and not request.send_at else 0,
            earlier.max_attempts,
            earlier.last_error,
        )

    def _delay_ms(self, policy: RetryPolicy, earlier: Earlier) -> int:
        """How long after acceptance one is due that was tried elsewhere: the backoff of that."""
        return delay_ms(policy, earlier.attempts, self._chance.random())

    def _ids(self, now: int, number: int = 0) -> Iterator[str]:
        """New ids without end; `number` are made at once, which is cheaper."""
        made = uuids7(now, self._chance.getrandbits(BITS_EACH * number), number) if number else ()
        return chain(made, iter(lambda: uuid7(now, self._chance.getrandbits(74)), ""))


def _check_times(request: SendRequest, now: int) -> None:
    """Both times are within their bounds, and leave time to send."""
    send_ms = now
    if (send_at := request.send_at) is not None:
        if type(send_at) is not datetime:
            raise NotPlain
        send_ms = epoch_ms(send_at, "sendAt", now)
    if (expires_at := request.expires_at) is not None:
        if type(expires_at) is not datetime:
            raise NotPlain
        if epoch_ms(expires_at, "expiresAt", now) <= max(now, send_ms):
            raise InvalidRequest("expiresAt", "is not after now and sendAt; nothing could be sent in time")


def _known(recipient: Recipient) -> Recipient:
    """A recipient as the directory knows it, checked: the directory may be a user's own."""
    try:
        check_recipient(recipient)
    except NotPlain:
        recipient = plain_recipient(recipient)
        check_recipient(recipient)
    return recipient


def _rendered(said: Said) -> Said:
    """What a renderer wrote, with text of built-in types: it may be a user's own."""
    content, locale, version = said
    try:
        check_kinds(content)
    except NotPlain:
        content = plain_content(content)
    return content, locale, version


def _check_synchronous(request: SendRequest, plan: Plan, recipients: Sequence[Recipient]) -> None:
    if len(plan.ways) > 1 or len(recipients) > 1:
        raise InvalidRequest("synchronous", "is for one recipient and one channel")
    if request.send_at is not None:
        raise InvalidRequest("sendAt", "and synchronous exclude each other: it is sent now or not at all")


def _ms(at: datetime) -> int:
    return (at - EPOCH) // _MS


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
    said = msgspec.json.encode(bare, order="deterministic", enc_hook=builtin) + asked.encode()
    if earlier != NOTHING_EARLIER:
        said += msgspec.json.encode(earlier, order="deterministic")
    return sha256(said).hexdigest()


def _dedup_key(given: str | None, type_: str, channel: Channel, address: str, content: Content) -> str:
    """The caller's key, else the content, for this type, channel and address."""
    what = given if given is not None else msgspec.json.encode(content, order="deterministic").decode()
    return sha256("\x00".join((type_, channel.value, address, what)).encode()).hexdigest()
