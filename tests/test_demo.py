"""`make demo`: the whole story on a small folder, and its handler by itself."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from project import handlers
from project.demo import files
from workloads.worker import WorkloadFailure

ROOT = Path(__file__).resolve().parent.parent


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
    assert re.search(r"user: operator  password: \S{8}", done.stdout)
    assert re.search(r"Killed (worker-[12]) \(SIGKILL", done.stdout)
    assert re.search(r"the pass recovered the work; [1-9]\d* MiB are saved", done.stdout)
    assert re.search(r"worker-[12] goes on from there", done.stdout)
    assert re.search(r"succeeded +4 ", done.stdout)
    assert re.search(r"retried +[1-5] ", done.stdout)
    assert re.search(r"dead-lettered +1 ", done.stdout)
    assert float(re.findall(r"seconds +([\d.]+)", done.stdout)[0]) < 60
    assert children_of(scratch) == []
    assert sorted(path.name for path in scratch.iterdir() if "sqlite3" not in path.name) == []


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [("Killed", signal.SIGTERM, 143), ("Killed", signal.SIGINT, 130), ("The admin stays", signal.SIGINT, 0)],
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
            demo.kill()
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
