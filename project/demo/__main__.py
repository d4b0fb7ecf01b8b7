"""The demonstration's story: admit, run, kill, recover, resume, check. `make demo` begins it.

Beside the files, `scenes` has one of everything else that may become of work.

DIR names the folder (this project by default). DEMO_EXIT=1 ends it instead of serving the admin. DEMO_DATABASE names
the SQLite file, which is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import django
from tqdm import tqdm  # type: ignore[import-untyped]

from project.demo import files
from project.demo.children import Broken, Children, exit_on

PROJECT: Final = Path(__file__).resolve().parent.parent.parent
WORKERS: Final = ("worker-1", "worker-2")
SCENES_WORKER: Final = "worker-3"
TENANT: Final = "demo"
APPLICATION: Final = "files"
LEASE_MS: Final = 3_000
LARGE_PAUSE_MS: Final = 120
STALLED_S: Final = 60.0
ITEMS_A_CALL: Final = 200

say: Callable[[str], None] = tqdm.write


def main() -> int:
    """Run the demonstration; return 0 if everything that it shows is right."""
    exit_on([signal.SIGTERM, signal.SIGHUP])
    # A shell's background is told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(os.environ.get("DIR") or PROJECT).resolve()
    if not folder.is_dir():
        say(f"There is no folder {folder}.")
        return 2
    database = Path(os.environ.get("DEMO_DATABASE") or PROJECT / "demo.sqlite3").resolve()
    ends_early = os.environ.get("DEMO_EXIT", "") not in {"", "0"}
    with _scratch() as scratch:
        environment = {
            "DATABASE_URL": f"sqlite:///{quote(str(database))}",
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "PYTHONUNBUFFERED": "1",
        }
        os.environ.update(environment)
        logs = scratch / "logs"
        logs.mkdir()
        children = Children(PROJECT, logs, environment)
        try:
            url = _show(folder, database, scratch, children)
            if not ends_early:
                _serve(url, children)
        except Broken as broken:
            say(f"\nThe demonstration failed: {broken}\n{children.logs()}")
            return 1
        except KeyboardInterrupt:
            say("\nBroken off.")
            return 128 + signal.SIGINT
        finally:
            children.end()
    return 0


def _serve(url: str, children: Children) -> None:
    """Keep the site, the workers that are left and the pass running until Ctrl-C."""
    try:
        say(f"The site stays at {url} until Ctrl-C.")
        while True:
            children.check()
            time.sleep(1)
    except KeyboardInterrupt:
        say("\nEnded.")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="workloads-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show(folder: Path, database: Path, scratch: Path, children: Children) -> str:
    """Tell the whole story; return the site's address."""
    password, token = _prepare(database)
    begun = time.monotonic()
    large = files.make_large(scratch / "large.bin")
    unreadable = files.make_unreadable(scratch / "unreadable.bin")
    paths = [large, unreadable, *files.find(folder)]
    ids = _admit(paths, large)
    say(f"Admitted {len(ids)} files: those of {folder}, one of {files.LARGE_MIB} MiB, and one that nobody can read.")
    # Its handlers need Django to be set up.
    from project.demo.scenes import DEFINITIONS, Scenes

    scenes = Scenes(folder, scratch, _free_port(0))
    scenes.admit()

    port = _free_port(8000)
    url = f"http://127.0.0.1:{port}/"
    children.start("site", "runserver", "--noreload", f"127.0.0.1:{port}", DEBUG="1")
    options = ("--lease-ms", str(LEASE_MS), "--poll-ms", "200", "--grace", "1", "--concurrency")
    near, far = WORKERS
    children.start(near, "workloads_worker", "--worker-id", near, *options, "4")
    # As it would on another machine: an address, a token, the handlers, and neither Django nor this site's settings.
    children.start(
        far,
        *(f"{url}api", "--worker-id", far, "--handlers", "project.handlers", *options, "4"),
        program=("-m", "workloads.client"),
        WORKLOADS_TOKEN=token,
    )
    chosen = [option for definition in DEFINITIONS for option in ("--definition", definition)]
    given = ("--worker-id", SCENES_WORKER, "--handlers", "project.demo.handlers", *chosen)
    children.start(SCENES_WORKER, "workloads_worker", *given, *options, "2")
    children.start("pass", "workloads_pass", "--interval", "1")
    say(f"{near} works in the site's own environment, {far} over HTTP with a token: {url}api/v1/docs/")
    say(f"The admin: {url}admin/  user: admin, operator or viewer  password: {password}")

    with tqdm(total=2 * len(ids), desc="files", unit=" steps", disable=not sys.stderr.isatty(), leave=False) as bar:
        _watch(bar, len(ids), Casualty(ids[large], children), scenes.look, children)
        counts = _check(bar, ids, unreadable)
    _visit(port)
    seconds = time.monotonic() - begun
    say("")
    changed = f"; {counts['changed']} of them changed meanwhile" if counts["changed"] else ""
    for name, value, note in (
        ("succeeded", str(counts["succeeded"]), f"every checksum is equal to a second computation{changed}"),
        ("retried", str(counts["retried"]), "what the killed worker held, by another attempt"),
        ("dead-lettered", str(counts["dead-lettered"]), "unreadable, as one was made to be"),
        ("scenes", str(len(scenes.rows())), f"one of everything else that may become of work, by {SCENES_WORKER}"),
        ("seconds", f"{seconds:.1f}", ""),
    ):
        say(f"  {name:<15}{value:>8}  {note}".rstrip())
    say("")
    for name, path in _sights(ids[large], scenes.rows()):
        say(f"  {name:<15}{url}{path}")
    say("")
    return url


def _sights(large_id: str, scenes: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is worth looking at, and where."""
    page = "admin/workloads/workload/{}/change/"
    yield "front page", ""
    yield "overview", "admin/workloads/"
    yield "recovered", page.format(large_id)
    yield "in progress", page.format(scenes["running"].workload_id)
    yield "with a result", page.format(scenes["result"].workload_id)
    yield "re-armed", page.format(scenes["published"].workload_id)
    yield "blocked", page.format(scenes["blocked"].workload_id)
    yield "dead letters", "admin/workloads/workload/?state=DEAD_LETTER"


def _prepare(database: Path) -> tuple[str, str]:
    """Make the database anew, with its people and programs; return the staff's password and the far worker's token."""
    for ending in ("", "-wal", "-shm", "-journal"):
        Path(f"{database}{ending}").unlink(missing_ok=True)
    django.setup()
    from django.core.management import call_command

    from project.demo import people

    call_command("migrate", verbosity=0)
    say(f"Migrated {database}.")
    return people.make_staff(), people.make_programs(WORKERS[1])


def _admit(paths: list[Path], large: Path) -> dict[Path, str]:
    """Admit one workload for each file; return their ids."""
    from workloads import authority
    from workloads.contract import AdmissionRequest, RetryPolicy
    from workloads.errors import WorkloadError

    ids: dict[Path, str] = {}
    for start in range(0, len(paths), ITEMS_A_CALL):
        part = paths[start : start + ITEMS_A_CALL]
        requests = [
            AdmissionRequest(
                tenant_id=TENANT,
                application_id=APPLICATION,
                requested_by="demo",
                # A path may be longer than a key.
                idempotency_key=hashlib.sha256(os.fsencode(path)).hexdigest(),
                definition_id="files.checksum",
                input={**files.as_input(path), "pause_ms": LARGE_PAUSE_MS if path == large else 0},
                capability_snapshot={"files:read"},
                priority=10 if path == large else 0,
                retry_policy=RetryPolicy(initial_delay_ms=200),
            )
            for path in part
        ]
        for path, answer in zip(part, authority.admit_many(requests), strict=True):
            if isinstance(answer, WorkloadError):
                raise Broken(f"{path} was refused: {answer}")
            ids[path] = answer.workload.workload_id
    return ids


class Casualty:
    """The worker that holds the large file: killed in the middle, and what becomes of its work, as the records say."""

    def __init__(self, workload_id: str, children: Children) -> None:
        self._workload_id = workload_id
        self._children = children
        self._killed: str | None = None
        self._saved_at = 0
        self._told = 0

    def look(self) -> None:
        """Do and say what is next, if its time has come."""
        from workloads.models import Workload

        row = Workload.objects.get(workload_id=self._workload_id)
        if self._killed is None:
            if row.checkpoint_count >= 2 and row.worker_id is not None:
                self._kill(row)
            elif row.state == "SUCCEEDED":
                raise Broken("the large file was done before its worker could be killed")
            return
        attempts = list(row.attempts.order_by("number"))
        if self._told == 0 and attempts[0].status == "WORKER_LOST":
            self._told = 1
            # The checkpoint may be newer than the one that was there when the worker was looked at.
            saved = row.checkpoints.filter(attempt_id=attempts[0].attempt_id).last()
            self._saved_at = 0 if saved is None else saved.state["offset"]
            say(f"Its lease ended, and the pass recovered the work; {self._saved_at / files.MIB:.0f} MiB are saved.")
        if self._told == 1 and len(attempts) > 1:
            self._told = 2
            say(f"{attempts[1].worker_id} goes on from there.")

    def _kill(self, row: Any) -> None:
        pid = self._children.pid(row.worker_id)
        self._children.kill(row.worker_id)
        self._killed = row.worker_id
        say(f"Killed {row.worker_id} (SIGKILL, process {pid}) in the middle of the large file.")

    def verify(self) -> None:
        """Raise Broken unless the records tell that another worker went on from the checkpoint."""
        from workloads.models import Workload

        row = Workload.objects.get(workload_id=self._workload_id)
        attempts = list(row.attempts.order_by("number"))
        statuses = [(attempt.worker_id, attempt.status) for attempt in attempts]
        if self._killed is None or self._told < 2 or statuses[0] != (self._killed, "WORKER_LOST"):
            raise Broken(f"the large file's attempts are {statuses}")
        if attempts[-1].worker_id == self._killed or attempts[-1].status != "SUCCEEDED":
            raise Broken(f"the large file's attempts are {statuses}")
        resumed_at = row.result.output["resumed_at"]
        later = row.checkpoints.filter(attempt_id=attempts[1].attempt_id).first()
        if resumed_at < self._saved_at or not 0 < self._saved_at < row.result.output["bytes"]:
            raise Broken(f"saved at {self._saved_at}, resumed at {resumed_at}")
        if later is not None and later.state["offset"] <= self._saved_at:
            raise Broken(f"saved at {self._saved_at}, but the next checkpoint is at {later.state['offset']}")


def _watch(bar: Any, total: int, casualty: Casualty, look: Callable[[], bool], children: Children) -> None:
    """Show how far the work is until all has come to rest, and the scenes are there; Broken if it gets no further."""
    from django.db.models import Count

    from workloads.lifecycle.states import RESTING
    from workloads.models import Workload

    before: Any = None
    moved_at = shown_at = time.monotonic()
    while True:
        children.check()
        casualty.look()
        scenes_are_there = look()
        counts = dict(_of_files(Workload).order_by().values_list("state").annotate(Count("pk")))
        at_rest = sum(count for state, count in counts.items() if state in RESTING)
        said = ", ".join(f"{state} {count}" for state, count in sorted(counts.items()))
        bar.n = at_rest
        bar.set_postfix_str(said)
        now = time.monotonic()
        if bar.disable and now - shown_at > 5:
            shown_at = now
            say(f"{at_rest} of {total} files: {said}")
        if at_rest == total and scenes_are_there:
            casualty.verify()
            return
        if counts != before:
            before, moved_at = counts, now
        if now - moved_at > STALLED_S and at_rest < total:
            raise Broken(f"nothing has moved for {STALLED_S:.0f} s: {said}")
        time.sleep(0.1)


def _of_files(model: Any) -> Any:
    """Return the workloads that are files, and not scenes."""
    return model.objects.filter(tenant_id=TENANT, application_id=APPLICATION)


def _check(bar: Any, ids: dict[Path, str], unreadable: Path) -> Counter[str]:
    """Hold every record against its file; return the counts. Raise Broken at a wrong or missing checksum."""
    from workloads.models import Result, Workload

    outputs: dict[str, Any] = dict(Result.objects.values_list("record__workload_id", "output"))
    counts = Counter(retried=_of_files(Workload).filter(attempt_count__gt=1).count())
    for path, workload_id in ids.items():
        bar.update()
        output = outputs.get(workload_id)
        if output is None:
            _check_unread(path, workload_id)
            counts["dead-lettered"] += 1
            continue
        counts["succeeded"] += 1
        if found := files.fault(path, output):
            raise Broken(f"{path}: {found}")
        counts["changed"] += files.was_changed(path, output)
    if ids[unreadable] in outputs:
        raise Broken("the unreadable file has a checksum")
    return counts


def _check_unread(path: Path, workload_id: str) -> None:
    from workloads.models import Workload

    row = Workload.objects.get(workload_id=workload_id)
    last = row.attempts.last()
    if row.state != "DEAD_LETTER" or last is None or last.failure_kind != "file_unreadable":
        raise Broken(f"{path} has no checksum: it is in {row.state}, {row.last_failure}")
    with contextlib.suppress(OSError), path.open("rb"):
        raise Broken(f"{path} was said to be unreadable, but it can be read")


def _visit(port: int) -> None:
    """Raise Broken unless the site serves its front page, the admin's login, and their styles."""
    for path in ("/", "/admin/login/", "/static/site/site.css", "/static/workloads/admin.css"):
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except OSError as error:
            raise Broken(f"the site does not answer: {error}") from error
        finally:
            connection.close()
        if status != 200:
            raise Broken(f"the site answers {path} with {status}")


def _free_port(wanted: int) -> int:
    """Return the wanted port, or another if that is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise Broken("there is no free port")


if __name__ == "__main__":
    sys.exit(main())
