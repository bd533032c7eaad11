"""The benchmark runs, and reports no figure if notifications are missing."""

from __future__ import annotations

import http.client
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from msgspec.structs import replace

from homing.benching import InvalidMeasurement
from homing.benching.delivery_rate import check_sink, measure_delivery
from homing.benching.http_sink import HttpSink
from homing.benching.report import BenchReport, Figure, Machine, draw_chart, format_markdown
from homing.benching.run import PARTS, run_bench
from homing.benching.scratch_store import open_scratch_store
from homing.benching.workload import QUICK, accept_all, build_requests, check_store
from homing.library import Homing

TINY = replace(
    QUICK,
    rounds=1,
    singles=3,
    concurrent=70,
    many=20,
    deliveries=20,
    due=5,
    due_within_s=0.2,
    lead_s=0.5,
    backlog=50,
    callbacks=10,
    idle_s=0.2,
    starts=1,
)


NOWHERE = Machine(
    system="", processor="", cores=1, memory_gb=1, python="3.11", stores=("SQLite",), homing="0"
)


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    with HttpSink() as running:
        yield running


@pytest.mark.slow
async def test_every_part_gives_figures_and_the_report_can_be_read_drawn_and_printed() -> None:
    said: list[tuple[int, int]] = []
    report = await run_bench(["sqlite:"], TINY, tell=lambda done, total, what: said.append((done, total)))
    parts = {figure.part for figure in report.figures}
    assert {"accept", "serve", "deliver", "schedule", "callbacks", "start"} <= parts
    assert all(min(figure.rounds) >= 0 for figure in report.figures)
    assert [done for done, _ in said] == list(range(said[0][1] + 1))
    assert msgspec.json.decode(msgspec.json.encode(report), type=BenchReport) == report
    assert draw_chart(report).count("<rect") > len(PARTS)
    table = format_markdown(report)
    assert all(figure.name in table for figure in report.figures)


async def test_notifications_that_the_sink_refuses_at_first_are_delivered_later(sink: HttpSink) -> None:
    round_ = await measure_delivery("sqlite:", sink, 40, failing=0.5)
    assert sink.report().refused > 0
    assert round_.attempts == 40 + sink.report().refused


async def test_a_lost_row_fails_the_run() -> None:
    async with open_scratch_store("sqlite:") as place, Homing(loaded_settings=place.settings()) as homing:
        await accept_all(homing, build_requests(5, "https://example.org/hook"))
        await check_store(homing, place, pending=5)
        with closing(sqlite3.connect(place.store)) as connection, connection:
            connection.execute("DELETE FROM homing_notifications WHERE rowid = 1")
        with pytest.raises(InvalidMeasurement, match="4 rows"):
            await check_store(homing, place, pending=5)


async def test_a_notification_in_an_unexpected_status_fails_the_run() -> None:
    async with open_scratch_store("sqlite:") as place, Homing(loaded_settings=place.settings()) as homing:
        await accept_all(homing, build_requests(5, "https://example.org/hook"))
        with pytest.raises(InvalidMeasurement, match=r"the store counts \{'pending': 5\}"):
            await check_store(homing, place, delivered=5)


def test_missing_and_repeated_deliveries_fail_the_run(sink: HttpSink) -> None:
    for number in (0, 1, 2):
        _post(sink, number)
    check_sink(sink, 3)
    with pytest.raises(InvalidMeasurement, match="3 arrived"):
        check_sink(sink, 4)
    _post(sink, 2)
    with pytest.raises(InvalidMeasurement, match="1 arrived again"):
        check_sink(sink, 3)


def test_the_sink_answers_split_and_pipelined_requests(sink: HttpSink) -> None:
    body = b'{"n":7}'
    request = b"POST /hook HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", sink.port)) as connection:
        connection.settimeout(10)
        for piece in (request[:30], request[30:-2], request[-2:] + request + request[:-1]):
            connection.sendall(piece)
        answers = b""
        while answers.count(b"200 OK") < 2:
            answers += connection.recv(4096)
    seen = sink.report()
    assert (seen.requests, seen.taken, seen.repeated) == (2, 1, 1)


def test_a_ratio_is_that_of_alternating_rounds_and_is_compared_with_its_threshold() -> None:
    limit = Figure(part="deliver", name="limit", store="SQLite", unit="/s", rounds=(100, 200, 400))
    ours = replace(limit, name="ours", rounds=(50, 140, 200), beside="limit", at_least=0.6)
    report = BenchReport(machine=NOWHERE, form="quick", began_at="", seconds=0, figures=(limit, ours))
    _, result = report.results
    assert (result.ratio, result.met) == (0.5, False)
    assert report.missed == (result,)
    assert "MISSED" in format_markdown(report)


def _post(sink: HttpSink, number: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", sink.port)
    connection.request("POST", "/hook", f'{{"n":{number},"text":"x"}}')
    assert connection.getresponse().status == 200
    connection.close()


def test_a_limit_that_cannot_be_measured_gives_no_ratio() -> None:
    limit = Figure(part="schedule", name="limit", store="SQLite", unit="ms", rounds=(0, 0))
    mine = Figure(part="schedule", name="mine", store="SQLite", unit="ms", rounds=(1, 2), beside="limit")
    report = BenchReport(
        machine=NOWHERE, form="quick", began_at="", seconds=1, figures=(limit, replace(mine, at_most=3))
    )
    assert [(result.ratio, result.met) for result in report.results] == [(None, None), (None, None)]
