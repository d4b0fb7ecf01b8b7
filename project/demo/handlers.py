"""The handlers of the demonstration's scenes. They do real things: look at a folder, ask a port, read text."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from project.demo.files import find
from workloads.contract import Effect
from workloads.worker import Attempt, WorkloadFailure, handler

LOOK_S: Final = 0.2
RAREST_CHECKPOINT_S: Final = 60.0
MOST_CHECKPOINTS: Final = 50


@handler("folder.inventory", capabilities={"files:read"})
def inventory(attempt: Attempt) -> dict[str, Any]:
    """Return how many files of each kind lie in a folder, and how large they are; the table says it too."""
    return take_inventory(Path(attempt.input["folder"]), Path(attempt.input["table"]), attempt.checkpoint)


def take_inventory(folder: Path, table: Path, save: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Write the table; return what it says together. Saves how far it is after each folder within."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    saved = 0
    before = ""
    for path in find(folder):
        within = path.relative_to(folder).parts[0]
        if before not in ("", within) and saved < MOST_CHECKPOINTS:
            save({"done": printable(before), "files": counts.total()})
            saved += 1
        before = within
        kind = printable(path.suffix) or "none"
        # It may have been removed since.
        with contextlib.suppress(OSError):
            sizes[kind] += path.stat().st_size
            counts[kind] += 1
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("kind", "files", "bytes"), *((kind, counts[kind], sizes[kind]) for kind in counts)]
        )
    return {"files": counts.total(), "bytes": sizes.total(), "kinds": dict(counts.most_common(10))}


def printable(name: str) -> str:
    """Return a name as text, with marks for what is none."""
    return os.fsencode(name).decode(errors="replace")


@handler("folder.watch", capabilities={"files:read"})
def watch(attempt: Attempt) -> dict[str, Any]:
    """Return how often a folder has changed within `for_s` seconds; saves what it saw, ever more rarely."""
    folder = Path(attempt.input["folder"])
    until = time.monotonic() + attempt.input["for_s"]
    seen, changes = os.stat(folder).st_mtime_ns, 0
    wait_s, saved_at = 1.0, time.monotonic()
    while (now := time.monotonic()) < until:
        attempt.check()
        found = os.stat(folder).st_mtime_ns
        changes += found != seen
        seen = found
        if now - saved_at >= wait_s:
            attempt.checkpoint({"changes": changes, "seconds_left": round(until - now)})
            wait_s, saved_at = min(2 * wait_s, RAREST_CHECKPOINT_S), now
        time.sleep(LOOK_S)  # a folder does not tell when it changes
    return {"changes": changes}


@handler("feed.fetch")
def fetch(attempt: Attempt) -> dict[str, Any]:
    """Return what a port of this machine says first; one that nobody listens on is a ConnectionError."""
    with socket.create_connection(("127.0.0.1", attempt.input["port"]), timeout=5) as connection:
        return {"said": connection.recv(100).decode()}


@handler("feed.parse")
def parse(attempt: Attempt) -> dict[str, Any]:
    """Return how many entries JSON text has. Text that is none is an exception, as a handler's fault is."""
    return {"entries": len(json.loads(attempt.input["text"]))}


@handler("notice.publish", capabilities={"files:read"})
def publish(attempt: Attempt) -> dict[str, Any]:
    """Return what the notice says. One that is not there yet is a failure that no retry mends."""
    path = Path(attempt.input["path"])
    if not path.exists():
        raise WorkloadFailure("notice_missing", f"{path.name} is not there.", effect=Effect.NONE)
    return {"notice": path.read_text()}
