"""A second connection that holds a transaction open while a test goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections, transaction

import workloads
from workloads.authority import clock
from workloads.models import SeenWorker, Workload

ROOT = Path(workloads.__file__).parent


class Undone(Exception):
    """Raised to roll a block back."""


@contextmanager
def other_connection(work: Callable[[], Any], *, seconds: float = 0.5, commits: bool = True) -> Iterator[Any]:
    """Do `work` in a transaction on another connection, which is held open for a while as the block runs."""
    done, ended = threading.Event(), threading.Event()
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            with transaction.atomic():
                box["answer"] = work()
                done.set()
                time.sleep(seconds)
                box["released_at"] = clock.read(connections["default"])
                if not commits:
                    raise Undone
        except Undone:
            pass
        except BaseException as error:
            box["error"] = error
        finally:
            done.set()
            ended.set()
            connections["default"].close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert done.wait(20)
        yield box
    finally:
        thread.join(20)
    assert "error" not in box, box["error"]


def lock(workload_id: str) -> Callable[[], Any]:
    def work() -> Any:
        return Workload.objects.select_for_update().get(workload_id=workload_id)

    return work


@contextmanager
def without_registry() -> Iterator[None]:
    """Let the table of seen workers not be there while the block runs."""
    table, away = SeenWorker._meta.db_table, "workloads_elsewhere"
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {away}")
    try:
        yield
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {away} RENAME TO {table}")
