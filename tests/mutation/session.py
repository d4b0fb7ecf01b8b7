"""The pytest plugin that tries each mutant: one forked child for each, on the tests that run the statement it changes.

All tests run once, unmutated, to learn which lines each runs and how long it takes. A child begins with
everything imported and collected and the database migrated: it gets a copy of the database, and ends at the first
test that fails. WORKLOADS_MUTATION names the file that says what to try, and where to write what came of it.
"""

from __future__ import annotations

import functools
import gc
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings

from tests.mutation import switches

# How long a test may take in a child: some seconds that the slowest machine does not use up, and a multiple of what it
# took. A mutant in a loop is told by the processor's time, one that waits for ever by the clock.
LIMIT_S = float(os.environ.get("WORKLOADS_MUTATION_LIMIT_S", "5"))
LIMIT_FACTOR, WAITING_FACTOR = 10.0, 6.0
MEMORY_BYTES = 2 * 1024**3
STAGES = ("tests/lifecycle/", "tests/authority/", "tests/model/", "tests/faults/")
KILLED, SURVIVED, TIMED_OUT, NOT_REACHED = "killed", "survived", "timed out", "not reached"
BROKEN = "broke the child"
_BROKE = 3

# What a child is given that shows that the tests pass in their new order.
UNCHANGED = ""


@dataclass
class Test:
    """What was learnt of a test."""

    number: int
    item: pytest.Item
    seconds: float
    breadth: int
    stage: int
    lines: frozenset[tuple[str, int]]

    @property
    def limit_s(self) -> float:
        """How much of the processor's time it may take in a child."""
        return LIMIT_S + LIMIT_FACTOR * self.seconds


class Template:
    """The database as it is before the first mutant: a file of SQLite's, or a database of PostgreSQL's."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.name = str(settings["NAME"])

    def copy(self, slot: int, folder: Path) -> None:
        """Give the child in this place a copy of its own, and let it use that."""
        if self.is_file:
            own = str(folder / f"{slot}.sqlite3")
            for ending in ("-wal", "-shm", "-journal"):
                Path(f"{own}{ending}").unlink(missing_ok=True)
            shutil.copyfile(self.name, own)
        else:
            own = self.named(slot)
            self.remove(slot)
            # What a test commits need not outlive a power cut.
            self.tell(
                f'CREATE DATABASE "{own}" TEMPLATE "{self.name}"',
                f'ALTER DATABASE "{own}" SET synchronous_commit = off',
            )
        self.settings["NAME"] = own

    def remove(self, slot: int) -> None:
        """Remove the copy of that place, whoever is connected to it. A file's folder is removed by who gave it."""
        if not self.is_file:
            self.tell(f'DROP DATABASE IF EXISTS "{self.named(slot)}" WITH (FORCE)')

    @property
    def is_file(self) -> bool:
        """Tell which it is."""
        return str(self.settings["ENGINE"]).endswith("sqlite3")

    def named(self, slot: int) -> str:
        """Name the copy of PostgreSQL's in that place."""
        return f"{self.name}_mutant_{slot}"

    def tell(self, *statements: str) -> None:
        """Let PostgreSQL do what belongs to no database."""
        import psycopg

        with psycopg.connect(
            host=self.settings["HOST"] or None,
            port=self.settings["PORT"] or None,
            user=self.settings["USER"] or None,
            password=self.settings["PASSWORD"] or None,
            dbname="postgres",
            autocommit=True,
        ) as connection:
            for statement in statements:
                connection.execute(statement)


def template() -> Template | None:
    """Close the database, so that it is whole and no child shares a connection, and return it; None if there is none.

    What the session keeps a connection for is given up as well: PostgreSQL copies no database that is in use.
    """
    from django.db import connections

    from workloads import wakeups

    wakeups.stop()
    connections.close_all()
    found = Template(connections["default"].settings_dict)
    return found if not found.is_file or Path(found.name).exists() else None


@dataclass
class Child:
    """A child at work on a mutant. `slot` is its place among those that run at once."""

    mutant: str
    slot: int
    order: list[Test]
    started: float = field(default_factory=time.monotonic)


class Trial:
    """The loop over tests and mutants. It is a pytest plugin, and in a child it notes the first failure."""

    def __init__(self, plan: dict[str, Any]) -> None:
        # By name, the first and the last line of the statement that it changes, within its function.
        self.mutants: dict[str, tuple[int, int]] = {name: tuple(lines) for name, lines in plan["mutants"].items()}
        self.budget_s: float = plan["budget_s"]
        self.slots: list[int] = list(range(plan["max_children"]))
        self.results = Path(plan["results"])
        self.databases = Path(plan["databases"])
        self.story = self.databases / "unchanged.txt"
        self.tests_by_key: dict[str, list[Test]] = defaultdict(list)
        self.tests_by_statement: dict[tuple[str, int, int], list[Test]] = {}
        self.kills: dict[Any, Counter[int]] = defaultdict(Counter)
        self.children: dict[int, Child] = {}
        self.failed: list[str] = []
        # Each child writes the place of the test that it is at.
        self.places = mmap.mmap(-1, 4 * len(self.slots))
        self.told: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Draw the same examples for each mutant, and look for no smaller ones."""
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            self.failed.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every test once, then every mutant."""
        self.session = session
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        self.caches = [
            found
            for found in gc.get_objects()
            if isinstance(found, functools._lru_cache_wrapper)
            and str(found.__module__).split(".")[0] in {"tests", "workloads"}
        ]
        self.learn()
        if self.failed:
            self.give_up("Without a mutant", "\n".join(self.failed))
        self.template = template()
        gc.collect()
        gc.freeze()
        try:
            self.try_all()
        finally:
            if self.template:
                for slot in range(len(self.places) // 4):
                    self.template.remove(slot)
        return True

    def give_up(self, when: str, why: str) -> NoReturn:
        """End, since the tests say nothing of a mutant if they do not pass without."""
        self.terminal.write_line(f"{when}: {why}")
        raise self.session.Failed(when)

    def learn(self) -> None:
        """Run all tests in their order, and note what each reaches."""
        items = self.session.items
        switches.watching[0] = True
        for number, (item, following) in enumerate(zip(items, [*items[1:], self.session], strict=True)):
            self.forget()
            started = time.monotonic()
            # With the session as what follows, its fixtures stay: the database among them.
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            stage = sum(not item.nodeid.startswith(STAGES[: place + 1]) for place in range(len(STAGES)))
            seconds = time.monotonic() - started
            test = Test(number, item, seconds, len(switches.reached), stage, frozenset(switches.lines))
            for key in switches.reached:
                self.tests_by_key[key].append(test)
        switches.watching[0] = False

    def forget(self) -> None:
        """Empty every cache, so that what a mutant would change is worked out again."""
        switches.reached.clear()
        switches.lines.clear()
        for cache in self.caches:
            cache.cache_clear()

    def try_all(self) -> None:
        """Try each mutant, as many at once as there are slots. The quick ones come first."""
        started = time.monotonic()
        with self.results.open("a", encoding="utf-8") as out:
            for done, told in enumerate(self.verdicts(), start=1):
                out.write(json.dumps(told) + "\n")
                out.flush()
                self.told[told["verdict"]] += 1
                if done % 100 == 0 or done == len(self.mutants):
                    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.told.items()))
                    passed = time.monotonic() - started
                    self.terminal.write_line(f"{done} of {len(self.mutants)} mutants, {passed:.0f} s: {counts}")

    def verdicts(self) -> Iterator[dict[str, Any]]:
        """Yield what comes of each mutant, as it comes."""
        needed = {test.number: test for mutant in self.mutants for test in self.order(mutant)}
        if needed:
            self.start(UNCHANGED, sorted(needed.values(), key=lambda test: (test.stage, test.seconds)))
        for mutant in self.mutants:
            order = self.order(mutant)
            if not order:
                yield {"mutant": mutant, "verdict": NOT_REACHED, "seconds": 0.0, "tests": 0, "by": ""}
                continue
            while not self.slots:
                yield from self.wait()
            self.start(mutant, order)
        while self.children:
            yield from self.wait()

    def order(self, mutant: str) -> list[Test]:
        """Return the tests that run what a mutant changes: stage by stage, first what has killed its like quickly.

        Of each stage as many as take no longer than the budget; the first in any case.
        """
        statement = self.statement(mutant)
        by_statement, by_function = self.kills[statement], self.kills[statement[0]]
        order: list[Test] = []
        spent: dict[int, float] = defaultdict(float)

        def place(test: Test) -> tuple[int, float]:
            kills = 10 * by_statement[test.number] + by_function[test.number]
            return test.stage, test.seconds * test.breadth / (kills + 0.02)

        for test in sorted(self.candidates(statement), key=place):
            if not spent[test.stage] or spent[test.stage] + test.seconds <= self.budget_s:
                order.append(test)
                spent[test.stage] += test.seconds
        return order

    def statement(self, mutant: str) -> tuple[str, int, int]:
        """Return where the statement stands that a mutant changes: its function, and its lines in that."""
        return (switches.key_of(mutant), *self.mutants[mutant])

    def candidates(self, statement: tuple[str, int, int]) -> list[Test]:
        """Return the tests that run a statement."""
        key, first, last = statement
        if statement not in self.tests_by_statement:
            module, start = key.rpartition(".")[0], switches.starts.get(key, 0)
            lines = {(module, start + line) for line in range(first, last + 1)}
            self.tests_by_statement[statement] = [
                test
                for test in self.tests_by_key.get(key, ())
                if key in switches.generators or not lines.isdisjoint(test.lines)
            ]
        return self.tests_by_statement[statement]

    def start(self, mutant: str, order: list[Test]) -> None:
        """Fork a child that tries a mutant."""
        slot = self.slots.pop()
        pid = os.fork()
        if pid == 0:
            code = _BROKE
            try:
                code = self.attempt(mutant, slot, order)
            finally:
                os._exit(code)
        self.children[pid] = Child(mutant, slot, order)

    def attempt(self, mutant: str, slot: int, order: list[Test]) -> int:
        """In the child: run the tests until one fails. Whatever breaks, the mutant has been noticed."""
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE if sys.platform == "linux" else 0
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))
        if self.template:
            self.template.copy(slot, self.databases)
        # A report that shows the source would parse it, and it holds every mutant of its file.
        self.session.config.option.tbstyle = "native"
        self.forget()
        if mutant != UNCHANGED:
            switches.choose(mutant)
        for place, test in enumerate(order):
            struct.pack_into("i", self.places, 4 * slot, place)
            # No one catches the signals: they end the child, whatever the mutant is at.
            signal.setitimer(signal.ITIMER_PROF, test.limit_s)
            signal.setitimer(signal.ITIMER_REAL, test.limit_s * WAITING_FACTOR)
            test.item.ihook.pytest_runtest_protocol(item=test.item, nextitem=self.session)
            if self.failed and mutant != UNCHANGED:
                return 1
        if self.failed:
            self.story.write_text("\n".join(self.failed), encoding="utf-8")
        return 1 if self.failed else 0

    def wait(self) -> Iterator[dict[str, Any]]:
        """Wait for a child to end, and yield what came of its mutant."""
        pid, status = os.wait()
        child = self.children.pop(pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        self.slots.append(child.slot)
        (place,) = struct.unpack_from("i", self.places, 4 * child.slot)
        test = child.order[place]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGPROF, signal.SIGALRM}:
            verdict = TIMED_OUT
        elif status == 0:
            verdict = SURVIVED
        else:
            verdict = KILLED if os.waitstatus_to_exitcode(status) == 1 else BROKEN
            if child.mutant != UNCHANGED:
                self.kills[switches.key_of(child.mutant)][test.number] += 1
                self.kills[self.statement(child.mutant)][test.number] += 1
        if child.mutant == UNCHANGED:
            if verdict != SURVIVED:
                told = self.story.read_text(encoding="utf-8") if self.story.exists() else test.item.nodeid
                self.give_up("Without a mutant, run again in another order", f"{verdict}: {told}")
            return
        yield {
            "mutant": child.mutant,
            "verdict": verdict,
            "seconds": round(time.monotonic() - child.started, 3),
            "tests": place + 1,
            "by": "" if verdict == SURVIVED else test.item.nodeid,
        }


def pytest_configure(config: pytest.Config) -> None:
    """Join the session, where there is something to try."""
    from django.conf import settings as site

    if site.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        # What a test commits need not outlive a power cut.
        site.DATABASES["default"]["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
    trial = Trial(json.loads(Path(os.environ["WORKLOADS_MUTATION"]).read_text(encoding="utf-8")))
    config.pluginmanager.register(trial, "mutation-trial")
