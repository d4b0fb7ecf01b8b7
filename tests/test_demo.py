"""`make demo`: the whole story on a small folder, and its handler by itself."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from project import handlers
from project.demo import files
from workloads.worker import WorkloadFailure

ROOT = Path(__file__).resolve().parent.parent


SCENES = """
SELECT a.idempotency_key, w.state || ' ' || coalesce(substr(w.last_failure, 1, instr(w.last_failure, ':') - 1), 'None')
FROM workloads_workload w JOIN workloads_admitted a ON a.id = w.admitted_id WHERE a.application_id <> 'files'
"""
KEPT = """
SELECT 'artifacts', count(*) FROM workloads_result WHERE artifacts LIKE '%inventory.csv%'
UNION ALL SELECT 're-arms', count(*) FROM workloads_event
    WHERE actor = 'operator' AND to_state = 'READY' AND evidence LIKE '%reason%'
UNION ALL SELECT 'bulk actions', count(*) FROM workloads_bulkaction WHERE stage = 'done' AND done_count = 3
UNION ALL SELECT 'access', count(*) FROM workloads_access
UNION ALL SELECT 'tokens', count(*) FROM knox_authtoken
UNION ALL SELECT 'staff', count(*) FROM auth_user WHERE is_staff
"""

COMMAND = (sys.executable, "-m", "project.demo")


def environment(folder: Path, scratch: Path, ends: str) -> dict[str, str]:
    return {
        **os.environ,
        "DIR": str(folder),
        "DEMO_EXIT": ends,
        "DEMO_DATABASE": str(scratch / "demo #1.sqlite3"),
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
    }


def run(folder: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    env = environment(folder, scratch, "1")
    return subprocess.run(COMMAND, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def children_of(scratch: Path) -> list[str]:
    """Return the command lines of processes that still use the demonstration's database."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(scratch) in path.read_text(errors="replace"):
                found.append(path.with_name("cmdline").read_text())
        except OSError:
            continue
    return found


def end(demo: subprocess.Popen[str]) -> None:
    """End the demonstration, where a failed test has left it: asked, so that it ends its children too."""
    demo.terminate()
    try:
        demo.wait(timeout=30)
    except subprocess.TimeoutExpired:
        demo.kill()


def test_it_shows_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    (folder / "sub").mkdir(parents=True)
    scratch.mkdir()
    (folder / "empty").touch()
    (folder / "sub" / "ünï cödé <b>.txt").write_text("hello")
    (folder / os.fsdecode(b"not text \xff")).write_text("bytes")
    (folder / ".git").mkdir()
    (folder / ".git" / "left out").touch()
    done = run(folder, scratch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Admitted 5 files" in done.stdout
    assert re.search(r"user: admin, operator or viewer  password: \S{8}", done.stdout)
    assert re.search(r"Killed (worker-[12]) \(SIGKILL", done.stdout)
    assert re.search(r"the pass recovered the work; [1-9]\d* MiB are saved", done.stdout)
    assert re.search(r"worker-[12] goes on from there", done.stdout)
    assert re.search(r"succeeded +4 ", done.stdout)
    assert re.search(r"retried +[1-5] ", done.stdout)
    assert re.search(r"dead-lettered +1 ", done.stdout)
    assert re.search(r"scenes +15 ", done.stdout)
    assert float(re.findall(r"seconds +([\d.]+)", done.stdout)[0]) < 60
    assert children_of(scratch) == []
    assert sorted(path.name for path in scratch.iterdir() if "sqlite3" not in path.name) == []
    with closing(sqlite3.connect(scratch / "demo #1.sqlite3")) as database:
        scenes = dict(database.execute(SCENES))
        kept = dict(database.execute(KEPT))
    # It was in progress until the worker was ended with everything else, and gave it back.
    assert scenes.pop("running") in {"READY None", "CHECKPOINTED None"}
    assert scenes == {
        "result": "SUCCEEDED None",
        "retrying": "READY transient_connection",
        "exhausted-1": "DEAD_LETTER transient_connection",
        "exhausted-2": "DEAD_LETTER transient_connection",
        "exhausted-3": "DEAD_LETTER transient_connection",
        "faulty": "DEAD_LETTER exception",
        "slow": "DEAD_LETTER timeout",
        "published": "SUCCEEDED notice_missing",
        "scheduled": "READY None",
        "blocked": "READY None",
        "cancelled": "CANCELLED None",
        "orphaned": "DEAD_LETTER None",
        "stopped": "TIMED_OUT timeout",
        "unserved": "READY None",
    }
    assert kept == {"artifacts": 1, "re-arms": 4, "bulk actions": 1, "access": 3, "tokens": 3, "staff": 3}


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [("Killed", signal.SIGTERM, 143), ("Killed", signal.SIGINT, 130)],
)
def test_whatever_ends_it_ends_its_children(tmp_path: Path, line: str, number: signal.Signals, code: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "file").write_text("hello")
    env = environment(tmp_path, scratch, "0")
    with subprocess.Popen(COMMAND, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            assert any(said.startswith(line) for said in demo.stdout)
            assert len(children_of(scratch)) >= 3
            demo.send_signal(number)
            assert demo.wait(timeout=30) == code
        finally:
            end(demo)
    assert children_of(scratch) == []
    assert [path for path in scratch.iterdir() if path.is_dir()] == []


def signed_in(url: str, name: str, password: str) -> httpx.Client:
    """Return a client that this person is signed in with."""
    client = httpx.Client(base_url=url, follow_redirects=True, timeout=30)
    client.get("admin/login/")
    form = {"username": name, "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
    answer = client.post("admin/login/", data={**form, "next": "/admin/workloads/"})
    assert answer.url.path == "/admin/workloads/", name
    return client


def test_what_it_leaves_is_a_site_that_shows_everything_to_each_of_its_people(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "file").write_text("hello")
    env = environment(tmp_path, scratch, "0")
    with subprocess.Popen(COMMAND, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            said = []
            for line in demo.stdout:
                said.append(line)
                if line.startswith("The site stays"):
                    break
            text = "".join(said)
            url = re.search(r"The site stays at (\S+) until Ctrl-C", text)[1]
            password = re.search(r"password: (\S+)", text)[1]
            addresses = dict(re.findall(r"^  ([a-z -]+?) +(http\S+)$", text, re.MULTILINE))
            assert set(addresses) == {
                *("front page", "overview", "recovered", "in progress", "with a result", "re-armed", "blocked"),
                "dead letters",
            }
            for name in ("admin", "operator", "viewer"):
                with closing(signed_in(url, name, password)) as client:
                    for what, address in addresses.items():
                        answer = client.get(address)
                        assert (answer.status_code, answer.url) == (200, httpx.URL(address)), (name, what)
            with closing(signed_in(url, "operator", password)) as client:
                assert "CHECKPOINTED" in re.sub("<wbr>", "", client.get(addresses["in progress"]).text)
                assert "The notice has been put in its place." in client.get(addresses["re-armed"]).text
                assert "dependencies_unmet" in client.get(addresses["blocked"]).text
                assert "WORKER_LOST" in re.sub("<wbr>", "", client.get(addresses["recovered"]).text)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(timeout=30) == 0
        finally:
            end(demo)
    assert children_of(scratch) == []
    assert [path for path in scratch.iterdir() if path.is_dir()] == []


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing", tmp_path)
    assert done.returncode == 2
    assert "There is no folder" in done.stdout


class Attempt(SimpleNamespace):
    """What the handler uses of an attempt."""

    def __init__(self, path: Path, **more: Any) -> None:
        super().__init__(input=files.as_input(path), last_checkpoint=None, saved=[], **more)

    def check(self) -> None:
        pass

    def checkpoint(self, state: dict[str, Any]) -> None:
        self.saved.append({**state, "digests": list(state["digests"])})


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(handlers, "CHECKPOINT_S", 0)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(3 * handlers.MIB + 5))
    return path


def test_a_checksum_is_the_same_however_often_it_was_gone_on_with(large: Path) -> None:
    first = Attempt(large)
    whole = handlers.checksum(first)
    blocks = [large.read_bytes()[at : at + handlers.MIB] for at in range(0, 4 * handlers.MIB, handlers.MIB)]
    digests = b"".join(hashlib.sha256(block).digest() for block in blocks)
    assert whole["checksum"] == hashlib.sha256(digests).hexdigest()
    assert (whole["bytes"], whole["resumed_at"]) == (3 * handlers.MIB + 5, 0)
    assert files.fault(large, whole) is None
    for state in first.saved[:3]:
        later = Attempt(large)
        later.last_checkpoint = SimpleNamespace(state=state)
        again = handlers.checksum(later)
        assert again == {**whole, "resumed_at": state["offset"]}
    later.last_checkpoint = SimpleNamespace(state=first.saved[3])
    assert handlers.checksum(later) == whole


def test_a_file_that_changed_is_begun_anew(large: Path) -> None:
    first = Attempt(large)
    handlers.checksum(first)
    large.write_bytes(b"other")
    later = Attempt(large)
    later.last_checkpoint = SimpleNamespace(state=first.saved[0])
    output = handlers.checksum(later)
    assert (output["resumed_at"], output["bytes"]) == (0, 5)
    assert files.fault(large, output) is None


def test_a_wrong_checksum_is_a_fault(large: Path) -> None:
    output = handlers.checksum(Attempt(large))
    assert "the record says" in str(files.fault(large, {**output, "checksum": "0" * 64}))
    large.write_bytes(b"other")
    assert files.was_changed(large, output)
    assert files.fault(large, {**output, "checksum": "0" * 64}) is None


def test_what_can_not_be_read_is_not_retried(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "missing", files.make_unreadable(tmp_path / "link"), tmp_path, pipe):
        with pytest.raises(WorkloadFailure) as caught:
            handlers.checksum(Attempt(path))
        assert caught.value.kind == "file_unreadable"
