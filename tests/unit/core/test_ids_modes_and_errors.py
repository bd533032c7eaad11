"""Ids, modes, lanes, ports and errors."""

from __future__ import annotations

import inspect
import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core import errors
from homing.core.errors import ConfigError, DeliveryFailed, DeliveryTimeout, HomingError, InvalidRequest
from homing.core.ids import BITS_EACH, uuid7, uuids7
from homing.core.notifications import Channel, Mode, Priority, lane_of
from homing.core.ports.runtime import RandomSource
from homing.core.ports.stores import Backend, Registry, SharedState, Store
from homing.core.routing.delivery_modes import MODE_INFO, SYNCHRONOUS_TYPES, mode_of
from support.core_builders import MINUTE, SECOND

bits = st.integers(0, 2**74 - 1)
moments = st.integers(0, 2**48 - 1)


# Ids -------------------------------------------------------------------------------------------------


@given(moments, bits)
def test_an_id_is_a_uuid_of_version_seven(now: int, random_bits: int) -> None:
    text = uuid7(now, random_bits)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == now


@given(moments, moments, bits, bits)
def test_ids_sort_by_creation_time(one: int, other: int, some: int, more: int) -> None:
    if one < other:
        assert uuid7(one, some) < uuid7(other, more)


@given(moments, bits, bits)
def test_every_random_bit_is_used(now: int, some: int, more: int) -> None:
    assert (uuid7(now, some) == uuid7(now, more)) == (some == more)


@given(st.integers(), st.integers(0))
def test_any_clock_value_and_any_random_bits_give_a_valid_id(now: int, random_bits: int) -> None:
    assert uuid.UUID(uuid7(now, random_bits)).version == 7


def test_a_known_time_gives_a_known_prefix() -> None:
    assert uuid7(0x017F22E279B0, 0xCC3 << 62 | 0x18C4DC0C0C07398F) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(moments, st.integers(1, 40), st.integers())
def test_ids_created_in_one_call_ascend_and_stay_unpredictable(now: int, number: int, seed: int) -> None:
    made = uuids7(now, Random(seed).getrandbits(BITS_EACH * number), number)
    assert len(set(made)) == number
    assert made == sorted(made)
    for text in made:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert parsed.int >> 80 == now


@given(moments, st.integers(1, 40), st.integers())
def test_ids_created_in_one_call_are_those_of_single_calls(now: int, number: int, seed: int) -> None:
    bits = Random(seed).getrandbits(BITS_EACH * number)
    each = [uuids7(now, bits >> BITS_EACH * at & (1 << BITS_EACH) - 1, 1)[0] for at in range(number)]
    assert uuids7(now, bits, number) == sorted(each)


# Modes -----------------------------------------------------------------------------------------------


@pytest.mark.source("002", "40-58", "102")
@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("type_", ["otp", "2fa", "driver_assigned", "order_confirmed"])
@pytest.mark.parametrize("synchronous", [None, True, False])
def test_the_first_matching_mode_applies(
    synchronous: bool | None, type_: str, priority: Priority, bulk: bool
) -> None:
    found = mode_of(synchronous=synchronous, type_=type_, priority=priority, bulk=bulk)
    if synchronous or (synchronous is None and type_ != "order_confirmed"):
        assert found is Mode.SYNCHRONOUS
    elif priority in (Priority.CRITICAL, Priority.HIGH):
        assert found is Mode.PRIORITY
    elif bulk or priority is Priority.LOW:
        assert found is Mode.BULK
    else:
        assert found is Mode.STANDARD


def test_synchronous_types_can_be_configured() -> None:
    assert SYNCHRONOUS_TYPES == ("otp", "2fa", "driver_assigned")

    def found(type_: str) -> Mode:
        return mode_of(
            synchronous=None,
            type_=type_,
            priority=Priority.MEDIUM,
            bulk=False,
            synchronous_types=frozenset({"alarm"}),
        )

    assert (found("alarm"), found("otp")) == (Mode.SYNCHRONOUS, Mode.STANDARD)


@pytest.mark.source("002", "63-68")
def test_each_mode_has_its_queue_and_its_latency() -> None:
    assert {mode: (info.queue_name, info.latency_goal_ms) for mode, info in MODE_INFO.items()} == {
        Mode.SYNCHRONOUS: ("", 2 * SECOND),
        Mode.PRIORITY: ("homing-priority", 5 * SECOND),
        Mode.STANDARD: ("homing-standard", 30 * SECOND),
        Mode.BULK: ("homing-bulk", 5 * MINUTE),
    }


def test_a_lane_is_a_mode_and_a_channel() -> None:
    assert lane_of(Mode.STANDARD, Channel.EMAIL) == "standard.email"
    assert len({lane_of(mode, channel) for mode in Mode for channel in Channel}) == 24


# Ports -----------------------------------------------------------------------------------------------


def test_a_random_generator_is_a_random_source() -> None:
    rng: RandomSource = Random(7)
    assert 0 <= rng.random() < 1
    assert uuid.UUID(uuid7(0, rng.getrandbits(74))).version == 7


def test_a_backend_implements_store_registry_and_shared_state() -> None:
    assert {Store, Registry, SharedState} <= set(Backend.__mro__)


# Errors ----------------------------------------------------------------------------------------------

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HomingError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_a_code_of_its_own_and_a_docstring_that_is_its_message(
    kind: type[HomingError],
) -> None:
    assert sum(other.code == kind.code for other in TREE) == 1
    assert kind.__doc__
    if not issubclass(kind, (InvalidRequest, ConfigError)):
        assert kind().message == kind.__doc__.strip()
        assert kind("what happened").message == "what happened"


@pytest.mark.parametrize("kind", [InvalidRequest, errors.TemplateNotFound, ConfigError])
def test_an_error_about_a_field_names_the_field(kind: type[InvalidRequest] | type[ConfigError]) -> None:
    found = kind("content.body", "is empty")
    assert (found.field, found.message, str(found)) == (
        "content.body",
        "content.body: is empty",
        "content.body: is empty",
    )


def test_a_synchronous_failure_names_its_notification_and_that_nothing_is_queued() -> None:
    timeout = DeliveryTimeout(notification_id="n-1")
    assert isinstance(timeout, DeliveryFailed)
    assert (timeout.code, timeout.notification_id) == ("DELIVERY_TIMEOUT", "n-1")
    assert timeout.message == "Synchronous delivery timed out after 2s. Notification NOT queued."
    assert DeliveryFailed("no", notification_id="n-2").notification_id == "n-2"


def test_the_error_tree_in_the_module_docstring_is_correct() -> None:
    drawn = errors.__doc__ or ""
    assert all(kind.__name__ in drawn for kind in TREE)
