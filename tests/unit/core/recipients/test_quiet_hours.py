"""Quiet hours in the recipient's time zone, in every zone of the tz database and at every clock change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.recipients.quiet_hours import Window, format_time_of_day, quiet_ms, time_of_day_ms

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = sorted(available_timezones() - {"localtime"})


def ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def window(start: str, end: str) -> Window:
    start_ms, end_ms = time_of_day_ms(start), time_of_day_ms(end)
    assert start_ms is not None
    assert end_ms is not None
    return Window(start_ms, end_ms)


def at(zone: str, text: str, *, fold: int = 0) -> int:
    """Returns the moment at which clocks in this zone show the given time."""
    return ms(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def clock(zone: str, moment: int) -> str:
    return (EPOCH + timedelta(milliseconds=moment)).astimezone(ZoneInfo(zone)).isoformat(timespec="minutes")


def shown_ms(zone: ZoneInfo, moment: int) -> int:
    """Returns the local time in this zone, computed without the code under test."""
    local = (EPOCH + timedelta(milliseconds=moment)).astimezone(zone)
    return ((local.hour * 60 + local.minute) * 60 + local.second) * 1000 + local.microsecond // 1000


def is_quiet(hours: Window, zone: ZoneInfo, moment: int) -> bool:
    shown = shown_ms(zone, moment)
    if hours.start_ms <= hours.end_ms:
        return hours.start_ms <= shown < hours.end_ms
    return shown >= hours.start_ms or shown < hours.end_ms


@pytest.mark.parametrize(
    ("now", "wait"),
    [
        ("2026-01-10T21:59", 0),
        ("2026-01-10T22:00", 9 * HOUR),
        ("2026-01-10T23:30", 7 * HOUR + 30 * MINUTE),
        ("2026-01-11T06:59", MINUTE),
        ("2026-01-11T07:00", 0),
        ("2026-01-11T12:00", 0),
    ],
)
def test_a_window_across_midnight_ends_in_the_morning(now: str, wait: int) -> None:
    zone = "Europe/Berlin"
    assert quiet_ms(window("22:00", "07:00"), ZoneInfo(zone), at(zone, now)) == wait


def test_a_window_within_one_day_is_allowed() -> None:
    zone = "Asia/Kolkata"
    nap = window("13:00", "15:30")
    assert quiet_ms(nap, ZoneInfo(zone), at(zone, "2026-01-10T13:15")) == 2 * HOUR + 15 * MINUTE
    assert quiet_ms(nap, ZoneInfo(zone), at(zone, "2026-01-10T15:30")) == 0


def test_a_window_that_starts_and_ends_at_the_same_time_is_empty() -> None:
    for minute in range(0, 24 * 60, 7):
        assert quiet_ms(window("22:00", "22:00"), ZoneInfo("UTC"), minute * MINUTE) == 0


@pytest.mark.parametrize(
    ("zone", "hours", "now", "until"),
    [
        # The night of a clock change is an hour shorter or longer.
        ("Europe/Berlin", ("22:00", "07:00"), "2026-03-28T23:00", "2026-03-29T07:00+02:00"),
        ("Europe/Berlin", ("22:00", "07:00"), "2026-10-24T23:00", "2026-10-25T07:00+01:00"),
        # An end that does not exist: the window ends at the change, when clocks skip to a later time.
        ("Europe/Berlin", ("22:00", "02:30"), "2026-03-28T23:00", "2026-03-29T03:00+02:00"),
        # A start that does not exist: the window starts with the first existing time in it.
        ("Europe/Berlin", ("02:30", "05:00"), "2026-03-29T03:00", "2026-03-29T05:00+02:00"),
        # An end that exists twice: the first one counts.
        ("Europe/Berlin", ("22:00", "02:30"), "2026-10-24T23:00", "2026-10-25T02:30+02:00"),
        # Half an hour of daylight saving, and an offset of three quarters of an hour.
        ("Australia/Lord_Howe", ("22:00", "07:00"), "2026-10-03T23:00", "2026-10-04T07:00+11:00"),
        ("Asia/Kathmandu", ("22:00", "07:00"), "2026-05-01T01:15", "2026-05-01T07:00+05:45"),
        # A change at midnight: the day starts at one o'clock.
        ("America/Asuncion", ("20:00", "00:30"), "2023-09-30T22:00", "2023-10-01T01:00-03:00"),
        # A day that was skipped.
        ("Pacific/Apia", ("22:00", "07:00"), "2011-12-29T23:00", "2011-12-31T07:00+14:00"),
    ],
)
def test_quiet_hours_around_clock_changes(zone: str, hours: tuple[str, str], now: str, until: str) -> None:
    moment = at(zone, now)
    assert clock(zone, moment + quiet_ms(window(*hours), ZoneInfo(zone), moment)) == until


def test_an_hour_that_exists_twice_is_quiet_twice() -> None:
    zone = "Europe/Berlin"
    hours = window("22:00", "02:30")
    between, again = at(zone, "2026-10-25T02:45"), at(zone, "2026-10-25T02:15", fold=1)
    assert quiet_ms(hours, ZoneInfo(zone), between) == 0
    assert quiet_ms(hours, ZoneInfo(zone), again) == 15 * MINUTE


def test_in_every_zone_quiet_hours_end_as_soon_as_the_local_time_leaves_the_window() -> None:
    """All zones and moments from 1970 to 2037, many of them within days of a clock change."""
    rng = Random(7)
    for name in ZONES:
        zone = ZoneInfo(name)
        for _ in range(12):
            hours = Window(rng.randrange(1440) * MINUTE, rng.randrange(1440) * MINUTE)
            now = _near_a_change(zone, rng) if rng.random() < 0.7 else rng.randrange(67 * 365 * DAY)
            wait = quiet_ms(hours, zone, now)
            assert (wait > 0) == is_quiet(hours, zone, now), (name, hours, now)
            assert not is_quiet(hours, zone, now + wait), (name, hours, now)
            assert wait <= 2 * DAY
            for _ in range(6 if wait else 0):
                before = now + rng.randrange(wait)
                assert is_quiet(hours, zone, before), (name, hours, now, before)
            assert not wait or is_quiet(hours, zone, now + wait - 1), (name, hours, now)


def _near_a_change(zone: ZoneInfo, rng: Random) -> int:
    """Returns a moment within 14 hours of a change of the zone's offset, if a few tries find one."""
    for _ in range(5):
        day = rng.randrange(67 * 365) * DAY
        for month in range(12):
            first, last = day + month * 30 * DAY, day + (month + 1) * 30 * DAY
            if _offset(zone, first) != _offset(zone, last):
                while last - first > MINUTE:
                    middle = (first + last) // 2
                    same = _offset(zone, middle) == _offset(zone, first)
                    first, last = (middle, last) if same else (first, middle)
                return max(0, last + rng.randrange(-14 * HOUR, 14 * HOUR))
    return rng.randrange(67 * 365 * DAY)


def _offset(zone: ZoneInfo, moment: int) -> timedelta | None:
    return (EPOCH + timedelta(milliseconds=moment)).astimezone(zone).utcoffset()


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 4_000_000_000_000), st.sampled_from(ZONES))
def test_the_returned_wait_is_long_enough_and_not_too_long(start: int, end: int, now: int, name: str) -> None:
    hours, zone = Window(start * MINUTE, end * MINUTE), ZoneInfo(name)
    wait = quiet_ms(hours, zone, now)
    assert quiet_ms(hours, zone, now + wait) == 0
    assert not wait or quiet_ms(hours, zone, now + wait - 1) == 1


@pytest.mark.parametrize(
    "text", ["", "7:00", "24:00", "07:60", "0700", "07:00:00", "-1:00", "٠٧:٠٠", "07:00\n"]
)
def test_an_invalid_time_of_day_is_refused(text: str) -> None:
    assert time_of_day_ms(text) is None


def test_times_of_day_are_parsed() -> None:
    texts = ["00:00", "07:30", "23:59"]
    assert [time_of_day_ms(text) for text in texts] == [0, 450 * MINUTE, 1439 * MINUTE]
    assert [format_time_of_day(ms) for ms in (0, 450 * MINUTE, 1439 * MINUTE)] == texts
