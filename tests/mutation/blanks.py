"""What a mutant may change without harm, or without a database's ever running it, blanked out of a syntax tree.

Two trees that are equal then are the same to whoever keeps to the contract, and to the database that is asked.
"""

from __future__ import annotations

import ast
import re

# Which arguments of which calls are text for people. Section 10: callers tell errors apart by code alone.
MESSAGES: dict[str, set[int | str]] = {
    "WorkloadError": {1},
    "invalid": {1},
    "_refusal": {0},
    "_refuse": {1},
    "_Refusal": {0},
    "Blocker": {1, "message"},
    "Breach": {1},
    "Fault": {"message"},
    # What tells one kind of breach from another is seen nowhere else.
    "_say": {1, 2},
    # Of a secret the path is told; the field stands in the text alone.
    **{name: {"field"} for name in ("check_text", "check_patterns", "check_keys", "check_value")},
    # The suite's site has one database, so nothing tells which one was named.
    "using": {0},
    "db_for_write": {0},
    # How many rows go into one statement is a matter of speed.
    "parts": {1},
}
SQLITE, POSTGRESQL = "sqlite", "postgresql"
# There is one database, on SQLite no row lock to wait for, and only MariaDB is told an index.
DROPPED = {SQLITE: {"using", "wait", "index"}, POSTGRESQL: {"using", "index"}}
EXCEPTIONS = {"AssertionError", "LookupError", "RuntimeError", "TypeError", "ValueError"}
# Functions that answer with such text, or None.
TELLERS = {"_identifier_fault"}
# The case of its words is nothing to a database.
_SQL = re.compile(
    r"\W*(select|with|from|where|order by|and|or|for update|for share|skip locked|insert|update|delete|union|join"
    r"|on conflict|on duplicate key|as)\W",
    re.I,
)
# What SQLite can't do, and is asked for its row locks.
LACKING = "has_select_for_update"


class Blank(ast.NodeTransformer):
    """Blank out text for people, which database is named, the case of SQL and of columns' names, what `strict` adds to
    `zip`, and the parts of databases other than `vendor`.
    """

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.dropped = DROPPED[vendor]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        texts = MESSAGES.get(called, {0} if called in EXCEPTIONS else set())
        node.args = [ast.Constant("") if place in texts else given for place, given in enumerate(node.args)]
        for keyword in node.keywords:
            if keyword.arg in texts:
                keyword.value = ast.Constant("")
            if keyword.arg == "unless" and isinstance(keyword.value, ast.Constant):
                keyword.value = ast.Constant(str(keyword.value.value).casefold())
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in self.dropped]
        if called == "zip":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
        if called == "get" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Dict):
            said = node.func.value
            own = [place for place, key in enumerate(said.keys) if getattr(key, "value", None) == self.vendor]
            if len(node.args) == 2 and (_is_vendor(node.args[0]) or _is(node.args[0], None)):
                if not own:
                    return node.args[1]
                if _is_vendor(node.args[0]):
                    said.keys, said.values = [[of[place] for place in own] for of in (said.keys, said.values)]
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        self.generic_visit(node)
        defaults = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        node.kw_defaults = [ast.Constant(None) if taken.arg in self.dropped else default for taken, default in defaults]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name in TELLERS:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and _is_text(inner.value):
                    inner.value = ast.Constant("")
        for place, statement in enumerate(node.body, start=1):
            # An early return of this database's may have taken the place of its condition.
            if isinstance(statement, ast.Return):
                node.body = node.body[:place]
                break
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and " " in node.value and ("%s" in node.value or _SQL.match(f"{node.value} ")):
            return ast.Constant(node.value.casefold())
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "alias" and getattr(node.value, "id", "") == "tx":
            return ast.Constant(None)
        return ast.Constant(self.vendor != SQLITE) if node.attr.startswith(LACKING) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if _is_vendor(node.left) and isinstance(right := node.comparators[0], ast.Constant):
            if isinstance(node.ops[0], ast.Eq):
                return ast.Constant(right.value == self.vendor)
            if isinstance(node.ops[0], ast.NotEq):
                return ast.Constant(right.value != self.vendor)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        settles = isinstance(node.op, ast.Or)
        if any(_is(value, settles) for value in node.values):
            return ast.Constant(settles)
        node.values = [value for value in node.values if not _is(value, not settles)]
        if not node.values:
            return ast.Constant(not settles)
        return node if len(node.values) > 1 else node.values[0]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if _is(node.test, True):
            return node.body
        return node.orelse if _is(node.test, False) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if _is(node.test, True):
            return node.body
        return node.orelse if _is(node.test, False) else node


def _is(node: ast.AST, value: bool | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_vendor(node: ast.AST) -> bool:
    return getattr(node, "id", getattr(node, "attr", "")) == "vendor"


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
