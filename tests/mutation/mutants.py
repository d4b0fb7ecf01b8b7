"""The mutants of a source file, as mutmut makes them, without those that only change what nobody may rely on."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst
from mutmut.mutation.file_mutation import mutate_file_contents

from tests.mutation.blanks import Blank
from tests.mutation.switches import key_of

_PLAIN = "__plain"
_THEIRS = "from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict"
_OURS = "from tests.mutation.switches import switchable as _mutmut_mutated; MutantDict = dict"


@dataclass(frozen=True)
class Mutant:
    """One change of one function. `was` and `now` are the lines that differ, without indentation."""

    name: str
    function: str
    path: str
    was: str
    now: str
    diff: str


def mutate(path: Path, root: Path) -> tuple[str, list[Mutant]]:
    """Return the source that holds all mutants of a file, and those among them that matter."""
    relative = path.relative_to(root)
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    written = libcst.parse_module(path.read_text(encoding="utf-8")).visit(_Undecorate()).code
    mutated = mutate_file_contents(str(relative), written)
    lines = mutated.code.splitlines()
    source = {name: lines[span.start - 1 : span.end] for name, span in mutated.line_span_by_function_name.items()}
    found = []
    plain: dict[str, str] = {}
    for name in mutated.mutant_names:
        original = f"{key_of(name)}__mutmut_orig"
        before = _renamed(source[original], original)
        after = _renamed(source[name], name)
        if original not in plain:
            plain[original] = _without_messages(before)
        if _without_messages(after) == plain[original]:
            continue
        diff = list(difflib.unified_diff(before, after, str(relative), str(relative), lineterm="", n=2))
        found.append(
            Mutant(
                name=f"{module}.{name}",
                function=f"{module}.{_readable(name)}",
                path=str(relative),
                was=_changed(diff, "-"),
                now=_changed(diff, "+"),
                diff="\n".join(diff[2:]),
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


def _without_messages(lines: list[str]) -> str:
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = ast.parse("\n".join(["if True:", *lines]) if indent else "\n".join(lines))
    return ast.dump(Blank().visit(tree))


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
