"""How fast work is enqueued and drained, by this app and by what people would pick instead, in one run.

Run `python bench/rates.py --help`, or `make bench`. It starts a PostgreSQL of its own unless one is given, installs
each peer in an environment of its own, measures all of them in turn, as often as asked, and writes a JSON file, a chart
and the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import chart
import limits
import peers
import report
from environments import packages_of, python_of
from measure import Subject, copy_finished
from server import NoServer, Server, started

ROOT = Path(__file__).resolve().parents[1]
MEASURES = ("one", "bulk", "drain1", "drain2")
LEAST = 200


class Run:
    """All measurements of one run, and what is said about them while they are taken."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self.server = server
        self.options = options
        self.begun = time.monotonic()
        self.total = self.done = 0
        self.answer: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": "python bench/rates.py " + " ".join(options.said),
            "machine": machine(),
            "settings": server.settings(),
            "repeats": options.repeats,
            "finished": options.finished,
            "peers": {},
        }

    def say(self, text: str) -> None:
        """Show how far it is."""
        share = f"{self.done}/{self.total}" if self.total else ""
        line = f"{time.monotonic() - self.begun:6.0f} s  {share:>7}  {text}"
        print(
            f"\r\033[K{line}" if sys.stderr.isatty() else line,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )

    def fail(self, name: str, what: str, error: Exception) -> None:
        """Keep why something could not be measured; the run goes on."""
        self.answer["peers"].setdefault(name, {}).setdefault("failures", {})[what] = str(error)
        self.say(f"{name}: {what}: {error}")
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def save(self) -> None:
        """Write down what there is, so that a run that is cut short has not been for nothing."""
        place = Path(self.options.json)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(self.answer, indent=1) + "\n")

    def measure(self) -> dict[str, Any]:
        """Measure everybody, in turn, and each as often as asked."""
        subjects = [subject for name in self.options.peers if (subject := self.set_up(name))]
        turns = self.options.repeats
        if not self.options.no_limits:
            self.answer["limits"] = []
        self.total = len(subjects) * turns * (len(self.options.measures) + bool(self.options.finished))
        for turn in range(turns):
            if "limits" in self.answer:
                self.say(f"limits: turn {turn + 1} of {turns}")
                self.answer["limits"].append(limits.measure(self.server, self.options.scale))
            for subject in subjects:
                self.turn(subject, turn)
        if self.options.finished:
            for subject in subjects:
                self.with_finished(subject)
        for subject in subjects:
            self.server.drop(f"bench_{subject.name}")
            self.server.drop(f"bench_{subject.name}_empty")
        self.answer["seconds"] = round(time.monotonic() - self.begun)
        self.save()
        return self.answer

    def set_up(self, name: str) -> Subject | None:
        """Install a peer and make its tables."""
        kind = peers.find(name)
        self.say(f"{name}: its environment")
        concurrency = self.options.concurrency.get(name, kind.concurrency)
        found = self.answer["peers"].setdefault(name, {})
        found |= {"title": kind.title, "version": kind.version, "concurrency": concurrency, "choice": kind.choice}
        found |= {"requirements": list(kind.requirements), "measures": {}}
        try:
            python = python_of(name, kind, Path(self.options.environments), self.options.peer_python)
            found["packages"] = packages_of(python)
            subject = Subject(
                name=name,
                kind=kind,
                python=python,
                server=self.server,
                concurrency=concurrency,
                patience_s=self.options.patience,
            )
            subject.dsn = self.server.create(f"bench_{name}_empty")
            subject.do("setup")
        except Exception as error:
            self.fail(name, "setup", error)
            return None
        return subject

    def size(self, subject: Subject, measure: str) -> int | None:
        """Return how many jobs a measurement takes."""
        jobs = {"one": subject.kind.jobs.one, "bulk": subject.kind.jobs.bulk}.get(measure, subject.kind.jobs.drain)
        return (
            None if jobs is None else max(LEAST, int(jobs * self.options.scale * (1.5 if measure == "drain2" else 1)))
        )

    def turn(self, subject: Subject, turn: int) -> None:
        """Take every measurement of one peer once, each in a database without a past."""
        for measure in self.options.measures:
            self.say(f"{subject.name}: {measure}, turn {turn + 1} of {self.options.repeats}")
            self.done += 1
            count = self.size(subject, measure)
            failures = self.answer["peers"][subject.name].get("failures", {})
            if count is None or measure in failures:
                continue
            try:
                subject.dsn = self.server.create(f"bench_{subject.name}", template=f"bench_{subject.name}_empty")
                if measure in ("one", "bulk"):
                    figures = subject.enqueue({"one": "enqueue"}.get(measure, measure), count)
                else:
                    subject.fill(count)
                    figures = subject.drain(count, int(measure.removeprefix("drain")))
            except Exception as error:
                # Whatever it is: no peer's failure ends the run.
                self.fail(subject.name, measure, error)
                continue
            self.answer["peers"][subject.name]["measures"].setdefault(measure, []).append(figures)
            self.save()

    def with_finished(self, subject: Subject) -> None:
        """Drain with one worker where many finished jobs stand."""
        by_work = min(subject.kind.finished_by_work, self.options.finished)
        if not subject.kind.finished and not by_work:
            self.done += self.options.repeats
            return
        try:
            subject.dsn = self.server.create(f"bench_{subject.name}", template=f"bench_{subject.name}_empty")
            self.say(f"{subject.name}: {self.options.finished:,} finished jobs")
            subject.fill(by_work or 10)
            subject.drain(by_work or 10, 1)
            if by_work < self.options.finished:
                self.answer["peers"][subject.name]["finished_by_work"] = by_work
            copy_finished(subject.dsn, tuple(subject.kind.finished), self.options.finished)
            for turn in range(self.options.repeats):
                self.done += 1
                count = self.size(subject, "drain1") or LEAST
                self.say(f"{subject.name}: drain1 with finished, turn {turn + 1} of {self.options.repeats}")
                subject.fill(count)
                figures = subject.drain(count, 1)
                self.answer["peers"][subject.name]["measures"].setdefault("finished", []).append(figures)
                self.save()
        except Exception as error:
            self.fail(subject.name, "finished", error)
        finally:
            self.server.drop(f"bench_{subject.name}")


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that says whose machine it is."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def concurrency(text: str) -> tuple[str, int]:
    """Read `peer=number`."""
    name, _, number = text.partition("=")
    if name not in peers.NAMES:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(peers.NAMES)}")
    return name, int(number)


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", help="a PostgreSQL on which nothing else writes, as a superuser (one of its own)")
    parser.add_argument("--peers", nargs="+", choices=peers.NAMES, default=list(peers.NAMES), metavar="NAME",
                        help=f"who is measured: {', '.join(peers.NAMES)} (all)")  # fmt: skip
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=list(MEASURES), help="what is measured (all)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of jobs (1)")
    parser.add_argument(
        "--finished", type=int, default=0, metavar="N", help="drain also where N finished jobs stand (0)"
    )
    parser.add_argument("--concurrency", type=concurrency, action="append", default=[], metavar="NAME=N",
                        help="another concurrency for one of them; may be repeated")  # fmt: skip
    parser.add_argument("--no-limits", action="store_true", help="do not measure by pgbench what is possible at most")
    parser.add_argument("--peer-python", metavar="PATH", help="the Python of the peers' environments (python3.13)")
    parser.add_argument("--environments", default=str(Path(sys.prefix) / "bench"), metavar="FOLDER",
                        help="where those environments are kept (bench in this Python's environment)")  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=300, metavar="SECONDS", help="how long one measurement may take (300)"
    )
    parser.add_argument(
        "--json", default=str(ROOT / ".cache" / "bench" / "rates.json"), metavar="FILE", help="where the figures go"
    )
    parser.add_argument("--chart", metavar="FILE", help="where the chart goes, as SVG (beside the figures)")
    parser.add_argument("--document", metavar="FILE", help="a Markdown file whose tables are made anew (none)")
    parser.add_argument("--from-json", metavar="FILE", help="measure nothing; make chart and tables of these figures")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    options.said = sys.argv[1:]
    options.concurrency = dict(options.concurrency)
    if options.from_json:
        answer = json.loads(Path(options.from_json).read_text())
    else:
        try:
            with started(options.dsn) as server:
                answer = Run(server, options).measure()
        except NoServer as error:
            sys.exit(str(error))
        print(file=sys.stderr)
    picture = Path(options.chart) if options.chart else Path(options.json).with_suffix(".svg")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(chart.draw(answer))
    print(report.rates(answer))
    if options.document:
        report.put(Path(options.document), "rates", report.rates(answer))


if __name__ == "__main__":
    main()
