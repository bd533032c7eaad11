"""Finds the single changes that `tools/mutations.py` makes: each one is a bug that the tests should catch.

A change replaces one piece of the source: a comparison, an operand, a constant, a statement, an `except`
clause or an operator of an SQL statement. Docstrings, annotations, logging, assertions, texts of errors and
`__repr__` are left alone, because no test has to notice a change there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_UNTESTED_FUNCTIONS = {"__repr__", "__str__", "__rich_repr__"}

_IS_SQL = re.compile(r"\b(SELECT|UPDATE|DELETE FROM|INSERT INTO|WHERE|ORDER BY)\b")
_SQL_OPERATORS = re.compile(
    r" (<=|>=|<>|<|>|=|AND|OR|DESC|IS NOT NULL|IS NULL|NOT IN|IN)(?=[\s\"])|\b(min|max)(?=\()"
)
_SQL_SWAPS = {
    "<=": "<",
    ">=": ">",
    "<": "<=",
    ">": ">=",
    "=": "<>",
    "<>": "=",
    "AND": "OR",
    "OR": "AND",
    "DESC": "ASC",
    "IS NULL": "IS NOT NULL",
    "IS NOT NULL": "IS NULL",
    "NOT IN": "IN",
    "IN": "NOT IN",
    "min": "max",
    "max": "min",
}


@dataclass(frozen=True)
class Mutation:
    """One change: the bytes from `start` to `end` of a file are replaced by `text`."""

    path: str
    """The file, relative to the project."""
    function: str
    line: int
    lines: tuple[int, ...]
    """The lines of the changed statement. A test that runs one of them may notice the change."""
    kind: str
    start: int
    end: int
    text: str
    constant: str = ""
    """For an SQL statement outside of functions, its name. Tests that run lines with this name may notice."""

    @property
    def key(self) -> str:
        return f"{self.path}:{self.start}:{self.end}:{self.text}"

    def apply(self, source: bytes) -> bytes:
        """Returns the source of the file with this change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """Returns the replaced code and its replacement in one line."""
        before = " ".join(source[self.start : self.end].decode().split())
        return f"{before[:90]} → {self.text[:90]}"


def find_mutations(path: Path, root: Path) -> list[Mutation]:
    """Returns all changes of a file."""
    source = path.read_bytes()
    found = _Finder(str(path.relative_to(root)), source)
    found.visit_module(ast.parse(source))
    return found.mutations


class _Finder:
    """Collects the changes of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scope: list[str] = []
        self._statement: tuple[int, ...] = ()
        self.mutations: list[Mutation] = []

    def visit_module(self, module: ast.Module) -> None:
        for node in module.body:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._definition(node)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() | ast.JoinedStr()):
                    self._statement = _lines(node, node)
                    self._sql(node.value, name)

    def _definition(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    self._definition(inner)
        elif node.name not in _UNTESTED_FUNCTIONS:
            self._block(node.body)
        self._scope.pop()

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._stmt(node)

    def _stmt(self, node: ast.stmt) -> None:
        """Adds the changes of a statement and of everything in it."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._definition(node)
            return
        if _is_left_alone(node):
            return
        self._statement = _lines(node, node)
        self._compound(node)
        self._simple(node)

    def _compound(self, node: ast.stmt) -> None:
        """Adds the changes of a statement that contains others."""
        match node:
            case ast.If() | ast.While():
                self._statement = _lines(node, node.test)
                self._condition(node.test)
                self._expr(node.test)
            case ast.For() | ast.AsyncFor():
                self._statement = _lines(node, node.iter)
                self._expr(node.iter)
            case ast.With() | ast.AsyncWith():
                self._statement = _lines(node, node.items[-1].context_expr)
                for item in node.items:
                    self._expr(item.context_expr)
            case ast.Match():
                for case in node.cases:
                    if case.guard is not None:
                        self._statement = _lines(case.guard, case.guard)
                        self._condition(case.guard)
                    self._block(case.body)
            case ast.Try():
                self._try(node)
                return
        self._block(getattr(node, "body", []))
        self._block(getattr(node, "orelse", []))

    def _simple(self, node: ast.stmt) -> None:
        """Adds the changes of a statement that contains no other."""
        match node:
            case ast.Return():
                self._return(node)
            case ast.Expr():
                self._add(node, "drop call", "pass")
                self._expr(node.value)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign(value=ast.expr()):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                is_local = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
                if isinstance(node, ast.AugAssign) or not is_local:
                    self._add(node, "drop assignment", "pass")
                assert node.value is not None
                self._expr(node.value)
            case ast.Raise() | ast.Delete():
                self._add(node, f"drop {type(node).__name__.lower()}", "pass")
            case ast.Continue():
                self._add(node, "continue to break", "break")
            case ast.Break():
                self._add(node, "break to continue", "continue")

    def _try(self, node: ast.Try) -> None:
        self._block(node.body)
        for handler in node.handlers:
            if not (len(handler.body) == 1 and isinstance(handler.body[0], ast.Raise)):
                self._statement = _lines(handler.body[0], handler.body[-1])
                self._add_body(handler.body, "except raises", "raise")
            self._block(handler.body)
        self._block(node.orelse)
        if node.finalbody:
            self._statement = _lines(node.finalbody[0], node.finalbody[-1])
            self._add_body(node.finalbody, "drop finally", "pass")
            self._block(node.finalbody)

    def _return(self, node: ast.Return) -> None:
        match node.value:
            case None:
                self._add(node, "drop return", "pass")
            case ast.Constant(value=bool() as value):
                self._add(node, "flip result", f"return {not value}")
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) as value:
                self._add(value, "negate result", ast.unparse(_negated(value)))
                self._expr(value)
            case value:
                self._expr(value)

    def _condition(self, test: ast.expr) -> None:
        if ast.unparse(test) in ("True", "False"):
            return
        self._add(test, "condition false", "False")
        self._add(test, "condition true", "True")

    def _expr(self, node: ast.expr) -> None:
        """Adds the changes of an expression and of everything in it."""
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            self._sql(node)
            return
        self._operation(node)
        self._call_or_constant(node)
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.expr():
                    self._expr(child)
                case ast.keyword():
                    self._expr(child.value)
                case ast.comprehension():
                    self._expr(child.iter)
                    for test in child.ifs:
                        self._add(test, "condition true", "True")
                        self._expr(test)

    def _operation(self, node: ast.expr) -> None:
        match node:
            case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
                compared = ast.Compare(node.left, [_COMPARISONS[type(op)]()], node.comparators)
                self._add(node, "comparison", ast.unparse(compared))
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                self._add(node, "and/or", ast.unparse(ast.BoolOp(other, node.values)))
                for index in range(len(node.values)):
                    rest = [value for number, value in enumerate(node.values) if number != index]
                    left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                    self._add(node, "drop operand", ast.unparse(left))
            case ast.UnaryOp(op=ast.Not()):
                self._add(node, "drop not", f"({ast.unparse(node.operand)})")
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _is_text(node):
                computed = ast.BinOp(node.left, _ARITHMETIC[type(op)](), node.right)
                self._add(node, "arithmetic", f"({ast.unparse(computed)})")
            case ast.IfExp():
                self._add(node, "always the first", f"({ast.unparse(node.body)})")
                self._add(node, "always the second", f"({ast.unparse(node.orelse)})")

    def _call_or_constant(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() as value):
                self._add(node, "constant", str(not value))
            case ast.Constant(value=int() as value):
                self._add(node, "constant", str(value + 1))
            case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED_NAMES:
                self._add(node.func, "min/max", _SWAPPED_NAMES[name])
            case ast.Call(
                args=[
                    (ast.Name() | ast.Attribute()) as first,
                    (ast.Name() | ast.Attribute()) as second,
                    *rest,
                ]
            ) if ast.unparse(node.func) not in ("isinstance", "issubclass"):
                changed = ast.Call(node.func, [second, first, *rest], node.keywords)
                self._add(node, "swap arguments", ast.unparse(changed))

    def _sql(self, node: ast.expr, constant: str = "") -> None:
        """Adds the changes of an SQL statement, outside of the braces of an f-string."""
        if "/stores/" not in self._path:
            return
        start, end = self._span(node)
        text = self._source[start:end].decode()
        if not _IS_SQL.search(text):
            return
        for found in _SQL_OPERATORS.finditer(text):
            before = text[: found.start()]
            if before.count("{") > before.count("}"):
                continue
            group = 1 if found.group(1) else 2
            word = found.group(group)
            offset = start + len(text[: found.start(group)].encode())
            line = self._source[:offset].count(b"\n") + 1
            self.mutations.append(
                Mutation(
                    path=self._path,
                    function=constant or ".".join(self._scope),
                    line=line,
                    lines=self._statement,
                    kind="sql",
                    start=offset,
                    end=offset + len(word.encode()),
                    text=_SQL_SWAPS[word],
                    constant=constant,
                )
            )

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, node: ast.expr | ast.stmt, kind: str, text: str) -> None:
        self._add_span(node.lineno, *self._span(node), kind, text)

    def _add_body(self, body: list[ast.stmt], kind: str, text: str) -> None:
        self._add_span(body[0].lineno, self._span(body[0])[0], self._span(body[-1])[1], kind, text)

    def _add_span(self, line: int, start: int, end: int, kind: str, text: str) -> None:
        self.mutations.append(
            Mutation(self._path, ".".join(self._scope), line, self._statement, kind, start, end, text)
        )


def _is_left_alone(node: ast.stmt) -> bool:
    """True for docstrings, logging, assertions, imports and hints for the scheduler."""
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr, value=owner))):
            return attr in _LOGGING and "log" in ast.unparse(owner)
        case ast.Expr(value=ast.Await(value=ast.Call() as call)):
            return ast.unparse(call) == "asyncio.sleep(0)"
        case ast.Return(value=ast.Call(func=ast.Name(id=name))):
            return name.endswith("Error")
    return False


def _lines(first: ast.stmt | ast.expr, last: ast.stmt | ast.expr) -> tuple[int, ...]:
    return tuple(range(first.lineno, (last.end_lineno or last.lineno) + 1))


def _negated(node: ast.expr) -> ast.expr:
    return node.operand if isinstance(node, ast.UnaryOp) else ast.UnaryOp(ast.Not(), node)


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return _is_string(node)
