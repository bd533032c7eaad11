"""The small charts of the dashboard: their scale, and hostile text in their labels."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from homing.charts.small import Bar, draw_bars, draw_sparkline, draw_steps

HOSTILE = '"><script>alert(1)</script>'


def read(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def test_a_line_goes_from_the_oldest_to_the_newest_value() -> None:
    line = read(draw_sparkline([0, 5, 10], title="sent", width=100, height=24)).find("polyline")
    assert line is not None
    assert line.get("points") == "0.0,22.0 50.0,12.0 100.0,2.0"


def test_a_line_without_values_is_empty() -> None:
    assert list(read(draw_sparkline([], title="nothing"))) == []
    assert "nan" not in draw_sparkline([0, 0, 0], title="zeros")


def test_bars_are_stacked_and_fill_the_height() -> None:
    svg = read(draw_bars([Bar("one", (6, 4)), Bar("two", (5, 0), "tick", late=True)], title="waiting"))
    bars = [[float(part.get("height", "0")) for part in group.findall("rect")] for group in svg.findall("g")]
    assert [sum(bar) for bar in bars] == [124.0, 62.0]
    assert [group.findtext("title") for group in svg.findall("g")] == ["one", "two"]


def test_the_scale_of_bars_has_whole_numbers() -> None:
    for highest, scale in ((0, ["2", "1", "0"]), (1, ["2", "1", "0"]), (15, ["16", "8", "0"])):
        svg = read(draw_bars([Bar("one", (highest,))], title="waiting"))
        assert [text.text for text in svg.findall("text")][:3] == scale


def test_each_attempt_has_a_row() -> None:
    svg = read(draw_steps([(0, 0), (60, 90)], ["0 s", "1 min"], title="attempts"))
    assert len(svg.findall("rect")) == 2


def test_texts_are_escaped() -> None:
    for svg in (
        draw_sparkline([1, 2], title=HOSTILE),
        draw_bars([Bar(HOSTILE, (1,), HOSTILE)], title=HOSTILE),
        draw_steps([(0, 1)], [HOSTILE], title=HOSTILE),
    ):
        assert "<script" not in svg
        assert read(svg).get("aria-label") == HOSTILE
