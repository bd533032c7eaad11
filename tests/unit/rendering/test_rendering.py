"""What templates can do, and the texts of their errors."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from markupsafe import Markup

from homing.core.errors import InvalidRequest, TemplateFailed
from homing.rendering import render_budget
from support.template_folders import render, text

DATA: dict[str, Any] = {
    "name": "Ada",
    "n": 3,
    "items": [{"name": "Tea", "price": 2.5}, {"name": "<Bun>", "price": 1}],
    "order": {"items": ["a", "b"], "get": "mine", "note": None, "paid": True},
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Hello {{ name }}!\n", "Hello Ada!"),
        ("{% for i in items %}{{ loop.index }}{{ loop.length }}{{ i.name }}{% endfor %}", "12Tea22<Bun>"),
        ("{% for i in items if i.price > 2 %}{{ i.name }}{% else %}none{% endfor %}", "Tea"),
        ("{{ items | sum(attribute='price') | round(2) }}", "3.5"),
        ("{{ items | map(attribute='name') | join(', ') }}", "Tea, <Bun>"),
        ("{{ items | selectattr('price', 'gt', 2) | map(attribute='name') | first }}", "Tea"),
        ("{% for g in items|groupby('price') %}{{ g.grouper }}:{{g.list|length}} {% endfor %}", "1:1 2.5:1 "),
        ("{{ order.items | join }} {{ order.get }} {{ order['items'][0] }}", "ab mine a"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ order.note | default('-', true) }}{{ missing | default('?') }}", "-?"),
        ("{{ 'yes' if order.paid else 'no' }} {{ name.upper() }} {{ name | lower }}", "yes ADA ada"),
        ("{{ 'a' ~ n }} {{ n * 2 + 1 }} {{ n ** 2 }} {{ 7 // 2 }} {{ 7 % 4 }}", "a3 7 9 3 3"),
        ("{% set s = namespace(x=0) %}{% for i in [4, 2] %}{% set s.x = s.x+i %}{% endfor %}{{ s.x }}", "6"),
        ("{% macro hi(who) %}Hi {{ who }}{% endmacro %}{{ hi(name) }}", "Hi Ada"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{{ name[0] }}{{ name[1:] }}{{ items[-1].name }}", "Ada<Bun>"),
        ("{{ name | replace('A', 'E') | truncate(3) }}{{ (1, 2) | join('+') }}{{ [n, 1] | min }}", "Eda1+21"),
        ("{% if name in ['Ada'] and n is odd and x is not defined %}ok{% endif %}", "ok"),
        ("{{ locale }}", "en"),
        ("{{ __class__ | default('none') }}", "none"),
    ],
)  # fmt: skip
def test_common_template_syntax_works(source: str, expected: str) -> None:
    assert text(source, DATA) == expected


def test_html_is_escaped_and_text_is_not() -> None:
    evil = {"name": '<script>"x"</script>'}
    assert text("{{ name }}", evil, part="html") == "&lt;script&gt;&#34;x&#34;&lt;/script&gt;"
    assert text("{{ name }}", evil) == '<script>"x"</script>'
    assert text("{{ '<b>' ~ name }}", {"name": "&"}, part="html") == "&lt;b&gt;&amp;"
    assert text("{{ [name, name] | join('<br>' | safe) }}", {"name": "<"}, part="html") == "&lt;<br>&lt;"
    assert text("<a>{{ name | safe }}</a>", {"name": "<i>"}, part="html") == "<a><i></a>"


def test_data_cannot_contain_markup() -> None:
    with pytest.raises(InvalidRequest, match="data: cannot be encoded as JSON"):
        text("{{ name }}", {"name": Markup("<i>")}, part="html")


def test_shared_files_can_be_extended_included_and_imported() -> None:
    shared = {
        "_s/base.html": "<body>{% block main %}{% endblock %}{% include '_s/foot.html' %}</body>",
        "_s/foot.html": "<i>{{ name }}</i>",
        "_s/m.html": "{% macro b(x) %}<b>{{ x }}</b>{% endmacro %}",
    }
    source = (
        "{% extends '_s/base.html' %}"
        "{% block main %}{% import '_s/m.html' as m %}{{ m.b(name) }}{% endblock %}"
    )
    made = text(source, {"name": "<A>"}, part="html", partials=shared)
    assert made == "<body><b>&lt;A&gt;</b><i>&lt;A&gt;</i></body>"


def test_a_variable_set_in_a_shared_file_does_not_survive_the_render() -> None:
    shared = {
        "_m.txt": "{% set kept = namespace(x='') %}"
        "{% macro add(v) %}{% set kept.x = kept.x ~ v %}{{ kept.x }}{% endmacro %}"
    }
    source = "{% import '_m.txt' as m %}{{ m.add(name) }}{{ m.add(name) }}"
    assert [text(source, {"name": n}, partials=shared) for n in "ab"] == ["aaa", "bbb"]


def test_plain_text_is_never_included_in_html() -> None:
    with pytest.raises(TemplateFailed, match=r"_f\.txt: cannot be included here; use \.html in HTML"):
        text("{% include '_f.txt' %}", part="html", partials={"_f.txt": "{{ name }}"})


def test_python_values_are_rendered_like_their_json_equivalents() -> None:
    data = {"price": Decimal("9.90"), "at": datetime(2026, 1, 31, tzinfo=UTC), "pair": (1, 2)}
    assert text("{{ price }} {{ at }} {{ pair | join }}", data) == "9.90 2026-01-31T00:00:00Z 12"
    with pytest.raises(InvalidRequest, match="data: cannot be encoded as JSON"):
        text("x", {"f": print})


def test_rendered_json_keeps_its_structure_for_any_data() -> None:
    from homing.core.notifications import Channel
    from homing.rendering.folder_templates import (
        TemplateFile,
        TemplateFolder,
        TemplateLibrary,
        TemplateSources,
        render_with_json_data,
    )

    source = (
        '{"a": "{{ name }}!", "n": "{{ n }}", "all": "{{ items }}", "deep": [{"x": "{{ n + 1 }}"}, 5, null]}'
    )
    one = TemplateFile(name="t/en/push.json", channel=Channel.PUSH, part="data", text=source)
    library = TemplateLibrary(
        TemplateFolder(written={"t": {"en": TemplateSources(sources=(one,), version="1")}})
    )
    data = {"name": '","admin":"yes', "n": 3, "items": [1, {"k": None}]}
    found = render_with_json_data(library.compiled("t", "en"), "t", Channel.PUSH, data).content.data
    assert found == {"a": '","admin":"yes!', "n": 3, "all": [1, {"k": None}], "deep": [{"x": 4}, 5, None]}
    with pytest.raises(TemplateFailed, match=r"t/en/push\.json \(\.a\), line 1: 'name' is undefined"):
        render_with_json_data(library.compiled("t", "en"), "t", Channel.PUSH, {})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("a\nb {{ nme }}", "t/en/email.txt, line 2: 'nme' is undefined"),
        ("\n{{ order.totl }}", "line 2: 'dict object' has no attribute 'totl'"),
        ("{% for %}", "t/en/email.txt, line 1: "),
        ("x\n\n{% if name %}", "line 3: "),
        ("{{ name | nosuch }}", "line 1: No filter named 'nosuch'"),
        ("{{ order.note }}", "line 1: outputs null"),
        ("{{ order.paid }}", "outputs true or false"),
        ("{{ items }}", "outputs a whole list or mapping"),
        ("{{ n / 0 }}", "line 1: divides by zero"),
        ("{{ name * 3 }}", "uses text in arithmetic"),
        ("{{ nme + 1 }}", "'nme' is undefined"),
        ("{{ n < name }}", "cannot be rendered with this data (TypeError)"),
        ("{% include '_nosuch.txt' %}", "_nosuch.txt: is not a shared file"),
        ("{% autoescape false %}{% endautoescape %}", "uses autoescape, which is not allowed; use | safe"),
        ("{% for x in items recursive %}{% endfor %}", "uses a recursive loop, which is not allowed"),
        ("{{ name.format() }}", "has no attribute 'format'"),
    ],
)
def test_errors_name_the_file_the_line_and_what_is_wrong(source: str, says: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        text(source, DATA)
    assert caught.value.field == "templateKey"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
            "more than 50,000 steps",
        ),
        ("{% for a in range(999) %}{{ long }}{% endfor %}", "builds more than 1,000,000 characters"),
        ("{% for a in range(10001) %}{% endfor %}", "uses a range of more than 10,000"),
        ("{% set x = [1] %}" + "{% set x = [x, x] %}" * 20, "builds a list or mapping that is too large"),
        ("{{ 10 ** 5000 }}", "computes a number that is too large"),
    ],
)
def test_excessive_templates_are_stopped_with_an_error(
    source: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_budget, "thread_time", lambda: 0.0)  # limits by count, not by time
    with pytest.raises(TemplateFailed, match=r"t/en/email\.txt, line 1: .*") as caught:
        text(source, {"long": "x" * 2_000})
    assert says in str(caught.value)


def test_a_render_that_takes_too_long_is_stopped_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((1.0, 1.2, 1.3))
    monkeypatch.setattr(render_budget, "thread_time", lambda: next(looks))
    with pytest.raises(TemplateFailed, match=r"needs more than 0\.25 s of CPU time"):
        text("{% for a in range(9999) %}{% endfor %}")
    assert list(looks) == []


def test_every_part_has_its_own_limits() -> None:
    assert len(text("{% for a in range(900) %}{{ long }}{% endfor %}", {"long": "x" * 1_000})) == 900_000
    assert len(text("{% for a in range(900) %}{{ long }}{% endfor %}", {"long": "x" * 1_000})) == 900_000


def test_an_error_in_a_shared_file_names_it_and_the_file_that_uses_it() -> None:
    with pytest.raises(
        TemplateFailed, match=r"_f\.txt, line 2 \(used by t/en/email\.txt\): 'nme' is undefined"
    ):
        text("{% include '_f.txt' %}", partials={"_f.txt": "\n{{ nme }}"})


def test_no_error_shows_the_data() -> None:
    secret = "4711-secret"
    for source in (
        "{{ x * 2 }}",
        "{{ x | round }}",
        "{{ x < 1 }}",
        "{{ [x] | sum }}",
        "{{ x() }}",
        "{{ x.y }}",
    ):
        with pytest.raises(TemplateFailed) as caught:
            text(source, {"x": secret})
        assert secret not in str(caught.value)


def test_a_subject_is_one_line_without_trailing_line_breaks() -> None:
    assert render("\n Hi {{ name }} \n\n", {"name": "Ada"}, part="subject").subject == "Hi Ada"
