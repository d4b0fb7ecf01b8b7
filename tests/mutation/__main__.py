"""Changes the rules and the authority in thousands of small ways, and looks whether a test notices each.

`python -m tests.mutation` takes a copy of the tree, has mutmut make the mutants, tries each (see `session.py`), and
prints those that no test noticed. Exit 1 if one of them is not explained in `survivors.toml`, or if that explains a
mutant that there is not. SQLite is asked first; what it never runs, or tests do not notice there, is tried on
PostgreSQL.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutation import explained
from tests.mutation.explained import Explanation
from tests.mutation.mutants import Mutant, mutate
from tests.mutation.session import BROKEN, KILLED, NOT_REACHED, SURVIVED, TIMED_OUT

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("workloads", "project", "tests", "bench", "templates", "docs", "manage.py", "pyproject.toml")
RULES, AUTHORITY = "workloads/lifecycle", "workloads/authority"
# The tests that know a part, quickest to tell first. The rules' own are asked before those of the authority.
TESTS = {RULES: ["tests/lifecycle", "tests/authority", "tests/model"], AUTHORITY: ["tests/authority", "tests/model"]}
# The rules ask no database.
ON_POSTGRESQL = {AUTHORITY: ["tests/authority"]}
LIVES = {SURVIVED, NOT_REACHED}
NOT_TRIED = "not tried for want of PostgreSQL"


def copy(tree: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "*.sqlite3*")
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=ignored)
        elif path.exists():
            shutil.copy(path, tree / name)


def prepare(tree: Path, paths: Iterable[str], max_children: int) -> list[Mutant]:
    """Put the mutants into the copy's files, and return them."""
    files = [
        file
        for path in paths
        for file in (sorted((tree / path).rglob("*.py")) if (tree / path).is_dir() else [tree / path])
        if file.name != "__init__.py"
    ]
    mutants: list[Mutant] = []
    with ProcessPoolExecutor(max_children) as pool:
        for file, (code, found) in zip(files, pool.map(partial(mutate, root=tree), files), strict=True):
            file.write_text(code, encoding="utf-8")
            mutants += found
    return mutants


def attempt(
    tree: Path, tests: list[str], mutants: list[Mutant], url: str | None = None, **given: Any
) -> dict[str, dict[str, Any]]:
    """Try mutants on tests, and return what came of each, by name. Without a `url`, on SQLite."""
    plan, results = tree / "plan.json", tree / "results.jsonl"
    results.unlink(missing_ok=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="workloads-mutation-", dir=memory) as databases:
        told = {
            "mutants": {mutant.name: (mutant.first, mutant.last) for mutant in mutants},
            "results": str(results),
            "databases": databases,
            **given,
        }
        plan.write_text(json.dumps(told), encoding="utf-8")
        options = ["-q", "-p", "tests.mutation.session", "-p", "no:cacheprovider", "--capture=sys", "--tb=short"]
        environment = os.environ | {
            "WORKLOADS_MUTATION": str(plan),
            "DATABASE_URL": url or f"sqlite:///{tree / 'site.sqlite3'}",
            "TEST_DB_SUFFIX": f"_mutation_{os.getpid()}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        code = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=tree, env=environment).returncode
    if code:
        raise SystemExit("The tests do not pass without a mutant.")
    found = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {told["mutant"]: told for told in found}


class Account:
    """What came of the mutants so far, against what is explained."""

    def __init__(self, explanations: list[Explanation]) -> None:
        self.explanations = explanations
        self.verdicts: Counter[str] = Counter()
        self.faults = 0

    def is_explained(self, mutant: Mutant) -> bool:
        """Say whether a mutant may survive."""
        return any(explanation.covers(mutant) for explanation in self.explanations)

    def add(self, mutants: list[Mutant], told: dict[str, dict[str, Any]]) -> None:
        """Count mutants in, and print what is not as it should be."""
        for mutant in mutants:
            line = told[mutant.name]
            self.verdicts[line["verdict"]] += 1
            if line["verdict"] == NOT_TRIED:
                continue
            lives = line["verdict"] in LIVES
            if lives != self.is_explained(mutant):
                said = line["verdict"] if lives else f"explained, but {line['verdict']} by {line['by']}"
                self.fault(f"{mutant.name}: {said}\n{mutant.diff}")

    def check(self, made: list[Mutant], paths: list[str]) -> None:
        """Look whether each explanation of these files has a mutant still."""
        modules = tuple(path.replace("/", ".").removesuffix(".py") for path in paths)
        for told in self.explanations:
            if told.function.startswith(modules):
                for now in told.now or [""]:
                    one = replace(told, now=(now,) if now else ())
                    if not any(one.covers(mutant) for mutant in made):
                        self.fault(f"survivors.toml explains what there is not: {told.function}\n-{told.was}\n+{now}")

    def fault(self, text: str) -> None:
        """Print what is wrong, and count it."""
        self.faults += 1
        print(f"\n{text}", flush=True)


def main() -> int:
    """Do what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="+", default=[*TESTS], help="files or folders to change")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of mutants' names")
    parser.add_argument("--tests", nargs="+", help="folders of tests to ask, in the place of all that know the part")
    told = "for a quick look: how long the tests of a folder may take in all, the nearest of them first"
    parser.add_argument("--budget-s", type=float, default=float("inf"), help=told)
    parser.add_argument("--max-children", type=int, default=os.cpu_count() or 1, help="how many are tried at once")
    parser.add_argument("--explained-too", action="store_true", help="try those that survivors.toml explains as well")
    parser.add_argument("--postgresql", metavar="URL", help="a server to try there what SQLite does not tell")
    parser.add_argument("--results", type=Path, help="a file to keep what came of each mutant in, as JSON Lines")
    options = parser.parse_args()
    results = options.results and options.results.resolve()
    started = time.monotonic()
    account = Account(explained.read())
    with tempfile.TemporaryDirectory(prefix="workloads-mutation-") as folder:
        tree = Path(folder).resolve()
        copy(tree)
        # mutmut reads its settings where it stands.
        os.chdir(tree)
        made = prepare(tree, options.paths, options.max_children)
        account.check(made, options.paths)
        wanted = [mutant for mutant in made if any(fnmatch.fnmatch(mutant.name, name) for name in options.only)]
        tried = [mutant for mutant in wanted if options.explained_too or not account.is_explained(mutant)]
        print(f"{len(wanted)} mutants, {_since(started)}", flush=True)
        limits = {"max_children": options.max_children, "budget_s": options.budget_s}
        for part, tests in TESTS.items():
            mutants = [mutant for mutant in tried if mutant.path.startswith(part)]
            told: dict[str, dict[str, Any]] = {}
            if on_sqlite := [mutant for mutant in mutants if mutant.on_sqlite]:
                told = attempt(tree, options.tests or tests, on_sqlite, **limits)
            left = [m for m in mutants if m.name not in told or told[m.name]["verdict"] in LIVES]
            if left and part in ON_POSTGRESQL:
                if options.postgresql:
                    tests = options.tests or ON_POSTGRESQL[part]
                    told |= attempt(tree, tests, left, options.postgresql, **limits)
                else:
                    told |= {m.name: {"mutant": m.name, "verdict": NOT_TRIED} for m in left}
            account.add(mutants, told)
            if results:
                with results.open("a", encoding="utf-8") as out:
                    out.writelines(json.dumps(line) + "\n" for line in told.values())
        os.chdir(ROOT)
    counts = [
        f"{account.verdicts[verdict]} {verdict}"
        for verdict in (KILLED, TIMED_OUT, BROKEN, SURVIVED, NOT_REACHED, NOT_TRIED)
    ]
    print(f"\n{len(wanted)} mutants: {', '.join(counts)}, {len(wanted) - len(tried)} explained; {_since(started)}")
    return 1 if account.faults else 0


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
