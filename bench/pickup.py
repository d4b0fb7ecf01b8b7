"""How long work waits for an idle worker: from its admission to its handler's first line, with and without NOTIFY.

Run `python bench/pickup.py --help`. One worker, in a process of its own, does nothing but wait; another process admits
one workload after another, with a pause of random length between them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from report import number, put, table
from server import NoServer, Server, started
from verbs import site

ROOT = Path(__file__).resolve().parents[1]
READY_S = 2.0
LAST_S = 30.0


def work(dsn: str, has_notifications: bool, poll_ms: int) -> None:
    """Run the worker, which prints the number of each workload and the instant at which its handler began."""
    prepare(dsn, has_notifications)
    from life import DEFINITION

    from workloads.worker import Worker
    from workloads.worker.registry import Registry

    def handle(attempt: Any) -> None:
        # In one piece, since handlers run side by side.
        sys.stdout.write(f"{attempt.input['number']} {time.monotonic()}\n")
        sys.stdout.flush()

    handlers = Registry()
    handlers.add(handle, DEFINITION)
    worker = Worker(concurrency=4, poll_ms=poll_ms, handlers=handlers, grace_ms=1_000)
    import signal

    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    print("ready", flush=True)
    worker.run()


def prepare(dsn: str, has_notifications: bool) -> None:
    """Set the project up, with notifications or without."""
    site(dsn)
    from django.conf import settings

    settings.WORKLOADS = {**settings.WORKLOADS, "NOTIFICATIONS": has_notifications}


def admit(dsn: str, has_notifications: bool, count: int) -> None:
    """Admit one after another; print the number of each, and the instants just before and after the call."""
    prepare(dsn, has_notifications)
    from life import request

    from workloads import authority

    for _ in range(count + 1):
        time.sleep(random.uniform(0.05, 0.15))  # the worker is idle when the next comes
        asked = request()
        before = time.monotonic()
        authority.admit(asked)
        print(asked.input["number"], before, time.monotonic(), flush=True)


def measure(server: Server, options: argparse.Namespace, has_notifications: bool) -> dict[str, float]:
    """Return the waits of one worker's work, in milliseconds."""
    dsn = server.create("bench_pickup")
    environment = {**os.environ, "DATABASE_URL": dsn, "SECRET_KEY": "of no use to anybody"}
    subprocess.run(
        [sys.executable, ROOT / "manage.py", "migrate", "--verbosity", "0"], env=environment, check=True, cwd=ROOT
    )
    command = [sys.executable, str(Path(__file__)), "--dsn", dsn, "--poll-ms", str(options.poll_ms)]
    command += ["--count", str(options.count)] + ([] if has_notifications else ["--silent"])
    worker = subprocess.Popen([*command, "--part", "work"], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout
        worker.stdout.readline()
        time.sleep(READY_S)  # nothing tells when the worker has begun to listen
        done = subprocess.run([*command, "--part", "admit"], capture_output=True, text=True, check=True)
        # The first is for whatever both do only once.
        asked = [line.split() for line in done.stdout.splitlines()][1:]
        begun: dict[str, float] = {}
        until = time.monotonic() + LAST_S
        while len(begun) < len(asked) + 1 and time.monotonic() < until:
            key, at = worker.stdout.readline().split()
            begun[key] = float(at)
    finally:
        worker.terminate()
        worker.wait(LAST_S)
        server.drop("bench_pickup")
    calls = sorted(1000 * (begun[key] - float(before)) for key, before, _ in asked)
    commits = sorted(1000 * max(0.0, begun[key] - float(after)) for key, _, after in asked)
    return {
        "count": len(asked),
        "p50_ms": round(statistics.median(calls), 2),
        "p99_ms": round(calls[int(len(calls) * 0.99)], 2),
        "most_ms": round(calls[-1], 2),
        "after_commit_p50_ms": round(statistics.median(commits), 2),
    }


def markdown(answer: dict[str, Any]) -> str:
    """Return what was found as Markdown."""
    rows = [
        [title, number(found["p50_ms"]), number(found["p99_ms"]), number(found["most_ms"])]
        for title, found in answer["waits"].items()
    ]
    return (
        f"Milliseconds from the begin of `admit` to the begin of the handler, an idle worker, "
        f"{answer['waits']['with notifications']['count']} workloads:\n\n" + table(["", "p50", "p99", "most"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", help="a PostgreSQL, as a superuser (one of its own)")
    parser.add_argument("--count", type=int, default=300, help="workloads (300)")
    parser.add_argument("--poll-ms", type=int, default=1_000, help="the worker's pause after an empty claim (1000)")
    parser.add_argument("--json", default=str(ROOT / ".cache" / "bench" / "pickup.json"), metavar="FILE")
    parser.add_argument("--document", metavar="FILE", help="a Markdown file whose tables are made anew")
    parser.add_argument("--part", choices=("work", "admit"), help=argparse.SUPPRESS)
    parser.add_argument("--silent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "work":
        return work(options.dsn, not options.silent, options.poll_ms)
    if options.part == "admit":
        return admit(options.dsn, not options.silent, options.count)
    waits = {}
    try:
        with started(options.dsn) as server:
            for title, has_notifications in (("with notifications", True), ("without, polling", False)):
                print(f"{title}: {options.count} workloads", file=sys.stderr)
                waits[title] = measure(server, options, has_notifications)
            answer = {"settings": server.settings(), "poll_ms": options.poll_ms, "waits": waits}
    except NoServer as error:
        sys.exit(str(error))
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(answer, indent=1) + "\n")
    print(markdown(answer))
    if options.document:
        put(Path(options.document), "pickup", markdown(answer))
    return None


if __name__ == "__main__":
    main()
