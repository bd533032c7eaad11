"""Templates and data that try to escape the sandbox, to read other files, or never to end."""

# ruff: noqa: E501 - an attack reads best on one line

from __future__ import annotations

import re
from itertools import product
from typing import Any

from jinja2.filters import FILTERS

from homing.rendering.filters import allowed_filters

Attack = tuple[str, dict[str, Any]]

SECRET = "s3cret-of-this-machine"
LEAKED = re.compile(
    rf"{SECRET}|root:|<class|<function|<built-in|<bound|<module|<jinja2|<Macro|<Template|object at 0x|uid=\d"
    r"|\b49\b|site-packages|<Cycler|<Joiner|<Namespace|Undefined"
)
"""Matches text that no template may produce: the secret, reprs of Python objects, computed results."""

DATA: dict[str, Any] = {
    "name": "Ada",
    "n": 7,
    "items": [{"name": "Tea"}, {"name": "Bun"}],
    "order": {"lines": ["a", "b"], "__class__": "mine", "__globals__": {"os": "mine"}},
    "long": "x" * 50_000,
    "tags": "<!-- -->" * 5_000,
    "many": list(range(2_000)),
    "code": "{{ 7 * 7 }}{% include '/etc/passwd' %}",
}

_SETUP = (
    "{% macro m(x) %}{{ x }}{% endmacro %}{% set ns = namespace(a=1) %}{% set c = cycler('a') %}"
    "{% set j = joiner() %}{% block b %}{% endblock %}{% import '_m.txt' as mod %}"
)
PARTIALS = {
    "_m.txt": "{% macro p(x) %}{{ x }}{% endmacro %}{% set v = 1 %}",
    "_loop.txt": "{% include '_loop.txt' %}",
}

_BASES = (
    *("''", "[]", "()", "{}", "1", "1.5", "true", "none", "name", "items", "items[0]", "long"),
    *("range", "range(3)", "namespace", "cycler", "joiner", "ns", "c", "c.next", "j", "m", "m('x')", "self"),
    *("self.b", "mod", "mod.p", "name.upper", "{}.items", "{}.get", "missing", "lipsum", "dict", "config"),
    *("request", "environment", "context", "undefined", "varargs", "caller", "super", "locale", "_", "__builtins__"),
)  # fmt: skip
_PRIVATE = (
    *("__class__", "__mro__", "__base__", "__bases__", "__subclasses__", "__init__", "__globals__", "__dict__"),
    *("__self__", "__func__", "__code__", "__closure__", "__builtins__", "__module__", "__reduce_ex__", "__doc__"),
    *("__getattribute__", "__call__", "__str__", "__format__", "__import__", "_Namespace__attrs", "_func"),
    *("_TemplateReference__context", "_environment", "_body_stream", "gi_frame", "f_globals", "format", "format_map"),
    *("environment", "eval_ctx", "encode", "translate", "ljust", "zfill", "center", "pop", "update", "append", "mro"),
)  # fmt: skip
_FORMS = (
    "{{ BASE.NAME }}",
    "{{ BASE['NAME'] }}",
    "{{ BASE.NAME() }}",
    "{{ BASE.NAME.NAME }}",
    "{{ [BASE] | map(attribute='NAME') | join }}",
    "{{ BASE | attr('NAME') }}",
)


def reaching() -> list[Attack]:
    """Templates that reach for Python objects through attributes of values, in every syntax."""
    chosen = list(product(_BASES, _PRIVATE, _FORMS))[::11]
    return [(_SETUP + form.replace("BASE", base).replace("NAME", name), DATA) for base, name, form in chosen]


def chains() -> list[Attack]:
    """The same objects passed through filters, macros and loops."""
    written = (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__cla' ~ 'ss__']['__mro__'] }}",
        "{{ ''['__cla' + 'ss__'] }}",
        "{{ (''|attr('__class__')) }}",
        "{{ lipsum.__globals__.os.popen('id').read() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
        "{{ url_for.__globals__ }}",
        "{{ get_flashed_messages.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ bounded_range }}",
        "{{ m.__init__.__globals__ }}",
        "{{ m._func.__globals__ }}",
        "{{ m.name }}",
        "{{ mod.__name__ }}",
        "{{ mod._body_stream }}",
        "{{ ns._Namespace__attrs }}",
        "{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
        "{% set ns.x = ns.__init__ %}{{ ns.x }}",
        "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
        "{% for x in [1] %}{{ loop._iterable }}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{% for x in [1] %}{{ loop._undefined }}{% endfor %}",
        "{% for x in [1] %}{{ loop }}{% endfor %}",
        "{% for x in [1] %}{{ loop.changed.__globals__ }}{% endfor %}",
        "{% call m(1) %}{{ caller.__globals__ }}{% endcall %}",
        "{% macro q() %}{{ varargs.__class__ }}{{ kwargs.__class__ }}{% endmacro %}{{ q(1) }}",
        "{{ items | map('attr', '__class__') | join }}",
        "{{ items | map(attribute='__class__.__mro__') | join }}",
        "{{ items | groupby('__class__') | list }}",
        "{{ items | sort(attribute='__class__') }}",
        "{{ items | selectattr('__class__') | list }}",
        "{{ items | sum(attribute='__class__') }}",
        "{{ items | join(attribute='__class__') }}",
        "{{ items | max(attribute='__class__') }}",
        "{{ items | unique(attribute='__init__.__globals__') | list }}",
        "{{ items | map('__class__') | list }}",
        "{{ order.__class__ }}{{ order.__globals__.os }}",
        "{{ order.__class__.__mro__ }}",
        "{{ code }}",
        "{% set x = code %}{{ x }}",
        "{{ items.append(1) }}",
        "{{ items.pop() }}",
        "{{ order.update({'a': 1}) }}",
        "{{ order.pop('lines') }}",
        "{{ order.clear() }}",
        "{% do items.append(1) %}",
        "{% debug %}",
        "{% trans %}x{% endtrans %}",
        "{{ _('x') }}",
        "{{ gettext('x') }}",
        "{% python %}import os{% endpython %}",
        "{{ open('/etc/passwd') }}",
        "{{ eval('1') }}",
        "{{ name.__class__('x') }}",
        "{{ name.upper.__self__.__class__ }}",
        "{{ [].__class__.__base__ }}",
        "{{ name is sameas name.__class__ }}",
        "{{ 'x' is callable }}{{ ''.upper is callable }}",
        "{{ range is callable }}",
        "{{ {}.get('x', ''.__class__) }}",
        "{{ dict(a=1) }}",
        "{{ joiner.__call__() }}",
        "{{ cycler(1).__init__ }}",
        "{{ namespace(__class__=1).__class__ }}",
        "{{ self.b.__init__ }}",
        "{{ self.b() }}",
        "{{ super() }}",
        "{{ self }}",
        "{{ mod }}",
        "{{ m }}",
        "{{ ns }}",
        "{{ range }}",
        "{{ c.next }}",
        "{{ name.upper }}",
    )
    return [(_SETUP + source, DATA) for source in written]


def formats() -> list[Attack]:
    """Format strings, which reach attributes and produce very long texts."""
    strings = (
        *(
            "{0.__class__}",
            "{0.__class__.__mro__}",
            "{x.__init__.__globals__}",
            "{:>999999999}",
            "{0:9999999999}",
        ),
        *("%(x)s", "%999999999d", "%.999999999f", "%*d", "{0[__class__]}", "{!r:>99999999}", "{self}"),
    )
    uses = (
        "{{ 'S'.format(name) }}",
        "{{ 'S'.format(x=name) }}",
        "{{ 'S'.format_map({'x': name}) }}",
        "{{ 'S' | format(name) }}",
        "{{ 'S' % name }}",
        "{{ 'S' % 1 }}",
        "{{ 'S' % {'x': name} }}",
        "{{ ('S' | safe).format(name) }}",
        "{{ ('S' | e) % name }}",
        "{{ ''.join(['S']).format(1) }}",
        "{{ 'S'['format'](name) }}",
        "{{ ['S'] | map('format', name) | join }}",
    )
    return [(use.replace("S", string), DATA) for use, string in product(uses, strings)]


def forbidden_filters() -> list[Attack]:
    """Every filter of Jinja that is not allowed."""
    return [(f"{{{{ name | {name} }}}}", DATA) for name in FILTERS if name not in allowed_filters()]


def includes() -> list[Attack]:
    """Files that a template must not read."""
    paths = (
        *("/etc/passwd", "../../../../etc/passwd", "_m.txt/../../secret.txt", "file:///etc/passwd", "..", "/", ""),
        *("t/en/email.txt", "t/en/email.html", "other/en/email.txt", "_../secret.txt", "./secret.txt", "secret.txt"),
        *("_m.txt\\0", "%2e%2e/secret.txt", "~/.ssh/id_rsa", "/proc/self/environ", "homing.toml", "_nosuch.txt"),
    )  # fmt: skip
    forms = (
        "{% include 'P' %}",
        "{% include ['P'] %}",
        "{% include 'P' ignore missing %}",
        "{% import 'P' as x %}{{ x }}",
        "{% from 'P' import y %}{{ y }}",
        "{% extends 'P' %}",
        "{% set p = 'P' %}{% include p %}",
        "{% include 'P' ~ '' %}",
        "{% include 'P' without context %}",
    )
    return [(form.replace("P", path), DATA) for form, path in product(forms, paths)] + [
        ("{% include 5 %}", DATA),
        ("{% include [5, none] %}", DATA),
        ("{% include name %}", DATA),
        ("{% include items %}", DATA),
        ("{% include self %}", DATA),
        ("{% extends n %}", DATA),
    ]


def bombs() -> list[Attack]:
    """Small templates that would use all memory, or never end."""
    growing = "{% set ns = namespace(x=START) %}{% for i in range(90) %}{% set ns.x = GROW %}{% endfor %}{{ ns.x USE }}"
    doublings = [
        growing.replace("START", start).replace("GROW", grow).replace("USE", use)
        for start, grow, use in (
            ("'ab'", "ns.x ~ ns.x", ""),
            ("'ab'", "ns.x + ns.x", ""),
            ("'ab'", "ns.x | replace('a', ns.x)", ""),
            ("'ab'", "[ns.x, ns.x] | join", ""),
            ("'ab'", "[1, 2, 3] | join(ns.x)", ""),
            ("'&<'", "ns.x | forceescape", ""),
            ("'%'", "ns.x | urlencode", ""),
            ("[1, 2]", "ns.x + ns.x", "| length"),
            ("[1, 2]", "[ns.x, ns.x]", "| tojson"),
            ("[1, 2]", "[ns.x, ns.x]", "| length"),
            ("[1, 2]", "[ns.x, ns.x]", "== 1"),
            ("[1, 2]", "(ns.x, ns.x)", "| string"),
            ("{'a': 1}", "{'a': ns.x, 'b': ns.x}", "| tojson"),
            ("{'a': 1}", "{'a': ns.x, 'b': ns.x}", ""),
            ("[1, 2]", "[ns.x | list, ns.x | list]", "| tojson"),
            ("7", "ns.x * ns.x", ""),
            ("7", "ns.x ** 9", ""),
            ("7.5", "ns.x ** 9", ""),
            ("2", "ns.x ** ns.x", ""),
        )
    ]
    loops = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{{ range(10 ** 30) | list }}",
        "{{ range(0, 10 ** 12, 1) | length }}",
        "{% for a in many %}{% for b in many %}{{ a }}{% endfor %}{% endfor %}",
        "{% for a in many %}{{ long }}{% endfor %}",
        "{% for a in many %}{{ long | upper }}{% endfor %}",
        "{% for a in many %}{% if long | replace('x', 'yy') %}{% endif %}{% endfor %}",
        "{% for a in many %}{% set y = many | sort(reverse=true) | list %}{% endfor %}",
        "{% for a in many %}{% set y = many | map('string') | join %}{% endfor %}",
        "{% for a in many %}{% set y = many + many %}{% endfor %}",
        "{% for a in many %}{% set y = long.split('x') %}{% endfor %}",
        "{% for a in many %}{% set y = long[1:] ~ a %}{% endfor %}",
        "{% for a in many %}{% set y = [long, long, long] %}{% endfor %}",
        "{% for a in many %}{% if long == long[:49999] ~ 'x' %}{% endif %}{% endfor %}",
        "{% for a in many %}{% if a in many and -1 in many %}{% endif %}{% endfor %}",
        "{% for a in long %}{% for b in long %}{% endfor %}{% endfor %}",
        "{% for a in many %}{% set y = long | list %}{% endfor %}",
        "{% for a in many %}{% set y = many | unique | list %}{% endfor %}",
        "{% for a in many %}{% set y = many | groupby('x', default=1) %}{% endfor %}",
        "{% for a in many %}{% set y = many | tojson %}{% endfor %}",
        "{% for a in many %}{% set y = long | wordcount %}{% endfor %}",
        "{% for a in many %}{% set y = long | title | trim %}{% endfor %}",
        "{% for a in many %}{% set y = tags | urlencode %}{% endfor %}",
        "{% for a in many %}{% include '_m.txt' %}{% endfor %}" * 20,
        "{% for a in many %}{% import '_m.txt' as q %}{% endfor %}" * 20,
        "{% set c = cycler('a', 'b') %}{% for a in range(9999) %}{% for b in range(9999) %}{{ c.next() }}{% endfor %}{% endfor %}",
        "{% set x %}{% for a in range(9999) %}" + "y" * 1000 + "{% endfor %}{% endset %}{{ x }}",
        "{% filter upper %}{% for a in range(9999) %}" + "y" * 1000 + "{% endfor %}{% endfilter %}",
        "{% for a in many %}" + "{% set y = long == long[:9] %}" * 200 + "{% endfor %}",
    ]  # fmt: skip
    calls = [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) ~ f(n - 1) ~ 'x' }}{% endif %}{% endmacro %}{{ f(25) }}",
        "{% macro g(n) %}{{ h(n) }}{% endmacro %}{% macro h(n) %}{{ g(n) }}{% endmacro %}{{ g(1) }}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 18 + "x" + "{% endcall %}" * 18,
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{% include '_loop.txt' %}",
        "{% extends '_loop.txt' %}",
        "{% for x in items recursive %}{{ loop(items) }}{% endfor %}",
        "{{ lipsum(n=100000) }}",
        "{{ m(m) }}",
    ]  # fmt: skip
    numbers = [
        f"{{{{ {expression} }}}}"
        for expression in (
            *("9 ** 9 ** 9", "10 ** 100000000", "2 ** 99999 % 7", "'x' * 999999999", "[1] * 999999999", "n * 'x'"),
            *("999999999 * [1]", "(1,) * 10 ** 9", "'' * 1", "1 / 0", "1 // 0", "1 % 0", "0 ** -1", "1e308 * 10"),
            *("'%0999999999d' % 1", "name | center(999999999)", "name | indent(999999999)", "name | wordwrap(1)"),
            *("many | batch(999999999, 'x') | list", "many | slice(999999999) | list", "1 | round(999999999)"),
            *("1.5 | round(99999999, 'ceil')", "1 | round(-999999999, 'floor')", "many | tojson(999999999)"),
            *("name.ljust(999999999)", "name.zfill(999999999)", "name.expandtabs(999999999)", "name.center(9 ** 9)"),
            *("long.replace('', long)", "long | replace('', long)", "long | replace('x', long)", "long.join(long)"),
            *("long | join(long)", "long | list | join(long)", "tags | striptags", "tags | urlize", "many | pprint"),
            *("[[1]] | sum(start=[])", "[[1], [2]] | sum", "('9' * 5000) | int", "long | int(0, 36)", "long | float"),
            *("many | sum | filesizeformat", "name | truncate(999999999)", "'x' | truncate(1, true, long)"),
            *("range(9999) | map('string') | join(long)", "long | xmlattr", "name | random", "many | random"),
            *("long.encode('utf-32')", "long.translate({120: long})", "long.splitlines()", "1 < 2 < 'x'"),
            *("{}|dictsort", "{[1]: 2}", "{items: 1}", "items[items]", "name['x':]", "name[::0]", "- name", "+ items"),
        )
    ]  # fmt: skip
    nested = [
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{{ " + "[" * 3_000 + "]" * 3_000 + " }}",
        "{{ " + "-" * 5_000 + "1 }}",
        "{{ " + "not " * 5_000 + "1 }}",
        "{{ 1" + " + 1" * 5_000 + " }}",
        "{{ 1" + " ~ 1" * 5_000 + " }}",
        "{{ name" + " | upper" * 3_000 + " }}",
        "{{ name" + ".x" * 5_000 + " }}",
        "{% if 1 %}" * 500 + "{% endif %}" * 500,
        "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
        "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 60 + "{{ x }}",
        "{% set x = [1, 2] %}" + "{% set x = [x, x] %}" * 60 + "{{ x | tojson }}",
        "{% set x = [1, 2] %}{% set y = [1, 2] %}"
        + "{% set x = [x, x] %}{% set y = [y, y] %}" * 60
        + "{{ x == y }}",
        "{% set x %}ab{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60 + "{{ x }}",
        "{" * 100_000,
        "{{" * 50_000,
        "{% raw %}" * 10_000,
        "{#" * 50_000,
        "{{ 'x" * 20_000,
    ]
    return [(source, DATA) for source in (*doublings, *loops, *calls, *numbers, *nested)]


def hostile_data() -> list[Attack]:
    """Harmless templates with hostile data."""
    honest = "Hello {{ name }}, {% for i in items %}{{ i.name }} {% endfor %}{{ order.total }}{{ order.items | length }}"
    values: tuple[Any, ...] = (
        "{{ 7 * 7 }}",
        "{% include '/etc/passwd' %}",
        "{{ ''.__class__ }}",
        "x" * 200_000,
        "\u202e" * 100,
        2**62,
        1e308,
        None,
        True,
        [],
        {},
        [[[[]]]],
        {"__class__": "x", "__html__": "<b>", "__str__": 1},
        {"__html__": "<script>"},
        "</script><script>alert(1)</script>",
        {"name": {"name": {"name": "x"}}},
        "\x00",
        "%s" * 1000,
    )
    found: list[Attack] = []
    for value in values:
        found += [
            (honest, {"name": value, "items": [], "order": {"total": 1, "items": []}}),
            (honest, {"name": "x", "items": value, "order": {"total": 1, "items": []}}),
            (honest, {"name": "x", "items": [], "order": value}),
            (honest, {"name": "x", "items": [{"name": value}], "order": {"total": value, "items": value}}),
            (
                honest,
                {"range": value, "self": value, "loop": value, "locale": value, "name": value, "items": [1]},
            ),
        ]
    return found
