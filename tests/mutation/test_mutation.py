"""The machinery that tries mutants: what it makes and leaves out, and how it tells a mutant that lives from others."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import explained, switches
from tests.mutation.blanks import POSTGRESQL, SQLITE, Blank
from tests.mutation.explained import Explanation
from tests.mutation.mutants import Mutant, mutate

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
from functools import cache

class Pair:
    def __init__(self, left):
        self.left = left

    @property
    def is_low(self):
        return self.left < 3

    @classmethod
    def of(cls, left):
        return cls(left + 1)

@cache
def double(number):
    return number * 2

def refuse(field):
    raise invalid(field, "too " + "long")

def pairs(a, b):
    return list(zip(a, b, strict=True))
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Mutant]]:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "pkg" / "pair.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return mutate(path, tmp_path)


def test_decorated_functions_have_mutants_and_text_for_people_has_none(made: tuple[str, list[Mutant]]) -> None:
    changes = {(mutant.function, mutant.now) for mutant in made[1]}
    assert ("pkg.pair.Pair.is_low", "return self.left <= 3") in changes
    assert ("pkg.pair.double", "return number / 2") in changes
    assert ("pkg.pair.refuse", 'raise invalid(None, "too " + "long")') in changes
    assert ("pkg.pair.pairs", "return list(zip(a, None, strict=True))") in changes
    assert not [now for _, now in changes if "XX" in now or "strict=False" in now]


def test_one_mutant_is_chosen_and_what_is_called_is_noted(made: tuple[str, list[Mutant]]) -> None:
    code, mutants = made
    space: dict[str, object] = {"__name__": "pkg.pair"}
    exec(compile(code, "pair.py", "exec"), space)
    pair, double = space["Pair"], space["double"]
    switches.reached.clear()
    assert pair.of(1).left == 2
    assert pair(2).is_low
    assert double(4) == 8
    assert switches.reached == {
        "pkg.pair.xǁPairǁ__init__",
        "pkg.pair.xǁPairǁof",
        "pkg.pair.xǁPairǁis_low__plain",
        "pkg.pair.x_double__plain",
    }
    by_change = {(mutant.function, mutant.now): mutant.name for mutant in mutants}
    switches.choose(by_change["pkg.pair.Pair.of", "return cls(left - 1)"])
    assert pair.of(1).left == 0
    switches.choose(by_change["pkg.pair.Pair.is_low", "return self.left < 4"])
    assert pair(3).is_low


def test_an_explanation_is_of_a_function_and_its_lines(made: tuple[str, list[Mutant]]) -> None:
    told = Explanation("pkg.pair.double", "return number * 2", ("return number / 2",), "why")
    assert [mutant.now for mutant in made[1] if told.covers(mutant)] == ["return number / 2"]


def test_every_survivor_is_explained_in_a_sentence() -> None:
    for told in explained.read():
        assert told.reason.endswith("."), told


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ('raise WorkloadError(CODE, "a", {"b": 1})', 'raise WorkloadError(CODE, "A", {"b": 1})', True),
        ('raise WorkloadError(CODE, "a", {"b": 1})', 'raise WorkloadError(CODE, "a", {"B": 1})', False),
        ('sql = "WHERE a = %s"', 'sql = "where a = %s"', True),
        ('sql = "WHERE a = %s"', 'sql = "XXWHERE a = %sXX"', False),
        ('details = {"from": 1}', 'details = {"FROM": 1}', False),
        ('x = 1 if tx.vendor == "mysql" else 2', 'x = 3 if tx.vendor == "MYSQL" else 2', True),
        ('x = 1 if tx.vendor == "mysql" else 2', 'x = 1 if tx.vendor != "mysql" else 2', False),
        ('x = 1 if tx.vendor == "sqlite" else 2', 'x = 1 if tx.vendor == "SQLITE" else 2', False),
        ('if a and vendor == "mysql":\n    x = 1', 'if a and vendor == "mysql":\n    x = 2', True),
        ('if a or vendor == "mysql":\n    x = 1', 'if a or vendor == "mysql":\n    x = 2', False),
        ('x = {"mysql": 1}.get(vendor, 2)', 'x = {"mysql": 3}.get(vendor, 2)', True),
        ('x = {"mysql": 1}.get(vendor, 2)', 'x = {"mysql": 1}.get(vendor, 3)', False),
    ],
)
def test_what_is_blanked_out(one: str, other: str, are_equal: bool) -> None:
    told = [ast.dump(Blank(SQLITE).visit(ast.parse(source))) for source in (one, other)]
    assert (told[0] == told[1]) is are_equal


@pytest.mark.parametrize(
    ("one", "other", "on_sqlite", "on_postgresql"),
    [
        ('if vendor != "postgresql":\n    return 1\nx = 2', 'if vendor != "postgresql":\n    return 1\nx = 3', 0, 1),
        ('x = 1 if vendor == "mysql" else 2', 'x = 3 if vendor == "mysql" else 2', 0, 0),
        ('x = {"postgresql": 1, "mysql": 2}.get(vendor)', 'x = {"postgresql": 1, "mysql": 3}.get(vendor)', 1, 1),
        ('x = {"postgresql": 1, "mysql": 2}.get(vendor, 0)', 'x = {"postgresql": 1, "MYSQL": 2}.get(vendor, 0)', 0, 0),
        ('x = {"postgresql": 1, "mysql": 2}.get(vendor, 0)', 'x = {"POSTGRESQL": 1, "mysql": 2}.get(vendor, 0)', 0, 1),
        ('x = {"postgresql": 1}.get(vendor, 0)', 'x = {"postgresql": 1}.get(None, 0)', 0, 1),
        ('x = " AND ".join(y)', 'x = " and ".join(y)', 0, 0),
        ("x = lock(wait=True)", "x = lock(wait=False)", 0, 1),
        ("x = features.has_select_for_update and a", "x = features.has_select_for_update and b", 0, 1),
        ("x = 1", "x = 2", 1, 1),
    ],
)
def test_where_a_change_is_seen(one: str, other: str, on_sqlite: int, on_postgresql: int) -> None:
    bodies = ["def f():\n" + "".join(f"    {line}\n" for line in source.splitlines()) for source in (one, other)]
    for vendor, is_seen in ((SQLITE, on_sqlite), (POSTGRESQL, on_postgresql)):
        told = [ast.dump(Blank(vendor).visit(ast.parse(body))) for body in bodies]
        assert (told[0] != told[1]) is bool(is_seen)


TESTS = """
import time

from pkg.rule import rule, other, endless, unused

def test_rule():
    assert rule(1) == 2

def test_other():
    other(1)

def test_endless():
    assert endless(3) == 0
"""

RULE = """
def rule(n):
    return n + 1

def other(n):
    return n + 1

def endless(n):
    while n > 0:
        n = n - 1
    return n

def unused(n):
    return n + 1
"""


def test_what_lives_is_told_from_what_is_noticed_hangs_or_is_never_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    package, tests = tmp_path / "pkg", tmp_path / "tests" / "lifecycle"
    package.mkdir()
    tests.mkdir(parents=True)
    (package / "rule.py").write_text(RULE)
    (tests / "test_rule.py").write_text(TESTS)
    code, mutants = mutate(package / "rule.py", tmp_path)
    (package / "rule.py").write_text(code)
    results = tmp_path / "results.jsonl"
    plan = {
        "mutants": {mutant.name: (mutant.first, mutant.last) for mutant in mutants},
        "max_children": 2,
        "budget_s": 10,
        "results": str(results),
        "databases": str(tmp_path),
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    environment = os.environ | {
        "WORKLOADS_MUTATION": str(tmp_path / "plan.json"),
        "WORKLOADS_MUTATION_LIMIT_S": "0.5",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'site.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutation.session", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), "--import-mode=importlib", "tests/lifecycle"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = {line["mutant"]: line["verdict"] for line in map(json.loads, results.read_text().splitlines())}
    found = {(mutant.function.rpartition(".")[2], mutant.now): told[mutant.name] for mutant in mutants}
    assert found["rule", "return n - 1"] == "killed"
    assert found["other", "return n - 1"] == "survived"
    assert found["endless", "n = n + 1"] == "timed out"
    assert found["unused", "return n - 1"] == "not reached"
