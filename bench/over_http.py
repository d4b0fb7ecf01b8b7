"""How many workloads live and end over HTTP: the site under gunicorn, two processes on loopback, and its clients.

Run `python bench/over_http.py --help`. A life is a claim that starts it, with its context, and a completion: two
requests, the work having been admitted before; in another measure its admission is a third. Each client is a process
with one connection, which it keeps; so that it takes little from the cores that it shares with the server, it speaks
plain sockets. Processor time is read where the system keeps it: of the server's processes, of the database's sessions
that serve them, of the clients.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from report import number, table
from server import NoServer, Server, processes, spent, started

ROOT = Path(__file__).resolve().parents[1]
LOOPBACK = "127.0.0.1"
NAME = "bench_http"
TENANT, APPLICATION, DEFINITION = "bench", "bench", "bench.http"
ADMITTED_AT_ONCE = 1_000
PATIENCE_S = 60.0
WARM_S = 1.5
LEASE_MS = 600_000


class Failed(Exception):
    """The server or a client did not do what was asked of it; the message says what."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One way to live: with an admission of its own or admitted before, and how many lives a request is for.

    `most` is the rate, in lives a second, that work is admitted for beforehand.
    """

    title: str
    admits: bool
    size: int
    most: int


MEASURES = {
    "two": Measure(title="claim and complete, one each", admits=False, size=1, most=1_500),
    "three": Measure(title="admit, claim and complete, one each", admits=True, size=1, most=0),
    "batch-two": Measure(title="claim and complete, 50 each", admits=False, size=50, most=9_000),
    "batch-three": Measure(title="admit, claim and complete, 50 each", admits=True, size=50, most=0),
}


class Line:
    """One connection that is kept, and just enough of HTTP for this server's answers."""

    def __init__(self, port: int, token: str) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    def post(self, path: str, body: Any) -> Any:
        """Return the answer to a body; what is no success is Failed."""
        sent = json.dumps(body, separators=(",", ":"))
        self._socket.sendall(
            f"POST /api/v1/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(sent)}\r\n\r\n{sent}".encode()
        )
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._more()
        head = got[:end].lower()
        at = head.index(b"\r\ncontent-length:") + len(b"\r\ncontent-length:")
        length = int(head[at:].partition(b"\r\n")[0])
        parts, size = [got[end + 4 :]], len(got) - end - 4
        while size < length:
            parts.append(self._more())
            size += len(parts[-1])
        answer = b"".join(parts)
        if got[9:10] != b"2":
            raise Failed(f"{path}: {got[:end].decode()} {answer.decode(errors='replace')[:300]}")
        return json.loads(answer)

    def _more(self) -> bytes:
        got = self._socket.recv(262_144)
        if not got:
            raise Failed("the server has hung up")
        return got


def live(line: Line, who: str, measure: Measure, *, by_request_id: bool) -> Iterator[tuple[int, list[float]]]:
    """Live lives without end, so many at once; yield how many ended, and how many seconds each request took."""
    turn = 0
    size = measure.size
    while True:
        turn += 1
        took: list[float] = []

        def ask(path: str, body: Any, took: list[float] = took) -> Any:
            began = time.monotonic()
            answer = line.post(path, body)
            took.append(time.monotonic() - began)
            return answer

        if measure.admits:
            fields = [
                {
                    "tenant_id": TENANT,
                    "application_id": APPLICATION,
                    "idempotency_key": f"{who}.{turn}.{number}",
                    "definition_id": DEFINITION,
                    "input": {"number": number},
                }
                for number in range(size)
            ]
            if size == 1:
                ask("workloads/", fields[0])
            else:
                outcomes = ask("workloads/batch/", {"workloads": fields})["outcomes"]
                if any(outcome["status"] != 201 for outcome in outcomes):
                    raise Failed(f"an admission was refused: {outcomes}")
        asked: dict[str, Any] = {
            "worker_id": who,
            "capabilities": [],
            "lease_ms": LEASE_MS,
            "limit": size,
            "start": True,
        }
        if by_request_id:
            asked["request_id"] = f"{who}.{turn}"
        claims = ask("claims/", asked)["claims"]
        if not claims:
            raise Failed("there was nothing left to claim")
        reports = [
            {
                "claim_id": claim["claim_id"],
                "worker_id": claim["worker_id"],
                "fencing_token": claim["fencing_token"],
                "result_id": claim["attempt_id"],
                "output": {"done": True},
            }
            for claim in claims
        ]
        if size == 1:
            ask(f"workloads/{claims[0]['workload_id']}/complete/", reports[0])
        else:
            for claim, report in zip(claims, reports, strict=True):
                report["workload_id"] = claim["workload_id"]
            outcomes = ask("completions/", {"items": reports})["outcomes"]
            if any(outcome["status"] != 200 for outcome in outcomes):
                raise Failed(f"a completion was refused: {outcomes}")
        yield len(claims), took


def load(options: argparse.Namespace) -> None:
    """Be one client: live until standard input says the end, then print each turn's end, lives and seconds."""
    told = json.loads(sys.stdin.readline())
    line = Line(told["port"], told["token"])
    print("ready", flush=True)
    until = float(sys.stdin.readline())
    turns = []
    for count, took in live(line, told["who"], MEASURES[options.load], by_request_id=told["by_request_id"]):
        turns.append((time.monotonic(), count, took))
        if turns[-1][0] > until:
            break
    print(json.dumps(turns))


class Site:
    """The site on a database of its own, with one user who may admit and work."""

    def __init__(self, server: Server) -> None:
        self.address = server.create(NAME)
        os.environ["DATABASE_URL"] = self.address
        os.environ.setdefault("DATABASE_PREPARES", "1")
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        os.environ["LOG_LEVEL"] = "WARNING"
        os.environ.setdefault("SECRET_KEY", "of no use to anybody, since this site is gone after the run")
        sys.path.insert(0, str(ROOT))
        import django

        django.setup()
        from django.contrib.auth import get_user_model
        from django.core.management import call_command
        from knox.models import AuthToken

        from workloads.models import Access

        call_command("migrate", verbosity=0)
        user = get_user_model().objects.create(username="bench")
        Access.objects.create(
            user=user, tenant_id=TENANT, application_id=APPLICATION, is_requester=True, is_worker=True, worker_prefix=""
        )
        self.token = str(AuthToken.objects.create(user)[1])
        self._admitted = 0

    def admit(self, count: int) -> None:
        """Let so many workloads be ready."""
        from django.db import connection

        from workloads import authority
        from workloads.contract import AdmissionRequest

        for begin in range(0, count, ADMITTED_AT_ONCE):
            requests = [
                AdmissionRequest(
                    tenant_id=TENANT,
                    application_id=APPLICATION,
                    requested_by="bench",
                    idempotency_key=f"before {self._admitted + number}",
                    definition_id=DEFINITION,
                    input={"number": number},
                )
                for number in range(begin, min(begin + ADMITTED_AT_ONCE, count))
            ]
            authority.admit_many(requests)
        self._admitted += count
        # As autovacuum does within a minute: a table without statistics is read from end to end.
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")

    @contextmanager
    def served(self, server_processes: int, threads: int) -> Iterator[tuple[int, int]]:
        """Serve it by gunicorn; yield the server's process id and its port."""
        with socket.create_server((LOOPBACK, 0), backlog=512) as listening, tempfile.TemporaryFile() as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "--config", str(ROOT / "project" / "gunicorn.conf.py")],
                cwd=ROOT,
                env={
                    **os.environ,
                    "WEB_PROCESSES": str(server_processes),
                    "WEB_THREADS": str(threads),
                    "WEB_BIND": f"fd://{listening.fileno()}",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
            )
            try:
                await_rest(child.pid, server_processes)
                yield child.pid, listening.getsockname()[1]
            except Failed as error:
                log.seek(0)
                raise Failed(f"{error}\n{log.read().decode(errors='replace')[-2_000:]}") from error
            finally:
                child.terminate()
                child.wait(PATIENCE_S)


def await_rest(pid: int, count: int) -> None:
    """Return once so many child processes are there and have nothing to do: until then, one would take every caller."""
    until = time.monotonic() + PATIENCE_S
    before: dict[str, float] = {}
    while time.monotonic() < until:
        now = {fields[0]: spent(fields, with_ended=False) for fields in processes() if int(fields[3]) == pid}
        if len(now) == count and now == before and min(now.values()) > 0.2:
            return
        before = now
        time.sleep(0.3)  # between two looks at what was done since
    raise Failed("the server does not come to rest")


class Spent:
    """Seconds of processor time, of each kind of process that has a part in it."""

    def __init__(self, pids: dict[str, set[int]]) -> None:
        self._pids = pids

    def read(self) -> dict[str, float]:
        """Return what each kind has spent so far."""
        found = dict.fromkeys(self._pids, 0.0)
        for fields in processes():
            for kind, pids in self._pids.items():
                if int(fields[0]) in pids:
                    found[kind] += spent(fields, with_ended=False)
        return found


def measure(server: Server, site: Site, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Load the site in one way for a while; return the rate, the latencies and the processor time."""
    kind = MEASURES[name]
    if not kind.admits:
        site.admit(int(kind.most * (WARM_S + options.seconds)))
    clients = options.batch_clients if kind.size > 1 else options.clients
    server.rest()
    with site.served(options.processes, options.threads) as (pid, port), ExitStack() as ended:
        loads = []
        for index in range(clients):
            child = subprocess.Popen(
                [sys.executable, __file__, "--load", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            ended.callback(child.kill)
            loads.append(child)
            told = {"port": port, "token": site.token, "who": f"{name}-{index}-{time.time_ns()}"}
            tell(child, json.dumps(told | {"by_request_id": not options.without_request_ids}))
        if any(child.stdout is None or child.stdout.readline().strip() != "ready" for child in loads):
            raise Failed("a client did not begin")
        begin = time.monotonic() + WARM_S
        until = begin + options.seconds
        for child in loads:
            tell(child, str(until + 0.2))
        time.sleep(max(0.0, begin - time.monotonic()))  # all clients begin at one instant
        serving = [int(fields[0]) for fields in processes() if int(fields[3]) == pid]
        cpu = Spent(
            {
                "server": set(serving),
                **{f"server {number}": {one} for number, one in enumerate(serving, 1)},
                "database": sessions(server),
                "clients": {child.pid for child in loads},
            }
        )
        before, began = cpu.read(), time.monotonic()
        time.sleep(max(0.0, until - time.monotonic()))  # the time that is measured
        after, ended_at = cpu.read(), time.monotonic()
        turns = []
        for child in loads:
            said, _ = child.communicate(timeout=PATIENCE_S)
            if child.returncode:
                raise Failed("a client failed")
            turns += [turn for turn in json.loads(said) if began < turn[0] <= ended_at]
    lives = sum(count for _, count, _ in turns)
    requests = sum(len(took) for _, _, took in turns)
    names = ("admit", "claim", "complete") if kind.admits else ("claim", "complete")
    seconds = {name: sorted(took[place] for _, _, took in turns) for place, name in enumerate(names)}
    seconds["life"] = sorted(sum(took) for _, _, took in turns)
    return {
        "lives_s": lives / (ended_at - began),
        "requests_s": requests / (ended_at - began),
        "ms": {
            step: {"p50": at(values, 0.5) * 1000, "p99": at(values, 0.99) * 1000} for step, values in seconds.items()
        },
        "cpu_ms_a_request": {who: (after[who] - before[who]) / requests * 1000 for who in after},
        "cpu_ms_a_life": {who: (after[who] - before[who]) / lives * 1000 for who in after},
        "clients": clients,
    }


def tell(child: subprocess.Popen[str], words: str) -> None:
    """Say one line to a client."""
    assert child.stdin is not None
    child.stdin.write(words + "\n")
    child.stdin.flush()


def sessions(server: Server) -> set[int]:
    """Return the processes of the database's sessions that serve the site."""
    found = server.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'", [NAME]
    )
    return {int(pid) for (pid,) in found}


def at(values: list[float], share: float) -> float:
    """Return the value below which this share of sorted values lies."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the turn with the middle rate."""
    middle = statistics.median_low(one["lives_s"] for one in found)
    return next(one for one in found if one["lives_s"] == middle)


def tables(answer: dict[str, Any]) -> str:
    """Return the answer as a Markdown table: of each measure the turn in the middle."""
    rows = []
    for name, found in answer["measures"].items():
        one = median(found)
        cpu = one["cpu_ms_a_request"]
        rows.append(
            [
                MEASURES[name].title,
                number(one["lives_s"]),
                f"{min(f['lives_s'] for f in found):,.0f} to {max(f['lives_s'] for f in found):,.0f}",
                *(
                    f"{one['ms'][step]['p50']:.1f} / {one['ms'][step]['p99']:.1f}" if step in one["ms"] else ""
                    for step in ("admit", "claim", "complete", "life")
                ),
                *(f"{cpu[who]:.2f}" for who in ("server", "database", "clients")),
            ]
        )
    steps = [f"{step}, p50 / p99 ms" for step in ("admit", "claim", "complete", "life")]
    return table(["life", "lives/s", "range", *steps, "server, CPU ms a request", "database", "clients"], rows)


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", help="a PostgreSQL to measure on, as a superuser (one of its own)")
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=list(MEASURES), help="what is measured (all)"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each is measured (8)")
    parser.add_argument("--repeats", type=int, default=3, help="how often (3)")
    parser.add_argument("--processes", type=int, default=2, help="how many processes serve (2)")
    parser.add_argument("--threads", type=int, default=4, help="how many threads each has (4)")
    parser.add_argument("--clients", type=int, default=8, help="how many clients ask one by one (8)")
    parser.add_argument("--batch-clients", type=int, default=4, help="how many clients ask in batches (4)")
    parser.add_argument("--without-request-ids", action="store_true", help="claim without a request_id")
    parser.add_argument("--json", metavar="FILE", help="where the figures go besides (nowhere)")
    parser.add_argument("--load", choices=MEASURES, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    if options.load:
        load(options)
        return
    answer: dict[str, Any] = {
        "seconds": options.seconds,
        "processes": options.processes,
        "threads": options.threads,
        "by_request_id": not options.without_request_ids,
        "measures": {name: [] for name in options.measures},
    }
    try:
        with started(options.dsn) as server:
            parts = urlsplit(server.dsn)
            print(f"on {parts.hostname}:{parts.port}", file=sys.stderr)
            site = Site(server)
            try:
                for turn in range(options.repeats):
                    for name in options.measures:
                        print(f"{name}, turn {turn + 1} of {options.repeats}", file=sys.stderr)
                        answer["measures"][name].append(measure(server, site, name, options))
            finally:
                from django.db import connections

                connections.close_all()
                server.drop(NAME)
    except (NoServer, Failed) as error:
        sys.exit(str(error))
    if options.json:
        Path(options.json).write_text(json.dumps(answer, indent=1) + "\n")
    print(tables(answer))


if __name__ == "__main__":
    main()
