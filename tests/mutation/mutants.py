"""The mutants of a source file, as mutmut makes them, without those that only change what nobody may rely on."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst
from mutmut.mutation.file_mutation import mutate_file_contents

from tests.mutation.blanks import POSTGRESQL, SQLITE, Blank
from tests.mutation.switches import key_of

_PLAIN = "__plain"
_THEIRS = "from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict"
_OURS = "from tests.mutation.switches import switchable as _mutmut_mutated; MutantDict = dict"


@dataclass(frozen=True)
class Mutant:
    """One change of one function. `was` and `now` are the lines that differ, without indentation.

    `first` and `last` are the lines of the statement that is changed, counted from the function's own. What runs none
    of them can't tell the mutant.
    """

    name: str
    function: str
    path: str
    was: str
    now: str
    diff: str
    first: int
    last: int
    on_sqlite: bool = True


def mutate(path: Path, root: Path) -> tuple[str, list[Mutant]]:
    """Return the source that holds all mutants of a file, and those among them that matter."""
    relative = path.relative_to(root)
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    written = libcst.parse_module(path.read_text(encoding="utf-8")).visit(_Undecorate()).code
    mutated = mutate_file_contents(str(relative), written)
    lines = mutated.code.splitlines()
    source = {name: lines[span.start - 1 : span.end] for name, span in mutated.line_span_by_function_name.items()}
    found = []
    plain: dict[str, list[str]] = {}
    for name in mutated.mutant_names:
        original = f"{key_of(name)}__mutmut_orig"
        before = _renamed(source[original], original)
        after = _renamed(source[name], name)
        if original not in plain:
            plain[original] = _blanked(before)
        on_sqlite, on_postgresql = (a != b for a, b in zip(_blanked(after), plain[original], strict=True))
        if not on_sqlite and not on_postgresql:
            continue
        first, last = _statement(before, after)
        diff = list(difflib.unified_diff(before, after, str(relative), str(relative), lineterm="", n=2))
        found.append(
            Mutant(
                name=f"{module}.{name}",
                function=f"{module}.{_readable(name)}",
                path=str(relative),
                was=_changed(diff, "-"),
                now=_changed(diff, "+"),
                diff="\n".join(diff[2:]),
                first=first - 1,
                last=last - 1,
                on_sqlite=on_sqlite,
            )
        )
    assert _THEIRS in mutated.code or not mutated.mutant_names
    return mutated.code.replace(_THEIRS, _OURS), found


class _Undecorate(libcst.CSTTransformer):
    """Take a decorated function apart, since mutmut leaves alone what is decorated: `x = property(x__plain)`."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: libcst.FunctionDef) -> bool:
        self.depth += 1
        return True

    def leave_FunctionDef(
        self, original_node: libcst.FunctionDef, updated_node: libcst.FunctionDef
    ) -> libcst.FunctionDef | libcst.FlattenSentinel[libcst.BaseStatement]:
        self.depth -= 1
        decorators = [decorator.decorator for decorator in updated_node.decorators]
        names = {node.value for node in decorators if isinstance(node, libcst.Name)}
        if self.depth or not decorators or names & {"staticmethod", "classmethod"}:
            return updated_node
        name = updated_node.name.value
        value: libcst.BaseExpression = libcst.Name(name + _PLAIN)
        for decorator in reversed(decorators):
            value = libcst.Call(decorator, [libcst.Arg(value)])
        assigned = libcst.Assign([libcst.AssignTarget(libcst.Name(name))], value)
        return libcst.FlattenSentinel(
            [
                updated_node.with_changes(name=libcst.Name(name + _PLAIN), decorators=[]),
                libcst.SimpleStatementLine([assigned]),
            ]
        )


def _statement(before: list[str], after: list[str]) -> tuple[int, int]:
    """Return the first and last line, counted from 1, of the innermost statement that holds all that differs."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [(start, max(start, end - 1)) for tag, start, end, _, _ in blocks if tag != "equal"]
    low, high = min(low for low, _ in changed) + 1, max(high for _, high in changed) + 1
    above = int(before[0] != before[0].lstrip())
    found = (1, len(before))
    for node in ast.walk(_parsed(before)):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
            start, end = node.lineno - above, (node.end_lineno or node.lineno) - above
            if found[0] <= start <= low and high <= end <= found[1]:
                found = (start, end)
    return found


def _blanked(lines: list[str]) -> list[str]:
    return [ast.dump(Blank(vendor).visit(_parsed(lines))) for vendor in (SQLITE, POSTGRESQL)]


def _parsed(lines: list[str]) -> ast.Module:
    is_indented = lines[0] != lines[0].lstrip()
    return ast.parse("\n".join(["if True:", *lines] if is_indented else lines))


def _renamed(lines: list[str], name: str) -> list[str]:
    """Give the lines of a generated function back its own name, without comments above it."""
    start = next(number for number, line in enumerate(lines) if f"def {name}(" in line)
    own = _readable(name).rpartition(".")[2]
    return [lines[start].replace(f"def {name}(", f"def {own}("), *lines[start + 1 :]]


def _readable(name: str) -> str:
    mangled = key_of(name).removesuffix(_PLAIN)
    return mangled[2:].replace("ǁ", ".") if mangled.startswith("xǁ") else mangled.removeprefix("x_")


def _changed(diff: list[str], sign: str) -> str:
    return "\n".join(_lines(diff, sign))


def _lines(diff: list[str], sign: str) -> Iterator[str]:
    for line in diff[2:]:
        if line.startswith(sign):
            yield line[1:].strip()
