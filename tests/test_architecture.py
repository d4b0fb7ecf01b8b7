"""The shape of the app: who imports whom, who writes, how long files are, and which words it does without."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "workloads"

ADAPTERS = ("api", "admin", "worker", "tasks", "management")
PLAIN = ("contract", "errors", "lifecycle")

# Each part of the app, and the other parts that it may import. What is not a part here may not be added unseen.
MAY_IMPORT: dict[str, set[str]] = {
    "contract": set(),
    "errors": set(),
    "lifecycle": {"contract", "errors"},
    "conf": set(),
    "fields": {"contract"},
    "models": {"contract", "fields"},
    "authority": {"contract", "errors", "lifecycle", "conf", "fields", "models", "signals"},
    "client": {"contract", "errors", "lifecycle", "worker"},
    "signals": {"contract"},
    "wakeups": {"conf", "models"},
    "checks": {"conf", "models"},
    "apps": {"checks", "signals", "wakeups"},
    "worker": {"contract", "errors", "lifecycle", "conf", "models", "authority", "signals", "wakeups"},
    "management": {"contract", "errors", "lifecycle", "conf", "fields", "models", "authority", "signals", "worker"},
    "api": {"contract", "errors", "lifecycle", "conf", "fields", "models", "authority", "signals", "wakeups"},
    "admin": {"contract", "errors", "lifecycle", "conf", "fields", "models", "authority", "signals"},
    "templatetags": {"admin"},
    "tasks": {"contract", "errors", "lifecycle", "conf", "models", "authority", "signals"},
    "urls": {"api"},
    "testing": {"contract", "errors", "lifecycle"},
    "migrations": {"contract", "fields"},
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def files(*parts: str) -> list[Path]:
    """Return the app's files, of these parts alone where some are given."""
    found = sorted(path for path in APP.rglob("*.py") if "__pycache__" not in path.parts)
    return [path for path in found if not parts or part_of(path) in parts]


def part_of(path: Path) -> str:
    """Name the part of the app that a file belongs to: `workloads/api/views.py` is `api`."""
    return path.relative_to(APP).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> list[str]:
    """Return the parts of the dotted name of the package that a file's relative imports start from."""
    return list(path.relative_to(ROOT).with_suffix("").parts[:-1])


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each imported module or name, in full: `from a import b` is `a.b`. Those inside functions count too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module_of(path)[: len(module_of(path)) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def own_imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the part and the full name of what a file imports from the app."""
    for line, name in imports(path):
        root, _, rest = name.partition(".")
        if root == "workloads" and rest:
            yield line, rest.split(".")[0], name


# Who imports whom


def test_every_part_of_the_app_has_its_imports_named() -> None:
    assert {part_of(path) for path in files()} - {"__init__"} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_imports_follow_the_layers(path: Path) -> None:
    part = part_of(path)
    allowed = MAY_IMPORT.get(part, set()) | {part}
    wrong = [f"line {line}: {name}" for line, found, name in own_imports(path) if found not in allowed]
    assert wrong == []


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_the_app_does_not_import_the_site_that_uses_it(path: Path) -> None:
    assert [name for _, name in imports(path) if name.split(".")[0] in {"project", "tests", "bench"}] == []


@pytest.mark.parametrize("path", files(*PLAIN), ids=name_of)
def test_the_rules_import_the_standard_library_alone(path: Path) -> None:
    known = set(sys.stdlib_module_names) | {"workloads"}
    assert [name for _, name in imports(path) if name.split(".")[0] not in known] == []


@pytest.mark.parametrize("path", files("lifecycle"), ids=name_of)
def test_the_rules_have_no_clock_and_no_randomness(path: Path) -> None:
    assert [name for _, name in imports(path) if name.split(".")[0] in {"random", "time", "secrets", "os"}] == []
    clock = {"now", "utcnow", "today"}
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert [node.attr for node in calls if isinstance(node, ast.Attribute) and node.attr in clock] == []


def public_verbs() -> set[str]:
    tree = parsed(APP / "authority" / "__init__.py")
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return set(ast.literal_eval(node.value))
    raise AssertionError("workloads.authority names no public verbs")


@pytest.mark.parametrize("path", files(*ADAPTERS), ids=name_of)
def test_adapters_know_the_authoritys_public_verbs_alone(path: Path) -> None:
    allowed = {"workloads.authority"} | {f"workloads.authority.{verb}" for verb in public_verbs()}
    wrong = [f"line {line}: {name}" for line, part, name in own_imports(path) if part == "authority"]
    assert [said for said in wrong if said.split(": ")[1] not in allowed] == []
    used = {
        f"line {node.lineno}: authority.{node.attr}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "authority"
        and node.attr not in public_verbs()
    }
    assert used == set()


def test_the_public_verbs_are_there_and_the_tests_know_them_all() -> None:
    # Section 1 of the contract: every operation of it, as a plain function.
    named = (
        "admit admit_many issue_grant claim claim_next start heartbeat heartbeat_many context checkpoint release "
        "confirm_cancel complete complete_many fail cancel rearm time_out get list_for explain enforce_deadlines "
        "recover_expired dead_letter_unsatisfiable run_pass"
    )
    assert set(named.split()) <= public_verbs()


BLOCK = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"django", "rest_framework"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
names = ["workloads.contract", "workloads.errors", "workloads.lifecycle"]
for name in names:
    importlib.import_module(name)
for found in pkgutil.walk_packages(sys.modules["workloads.lifecycle"].__path__, "workloads.lifecycle."):
    importlib.import_module(found.name)
assert not [name for name in sys.modules if name.split(".")[0] == "django"]
print(len([name for name in sys.modules if name.startswith("workloads.lifecycle.")]))
"""


def test_the_vocabulary_and_the_rules_work_without_django() -> None:
    ran = subprocess.run([sys.executable, "-c", BLOCK], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == len(files("lifecycle")) - 1


# Who writes

WRITES = {
    "save",
    "create",
    "bulk_create",
    "bulk_update",
    "get_or_create",
    "update_or_create",
    "update",
    "delete",
    "raw",
    "execute",
    "executemany",
    "callproc",
    "asave",
    "acreate",
    "abulk_create",
    "abulk_update",
    "aget_or_create",
    "aupdate_or_create",
    "aupdate",
    "adelete",
}

# (file, method): why it is no write of the app's rows.
NO_WRITES = {
    ("workloads/management/commands/workloads_access.py", "save"): "the site's rows: who may do what",
    ("workloads/management/commands/workloads_access.py", "delete"): "the site's rows: who may do what",
    ("workloads/management/commands/workloads_token.py", "create"): "the site's tokens",
    ("workloads/management/commands/workloads_token.py", "delete"): "the site's tokens",
    ("workloads/admin/token_pages.py", "create"): "the site's tokens",
    ("workloads/admin/token_pages.py", "delete"): "the site's tokens",
    ("workloads/checks.py", "execute"): "reads the database's settings",
    ("workloads/wakeups.py", "execute"): "says NOTIFY, and listens",
    ("workloads/worker/calls.py", "execute"): "bounds how long a statement may take",
}


def calls_that_write(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what may write rows. `update` with a plain argument is a dict's or a digest's, not a QuerySet's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            if node.func.attr in {"update", "aupdate"} and node.args:
                continue
            yield node.lineno, node.func.attr


OUTSIDE = [path for path in files() if part_of(path) not in {"authority", "migrations"}]


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_nothing_outside_the_authority_writes(path: Path) -> None:
    wrong = [
        f"line {line}: .{method}()"
        for line, method in calls_that_write(parsed(path))
        if (name_of(path), method) not in NO_WRITES
    ]
    assert wrong == []


def test_what_is_excused_is_still_there() -> None:
    found = {(name_of(path), method) for path in OUTSIDE for _, method in calls_that_write(parsed(path))}
    assert set(NO_WRITES) <= found


def test_the_search_for_writes_finds_them() -> None:
    written = "rows.update(a=1)\nrows.update(**a)\nrow.save()\nRow.objects.create()\ncursor.execute('x')\nrow.delete()"
    silent = "values.update({'a': 1})\ndigest.update(b'')\nrow.saved()\ncreate()"
    found = [method for _, method in calls_that_write(ast.parse(written))]
    assert sorted(found) == ["create", "delete", "execute", "save", "update", "update"]
    assert list(calls_that_write(ast.parse(silent))) == []


@pytest.mark.parametrize("path", files("models", "signals", "apps"), ids=name_of)
def test_no_model_and_no_signal_changes_state(path: Path) -> None:
    receivers = {"receiver", "pre_save", "post_save", "pre_delete", "post_delete", "m2m_changed"}
    assert [name for _, name in imports(path) if name.split(".")[-1] in receivers] == []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef) and node.name in {"save", "delete", "update"}:
            assert all(isinstance(statement, ast.Raise) for statement in node.body), f"line {node.lineno}"


# Files and words

LONGEST = 450


@pytest.mark.parametrize("path", [p for p in files() if part_of(p) != "migrations"], ids=name_of)
def test_files_stay_short_and_say_what_they_know(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    if text.strip():
        assert ast.get_docstring(parsed(path)), "a module's docstring says what it alone knows"


AVOIDED = (
    "job jobs task tasks reaper reapers janitor janitors manager managers service services helper helpers util utils "
    "common core engine engines handle handles process processes owner owners"
).split()

# (file, name): why the word is somebody else's.
NAMED_BY_OTHERS: dict[tuple[str, str], str] = {
    ("workloads/api/base.py", "handle_exception"): "Django REST framework's",
}


def words_of(name: str) -> list[str]:
    """Split a name at its underscores and humps."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def is_avoided(path: Path, name: str) -> bool:
    words = words_of(name)
    # "token" alone says neither whose nor for what; "lock" is a row's, and never a claim.
    if words in (["token"], ["lock"], ["tokens"], ["locks"]):
        return True
    found = set(words) & set(AVOIDED)
    # Django's words: a command's `handle`, and Django Tasks.
    if part_of(path) == "management" and name == "handle":
        return False
    if part_of(path) == "tasks" or path.stem in {"workloads_tasks", "tasks"}:
        found -= {"task", "tasks"}
    return bool(found) and (name_of(path), name) not in NAMED_BY_OTHERS


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_words_to_avoid_name_nothing(path: Path) -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(parsed(path)) if isinstance(node, kinds)}
    if part_of(path) != "tasks":
        names |= {part.removesuffix(".py") for part in path.relative_to(APP).parts}
    assert sorted(name for name in names if is_avoided(path, name)) == []


def test_the_search_for_words_finds_them() -> None:
    path = APP / "models.py"
    for name in ("JobRow", "run_task", "TaskManager", "OwnerIndex", "process_all", "token", "coreValue", "_utils"):
        assert is_avoided(path, name), name
    for name in ("fencing_token", "handler", "score", "processor_time", "ApplicationLock", "lock_workload", "TASKED"):
        assert not is_avoided(path, name), name
