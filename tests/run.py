"""Runs every check and the whole suite on each database that answers, and says at the end what ran and what did not.

`make test` calls it. It needs nothing but the packages of requirements.txt; MariaDB's client is installed on the way
if the server answers. Exit 1 if anything failed. With WORKLOADS_REQUIRE_SERVICES=1 a database that does not answer is
a failure too.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
ACCEPTANCE = ROOT.parent / "shared" / "acceptance"
WITHOUT_DATABASE = "tests/lifecycle"
# On a site of its own, on SQLite: the pages are the same code on each database.
IN_A_BROWSER = "tests/browser"
# They ask nothing of the database that the suite runs on, or have one of their own; so SQLite's suite alone has them.
ONCE = (
    WITHOUT_DATABASE,
    "tests/mutation",
    "tests/test_architecture.py",
    "tests/test_bare_site.py",
    "tests/test_demo.py",
    "tests/test_reference.py",
)
PYTHON = sys.executable
SUFFIX = os.environ.get("TEST_DB_SUFFIX", f"_py{sys.version_info.major}{sys.version_info.minor}")
SERVICES_ARE_REQUIRED = os.environ.get("WORKLOADS_REQUIRE_SERVICES", "") not in {"", "0"}


@dataclass(frozen=True)
class Database:
    """A database that the suite can run on. `variable` names the environment variable that moves it elsewhere."""

    name: str
    title: str
    default_url: str
    variable: str | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return os.environ.get(self.variable or "", "") or self.default_url


DATABASES = [
    Database("sqlite", "SQLite", f"sqlite:///{ROOT / 'test_site.sqlite3'}"),
    Database("postgresql", "PostgreSQL", "postgres://postgres@127.0.0.1:5432/postgres", "WORKLOADS_TEST_POSTGRES_URL"),
    Database("mariadb", "MariaDB", "mysql://root@127.0.0.1:3306/test", "WORKLOADS_TEST_MARIADB_URL"),
]

CHECKS = {
    "Formatting (ruff)": [PYTHON, "-m", "ruff", "format", "--check", "."],
    "Lint (ruff)": [PYTHON, "-m", "ruff", "check", "."],
    "Types (mypy)": [PYTHON, "-m", "mypy"],
    "Import rules (import-linter)": [str(Path(PYTHON).with_name("lint-imports")), "--no-logo"],
    "Migrations are complete": [PYTHON, "manage.py", "makemigrations", "--check", "--dry-run"],
    "System checks": [PYTHON, "manage.py", "check", "--fail-level", "WARNING"],
}


@dataclass
class Tally:
    """What came of the steps so far."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Tally) -> None:
        """Count another's steps in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class Run:
    """One run: prints a heading before and a time after each step, and gathers the lines of the summary."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tally = Tally()
        self.lines: list[str] = []
        self._is_alone = True
        self._printing = threading.Lock()

    def step(self, title: str, command: list[str], **environment: str) -> int:
        """Run a command and return its exit code. Its output is shown as it comes, or at its end if others run too."""
        print(f"\n=== {title}", flush=True)
        started = time.monotonic()
        environment = os.environ | environment
        if self._is_alone:
            code = subprocess.run(command, cwd=ROOT, env=environment).returncode
            self._end(title, code, started)
            return code
        with tempfile.TemporaryFile() as output:
            code = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output).returncode
            output.seek(0)
            with self._printing:
                print(f"\n=== {title}, as it went", flush=True)
                sys.stdout.buffer.write(output.read())
                self._end(title, code, started)
        return code

    def _end(self, title: str, code: int, started: float) -> None:
        print(f"--- {title}: {'ok' if code == 0 else f'FAILED (exit {code})'}, {_since(started)}", flush=True)

    def side_by_side(self, parts: list[Callable[[], None]]) -> None:
        """Run the parts, several at once: a suite waits for its database half of the time."""
        self._is_alone = len(parts) < 2 or self.options.at_once < 2
        with ThreadPoolExecutor(self.options.at_once) as threads:
            for ended in [threads.submit(part) for part in parts]:
                ended.result()
        self._is_alone = True

    def check(self, title: str, command: list[str], **environment: str) -> None:
        """Run a command that counts as one test."""
        ok = self.step(title, command, **environment) == 0
        self.tally.add(Tally(passed=1) if ok else Tally(failed=1))
        if not ok:
            self.lines.append(f"{title}: FAILED")

    def package(self) -> None:
        """Build the wheel from a copy of the tree, and compare what it ships with what stands in `workloads/`."""
        title = "The package ships all of its files"
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "tree")
            copy.mkdir()
            shutil.copytree(ROOT / "workloads", copy / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
            for path in (ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")):
                if path.exists():
                    shutil.copy(path, copy)
            wanted = {str(path.relative_to(copy)) for path in (copy / "workloads").rglob("*") if path.is_file()}
            command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
            code = self.step(title, [*command, "--no-build-isolation", "--wheel-dir", folder, str(copy)])
            shipped = {name for wheel in Path(folder).glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()}
        missing = sorted(wanted - shipped)
        if code or missing:
            self.tally.add(Tally(failed=1))
            self.lines.append(f"{title}: FAILED {', '.join(missing)}".rstrip())
        else:
            self.tally.add(Tally(passed=1))

    def rules(self) -> None:
        """Run the tests that need no database, once."""
        started = time.monotonic()
        told = self.tests("Tests without a database", [*self.selection(), WITHOUT_DATABASE], self.profile())
        self.tally.add(told)
        self.lines.append(f"Without a database: {told}, {_since(started)}")

    def browser(self) -> None:
        """Walk through the pages with a browser, once; or say why not."""
        sys.path.insert(0, str(ROOT))
        from tests.browser.site import why_not

        if reason := why_not():
            if SERVICES_ARE_REQUIRED:
                self.tally.add(Tally(failed=1))
            self.lines.append(f"In a browser: {'FAILED, ' if SERVICES_ARE_REQUIRED else ''}not run. {reason}")
            return
        started = time.monotonic()
        told = self.tests("Tests in a browser", [*self.selection(), IN_A_BROWSER], self.profile())
        self.tally.add(told)
        self.lines.append(f"In a browser: {told}, {_since(started)}")

    def selection(self) -> list[str]:
        """Return how pytest is told which tests to run."""
        return ["-m", ""] if self.options.long else []

    def profile(self) -> dict[str, str]:
        """Return how Hypothesis is told how far to look."""
        return {"HYPOTHESIS_PROFILE": "long"} if self.options.long else {}

    def suite(self, database: Database) -> None:
        """Run the suite, and the acceptance tests where they are, on one database; or say why not."""
        if reason := _why_not(database):
            if SERVICES_ARE_REQUIRED:
                self.tally.add(Tally(failed=1))
            self.lines.append(f"{database.title}: {'FAILED, ' if SERVICES_ARE_REQUIRED else ''}not run. {reason}")
            return
        started = time.monotonic()
        if database.name == "sqlite":
            for path in ROOT.glob(f"test_db{SUFFIX}.sqlite3*"):
                path.unlink()
        environment = {"DATABASE_URL": database.url, "TEST_DB_SUFFIX": SUFFIX}
        self.check(
            f"System checks on {database.title}",
            [PYTHON, "manage.py", "check", "--database", "default", "--fail-level", "WARNING"],
            **environment,
        )
        once = ONCE if database.name != "sqlite" and "sqlite" in self.options.databases else ()
        if self.options.pytest:
            arguments = [given for given in self.options.pytest if given not in once] or self.options.pytest
        else:
            arguments = [f"--ignore={path}" for path in {WITHOUT_DATABASE, IN_A_BROWSER, *once}]
        told = self.tests(f"Tests on {database.title}", [*self.selection(), *arguments], environment | self.profile())
        if ACCEPTANCE.is_dir() and not self.options.pytest:
            arguments = ["-c", "pyproject.toml", str(ACCEPTANCE)]
            accepted = self.tests(f"Acceptance tests on {database.title}", arguments, environment)
            if accepted.skipped:
                accepted.failed += accepted.skipped
                self.lines.append(f"Acceptance tests on {database.title}: FAILED, {accepted.skipped} skipped")
                accepted.skipped = 0
            told.add(accepted)
        self.tally.add(told)
        self.lines.append(f"{database.title}: {told}, {_since(started)}")

    def tests(self, title: str, arguments: list[str], environment: dict[str, str]) -> Tally:
        """Run pytest and return what it counted. A run that ends badly has at least one failure."""
        report = REPORTS / f"{title.replace(' ', '-').lower()}.xml"
        runner = [PYTHON, "-m"] + ([] if self.options.no_coverage else ["coverage", "run", "-m"])
        environment = environment | {"COVERAGE_FILE": str(REPORTS / "coverage")}
        code = self.step(title, [*runner, "pytest", "-q", f"--junitxml={report}", *arguments], **environment)
        told = _read(report)
        if code and not told.failed:
            told.failed = 1
        return told

    def mutation(self) -> None:
        """Change the rules and the authority in small ways, and look whether a test notices each."""
        # They judge the tests, not the Python: the run of a second one leaves them out with the checks.
        if self.options.no_mutation or self.options.no_checks:
            self.lines.append("Mutants: not tried")
            return
        started = time.monotonic()
        server = next(database for database in DATABASES if database.name == "postgresql")
        missing = _why_not(server)
        asked = [] if missing else ["--postgresql", server.url]
        ok = self.step("Mutants", [PYTHON, "-m", "tests.mutation", *asked]) == 0 and not (
            missing and SERVICES_ARE_REQUIRED
        )
        self.tally.add(Tally(passed=1) if ok else Tally(failed=1))
        told = "each is noticed, or explained" if ok else "FAILED"
        if missing:
            told += f"; those that SQLite does not tell were not tried. {missing}"
        self.lines.append(f"Mutants: {told}, {_since(started)}")

    def coverage(self) -> None:
        """Show which lines and branches no suite reached."""
        environment = {"COVERAGE_FILE": str(REPORTS / "coverage")}
        if any(REPORTS.glob("coverage.*")):
            self.step("Coverage, all databases together", [PYTHON, "-m", "coverage", "combine", "-q"], **environment)
            self.step("Coverage report", [PYTHON, "-m", "coverage", "report"], **environment)


def _why_not(database: Database) -> str | None:
    """Return why the suite cannot run on this database, and what would help; None if it can."""
    if database.name == "sqlite":
        return None
    address = urlsplit(database.url)
    port = address.port or {"postgresql": 5432, "mariadb": 3306}[database.name]
    remedy = f"Start {database.title} there, or name another server in {database.variable}."
    if address.hostname:
        try:
            socket.create_connection((address.hostname, port), 3).close()
        except OSError:
            return f"Nothing answers at {address.hostname}:{port}. {remedy}"
    if database.name == "mariadb" and importlib.util.find_spec("MySQLdb") is None:
        print("\n=== Installing MariaDB's client", flush=True)
        command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r"]
        if subprocess.run([*command, "requirements-mariadb.txt"], cwd=ROOT).returncode:
            return (
                "mysqlclient does not build: install a C compiler, pkg-config and MariaDB's headers "
                "(on Debian: gcc pkg-config libmariadb-dev)."
            )
    code = "import django; django.setup(); from django.db import connection; connection.ensure_connection()"
    environment = os.environ | {"DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "project.settings"}
    tried = subprocess.run([PYTHON, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    if tried.returncode:
        told = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"It does not let us in ({told}). {remedy}"
    return None


def _read(report: Path) -> Tally:
    if not report.exists():
        return Tally(failed=1)
    told = Tally()
    for suite in ElementTree.parse(report).iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        told.add(Tally(int(suite.get("tests", 0)) - failed - skipped, failed, skipped))
    return told


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [database.name for database in DATABASES]
    parser.add_argument("--databases", default=",".join(names), help="some of " + ", ".join(names))
    parser.add_argument(
        "--no-checks", action="store_true", help="leave out formatting, lint, types, rules, package, mutants"
    )
    parser.add_argument("--checks-only", action="store_true", help="run no tests")
    parser.add_argument("--browser-only", action="store_true", help="run the checks, and the tests in a browser")
    parser.add_argument("--no-coverage", action="store_true", help="do not measure coverage")
    parser.add_argument(
        "--at-once",
        type=int,
        default=min(3, os.cpu_count() or 1),
        help="how many suites run side by side (%(default)s)",
    )
    parser.add_argument("--long", action="store_true", help="run the tests that take minutes as well")
    parser.add_argument("--no-mutation", action="store_true", help="with --long: leave the mutants out")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --; the acceptance tests are left out")
    options = parser.parse_args()
    options.databases = [name for name in options.databases.split(",") if name]
    if unknown := set(options.databases) - set(names):
        parser.error(f"no such database: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    """Run what the options ask for; return 0 if nothing failed."""
    started = time.monotonic()
    run = Run(_options())
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    if not run.options.no_checks:
        for title, command in CHECKS.items():
            run.check(title, command)
        run.package()
    if run.options.browser_only:
        run.browser()
    elif not run.options.checks_only:
        # The longest first.
        parts: list[Callable[[], None]] = [
            functools.partial(run.suite, database)
            for database in reversed(DATABASES)
            if database.name in run.options.databases
        ]
        if not run.options.pytest:
            parts += [run.rules, run.browser]
        run.side_by_side(parts)
        run.coverage()
        if run.options.long and not run.options.pytest:
            run.mutation()
    import django

    print(f"\n=== Summary: Python {sys.version.split()[0]}, Django {django.__version__}, {_since(started)}")
    print("\n".join(run.lines))
    print(run.tally, flush=True)
    return 1 if run.tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
