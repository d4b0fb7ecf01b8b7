"""Whether what is stored slows down what is done: goals 3, 4 and 7 of the speed that docs/performance.md speaks of.

Run `python bench/growth.py --help`. Two databases are measured in turn: one that holds little, and one that holds much
that nobody asks for: finished workloads with all their events, and work that no claim may find (for later at a higher
priority, blocked, for other capabilities, claimed by others). Rows that stand there are copies made by SQL.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from measure import Subject, copy_finished, open_worker
from peers.base import read_counts
from peers.ours import Ours, copies
from report import number, put, table
from server import NoServer, Server, started

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TEMPLATES = """
import datetime as dt, json, sys
from verbs import site
site(sys.argv[1])
from life import decision, request, take
from workloads import authority
from workloads.contract import Dependency
from workloads.models import Admitted
month = authority.read_clock() + dt.timedelta(days=30)
asked = {
    "scheduled": request(not_before=month, priority=9),
    "blocked": request(dependencies=[Dependency(workload_id="workload_" + "0" * 24)], priority=9),
    "others": request(capability_snapshot={"gpu"}, priority=9),
}
found = {name: authority.admit(one).workload.workload_id for name, one in asked.items()}
authority.admit(request())
(held,) = take(1, lease_ms=86_400_000)
found["held"] = held.workload_id
print(json.dumps({name: Admitted.objects.get(workload_id=one).pk for name, one in found.items()}))
"""


class Growth:
    """The two databases, and what is measured on them."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self.server = server
        self.options = options
        self.begun = time.monotonic()
        self.answer: dict[str, Any] = {"settings": server.settings(), "what": {}, "rates": {}}

    def say(self, text: str) -> None:
        """Show how far it is."""
        print(f"{time.monotonic() - self.begun:6.0f} s  {text}", file=sys.stderr, flush=True)

    def subject(self, name: str) -> Subject:
        """Return this app on a new database of its own."""
        subject = Subject(
            name="ours",
            kind=Ours,
            python=sys.executable,
            server=self.server,
            concurrency=Ours.concurrency,
            patience_s=self.options.patience,
        )
        subject.dsn = self.server.create(f"bench_{name}")
        subject.do("setup")
        return subject

    def fill(self, subject: Subject, wanted: dict[str, int]) -> None:
        """Have so many of each kind stand there."""
        subject.fill(10)
        subject.drain(10, 1)
        command = [sys.executable, "-c", TEMPLATES, subject.dsn]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        keys = json.loads(done.stdout)
        keys["finished"] = "(SELECT min(admitted_id) FROM workloads_workload WHERE finished_at IS NOT NULL)"
        for place, (kind, count) in enumerate(wanted.items(), 1):
            if count:
                self.say(f"{count:,} {kind}")
                copy_finished(subject.dsn, copies(str(keys[kind]), place * 100_000_000), count)

    def drained(self, subject: Subject, count: int) -> None:
        """Have so many more wait, which a worker is to do."""
        with psycopg.connect(subject.dsn) as connection:
            last = connection.execute("SELECT coalesce(max(id), 0) FROM workloads_admitted").fetchone()[0]
        subject.pending = (
            f"SELECT EXISTS (SELECT 1 FROM workloads_workload WHERE admitted_id > {last} AND finished_at IS NULL)"
        )
        subject.fill(count)

    def verbs(self, subject: Subject, *what: str) -> dict[str, Any]:
        """Measure the single verbs there."""
        self.server.rest()
        command = [
            sys.executable,
            HERE / "verbs.py",
            "--dsn",
            subject.dsn,
            "--turns",
            self.options.turns,
            "--what",
            *what,
        ]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def rates(self) -> None:
        """Each rate where little stands, and where much does."""
        kept: dict[str, dict[str, list[float]]] = {}
        little, much = self.subject("little"), self.subject("much")
        options = self.options
        wanted = {
            "finished": options.finished,
            "scheduled": options.scheduled,
            "blocked": options.blocked,
            "others": options.others,
            "held": 0,
        }
        self.fill(little, dict.fromkeys(wanted, 0))
        self.fill(much, wanted)
        self.answer["what"] = wanted
        if options.pause:
            self.say("filled; Enter begins to measure")
            input()
        for turn in range(options.repeats):
            # In turn, and each first as often as the other, since a machine gets slower and faster.
            both = (("little", little), ("much", much))
            for name, subject in both if turn % 2 == 0 else both[::-1]:
                self.say(f"{name}: turn {turn + 1} of {options.repeats}")
                found: dict[str, float] = {}
                for size, each in self.verbs(subject, "lives").items():
                    found |= {f"{verb}, {size}": rate for verb, rate in each.items()}
                for workers, title in ((1, "drain, 1 worker"), (2, "drain, 2 workers")):
                    self.drained(subject, options.drain * workers)
                    found[title] = subject.drain(options.drain * workers, workers)["rate"]
                found["a pass over 1,000 due, decisions"] = self.verbs(subject, "pass")["pass"]["decisions"]
                for measure, rate in found.items():
                    kept.setdefault(measure, {}).setdefault(name, []).append(rate)
        self.answer["rates"] = kept
        self.answer["heartbeats"] = self.verbs(much, "heartbeats")["heartbeats"]

    def passes(self) -> None:
        """A pass over 1,000 due, among few and among many live claims; and one that only moves 1,000 instants on."""
        kept: dict[str, list[dict[str, float]]] = {"few": [], "many": [], "moves": []}
        few, many = self.subject("few"), self.subject("many")
        for subject, live in ((few, 1_000), (many, self.options.live)):
            self.fill(subject, {"held": live})
        for turn in range(self.options.repeats):
            for name, subject in (("few", few), ("many", many)):
                self.say(f"a pass among {name} live claims, turn {turn + 1} of {self.options.repeats}")
                kept[name].append(self.verbs(subject, "pass")["pass"])
            kept["moves"].append(self.verbs(many, "moves")["moves"])
        self.answer["pass"] = kept | {"live": self.options.live}

    def memory(self) -> None:
        """How large a worker gets that does many, and the program that verifies them."""
        subject = self.subject("memory")
        kept: dict[str, Any] = {"worker": [], "verify": []}
        done = 0
        for count in (self.options.memory // 10, self.options.memory - self.options.memory // 10):
            self.say(f"memory: {count:,} more")
            subject.fill(count)
            kept["worker"].append({"jobs": count, "mib": self.watched(subject, count)})
            done += count
            self.say(f"memory: workloads_verify of {done:,}")
            environment = {**os.environ, "DATABASE_URL": subject.dsn, "SECRET_KEY": "of no use to anybody"}
            process = subprocess.Popen(
                [sys.executable, ROOT / "manage.py", "workloads_verify"], env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            kept["verify"].append(
                {"workloads": done, "mib": round(usage.ru_maxrss / 1024, 1), "exit": process.returncode}
            )
        self.answer["memory"] = kept

    def watched(self, subject: Subject, count: int) -> list[float]:
        """Drain, and return the worker's resident memory in MiB at each tenth."""
        found: list[float] = []
        with tempfile.TemporaryDirectory() as folder, open_worker(subject, Path(folder)) as process:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
            while process.poll() is None and len(found) < 10:
                if read_counts(Path(folder)) >= count * (len(found) + 1) / 10:
                    with suppress(OSError, StopIteration):
                        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                        line = next(line for line in lines if line.startswith("VmRSS"))
                        found.append(round(int(line.split()[1]) / 1024, 1))
                time.sleep(0.02)  # how often the memory is looked at
        return found


def markdown(answer: dict[str, Any]) -> str:
    """Return what was found as Markdown."""
    parts = []
    if answer["rates"]:
        rows = []
        for measure, kept in answer["rates"].items():
            little, much = statistics.median(kept["little"]), statistics.median(kept["much"])
            spread = f"{number(min(kept['much']))} to {number(max(kept['much']))}"
            ratios = [more / less for less, more in zip(kept["little"], kept["much"], strict=True)]
            told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            rows.append([measure, number(little), number(much), spread, told])
        what = ", ".join(f"{count:,} {kind}" for kind, count in answer["what"].items() if count)
        parts.append(
            f"Workloads a second, where nearly nothing stands and where much does ({what}):\n\n"
            + table(["", "little", "much", "range", "ratio, turn by turn"], rows)
        )
        beats = answer["heartbeats"]
        parts.append(
            f"Heartbeats, 500 in one call: {beats['updates']:,} updates, {beats['hot']:,} of them HOT "
            f"({100 * beats['share']:.1f} %), {number(beats['rate'])} a second."
        )
    if "pass" in answer:
        kept = answer["pass"]
        rows = [
            [f"{live:,} live claims", number(1000 * statistics.median(one["seconds"] for one in kept[name])),
             number(statistics.median(one["decisions"] for one in kept[name]))]
            for name, live in (("few", 1_000), ("many", kept["live"]))
        ]  # fmt: skip
        moved = statistics.median(one["seconds"] for one in kept["moves"])
        parts.append(
            "A pass that decides on 1,000 due:\n\n"
            + table(["among", "ms", "decisions a second"], rows)
            + "\n\nA heartbeat leaves `due_at` where it was, and the first pass that finds it over moves it on. A pass "
            f"over 1,000 such takes {number(1000 * moved)} ms."
        )
    if "memory" in answer:
        rows = [[f"a worker that does {one['jobs']:,}", number(one["mib"][0]), number(one["mib"][-1])]
                for one in answer["memory"]["worker"] if one["mib"]]  # fmt: skip
        rows += [[f"`workloads_verify` of {one['workloads']:,}", "", number(one["mib"])]
                 for one in answer["memory"]["verify"]]  # fmt: skip
        parts.append(
            "Resident memory in MiB (for `workloads_verify` its largest):\n\n"
            + table(["", "after a tenth", "at the end"], rows)
        )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="*", default=["rates", "passes", "memory"], metavar="WHAT",
                        help="rates, passes, memory (all)")  # fmt: skip
    parser.add_argument("--dsn", help="a PostgreSQL on which nothing else writes, as a superuser (one of its own)")
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--scheduled", type=int, default=1_000_000, help="for later, at a higher priority")
    parser.add_argument("--blocked", type=int, default=100_000)
    parser.add_argument("--others", type=int, default=100_000, help="that need what the worker has not")
    parser.add_argument("--live", type=int, default=1_000_000, help="claims among which a pass finds 1,000 due")
    parser.add_argument("--memory", type=int, default=100_000, help="workloads that the watched worker does")
    parser.add_argument("--drain", type=int, default=5_000)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--pause", action="store_true", help="with rates: wait for Enter when all of it stands there")
    parser.add_argument("--patience", type=float, default=3_600, metavar="SECONDS")
    parser.add_argument("--json", default=str(ROOT / ".cache" / "bench" / "growth.json"), metavar="FILE")
    parser.add_argument("--document", metavar="FILE", help="a Markdown file whose tables are made anew")
    options = parser.parse_args()
    for what in options.what:
        if what not in ("rates", "passes", "memory"):
            parser.error(f"{what} is none of rates, passes, memory")
    try:
        with started(options.dsn) as server:
            growth = Growth(server, options)
            for what in options.what:
                getattr(growth, what)()
            for name in ("little", "much", "few", "many", "memory"):
                server.drop(f"bench_{name}")
    except NoServer as error:
        sys.exit(str(error))
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(growth.answer, indent=1) + "\n")
    print(markdown(growth.answer))
    if options.document:
        put(Path(options.document), "growth", markdown(growth.answer))


if __name__ == "__main__":
    main()
