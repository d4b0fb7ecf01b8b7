"""A worker as a program: its options, its signals, and how the process ends that it has all to itself."""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from workloads.lifecycle import arguments
from workloads.worker.loop import Summary, Worker
from workloads.worker.registry import Registry

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEAVE_S = 2.0
COLLECTED_AT = 20_000

logger = logging.getLogger("workloads.worker")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every worker has."""
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="handlers at once (1)")
    parser.add_argument(
        "--definition",
        action="append",
        metavar="ID[@REVISION]",
        help="run only this; may be repeated (all that have handlers)",
    )
    parser.add_argument(
        "--capability",
        action="append",
        metavar="NAME",
        help="offer only this; may be repeated (all that the handlers need)",
    )
    parser.add_argument("--lease-ms", type=int, default=60_000, metavar="MS", help="length of a lease (60000)")
    parser.add_argument("--tenant", metavar="ID", help="run only this tenant's work")
    parser.add_argument("--application", metavar="ID", help="run only this application's work")
    parser.add_argument("--poll-ms", type=int, default=1_000, metavar="MS", help="pause after an empty claim (1000)")
    parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help="wait after SIGTERM (30)")
    parser.add_argument("--drain", action="store_true", help="end when nothing is claimable and nothing runs")
    parser.add_argument("--worker-id", metavar="ID", help="must be unique (host, process and chance)")
    parser.add_argument(
        "--handlers",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module, which registers handlers; may be repeated (in a site, each app's `handlers` besides)",
    )


def options_of(given: dict[str, Any], handlers: Registry, *, most_lease_ms: int) -> dict[str, Any]:
    """Return what to make a Worker of. A ValueError or WorkloadError names the option that is wrong."""
    if not handlers.selectors():
        raise ValueError(
            "No handler is registered: --handlers names modules that do, and in a site each app's `handlers` is one."
        )
    for name in ("tenant", "application", "worker_id"):
        arguments.optional_identifier(given[name], f"--{name.replace('_', '-')}")
    arguments.integer(given["lease_ms"], "--lease-ms", 3, most_lease_ms)
    if not math.isfinite(given["grace"]):
        raise ValueError("--grace must be a number of seconds.")
    return {
        "handlers": handlers,
        "concurrency": given["concurrency"],
        "definitions": None if given["definition"] is None else handlers.narrow(given["definition"]),
        "capabilities": given["capability"],
        "lease_ms": given["lease_ms"],
        "tenant_id": given["tenant"],
        "application_id": given["application"],
        "poll_ms": given["poll_ms"],
        "grace_ms": int(given["grace"] * 1000),
        "drain": given["drain"],
        "worker_id": given["worker_id"],
    }


def run(worker: Worker) -> tuple[Summary, list[str]]:
    """Run a worker until it is stopped, by SIGTERM or SIGINT too, or drained.

    Return its summary, and the names of threads and child processes that its handlers have left behind.
    """
    if not logger.hasHandlers():
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    before = set(threading.enumerate())
    with _stopping(worker), _settled():
        summary = worker.run()
    left = _left(before)
    if left:
        logger.warning("Not waited for, though handlers have left them behind: %s", ", ".join(left))
    return summary, left


def leave(code: int) -> NoReturn:
    """End the process at once: what handlers have left running goes on, and nothing in this process can end it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _left(before: Collection[threading.Thread]) -> list[str]:
    """Name the threads and child processes begun since `before` for which the process would wait, or that it would cut.

    They have a moment to end by themselves.
    """
    until = time.monotonic() + LEAVE_S
    begun = [t for t in threading.enumerate() if t not in before and not t.name.startswith("workloads-")]
    for thread in begun:
        thread.join(timeout=max(0.0, until - time.monotonic()))
    # Without importing it: who has not, has no such children.
    children: list[Any] = getattr(sys.modules.get("multiprocessing"), "active_children", list)()
    return [t.name for t in begun if t.is_alive()] + [child.name for child in children]


@contextmanager
def _settled() -> Iterator[None]:
    """Let the garbage collector leave alone what was loaded before, and look at what is new in larger steps.

    Work makes many values, and hardly any in cycles: looking for those took a sixth of the worker's processor time.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(COLLECTED_AT, thresholds[0]) if thresholds[0] else 0, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def _stopping(worker: Worker) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the worker, for as long as the block runs; a handler's child process is not it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in SIGNALS}
    is_over = False
    masks = threading.local()

    def hold() -> None:
        # What comes before the child has let go of our signals' meaning waits until it has.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        if not is_over:
            for number, previous in before.items():
                signal.signal(number, previous)
        let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=in_child)
    try:
        yield
    finally:
        is_over = True
        for number, previous in before.items():
            # One more SIGTERM must not turn an orderly ending into a death by signal, to the process's last breath.
            is_ending = worker.is_stopping and number is signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_ending else previous)
