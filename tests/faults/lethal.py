"""Handlers for worker processes that a signal befalls at a given point, and how it is made to befall them there.

The module arms itself from the environment, so that a worker process which is told to import it meets its point.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from tests.faults.racers import skew
from workloads import authority
from workloads.worker import Attempt, handler, heartbeats, news

VARIABLE = "WORKLOADS_TEST_POINT"
SKEW = "WORKLOADS_TEST_SKEW_HOURS"
LONGEST_S = 60.0

_armed = threading.local()


def note(path: str, line: str) -> None:
    """Write down at once what has been acknowledged; a process that is killed has written what it wrote."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


# The points.


def arm(point: dict[str, Any]) -> None:
    """Let a signal befall this process at a point.

    `verb` of the authority, or `method` of the worker (`module:Class.name`): `when` is before it, after it, or at the
    first COMMIT after it began, before that is sent; on the call of number `nth`. Or `moment`, one of those that a life
    with `moments` (a file) has written down: the thread whose name begins with `thread` begins a statement of the
    worker's own. `log` names the file in which an answer is noted before the signal comes. `beats` is how many
    heartbeats there are in a lease, `pause` how many seconds there are at most between two repetitions of a call; with
    these alone, no signal comes.
    """
    news.LONGEST_PAUSE_S = point.get("pause", news.LONGEST_PAUSE_S)  # type: ignore[misc]
    if (beats := point.get("beats")) is not None:
        heartbeats.BEATS_A_LEASE = beats  # type: ignore[misc]
    number = getattr(signal, point.get("signal", "SIGKILL"))

    def strike() -> None:
        # To this very thread, which takes it before it goes on; one for the process may be another's to take.
        signal.pthread_kill(threading.get_ident(), number)

    if "moment" in point:
        _at_moments(point["thread"], lambda moment: strike() if moment == point["moment"] else None)
        return
    if "moments" in point:
        _at_moments(point["thread"], lambda moment: note(point["moments"], moment))
        return
    if "when" not in point:
        return
    owner, name = place(point)
    setattr(owner, name, _wrapped(getattr(owner, name), name, point, strike))
    if point["when"] == "commit":
        commit = BaseDatabaseWrapper._commit
        has_struck = False

        def committing(self: Any) -> None:
            nonlocal has_struck
            # Once: a process that was halted, and not killed, goes on.
            if getattr(_armed, "is_due", False) and not has_struck:
                has_struck = True
                strike()
            commit(self)

        BaseDatabaseWrapper._commit = committing  # type: ignore[method-assign]


def place(point: dict[str, Any]) -> tuple[Any, str]:
    """Return what has the verb or the method that a point names, and its name; an error if nothing has."""
    if "verb" in point:
        owner, name = authority, point["verb"]
    else:
        module, _, path = point["method"].partition(":")
        kind, _, name = path.partition(".")
        owner = getattr(importlib.import_module(f"workloads.worker.{module}"), kind)
    assert callable(getattr(owner, name))
    return owner, name


def _wrapped(real: Callable[..., Any], name: str, point: dict[str, Any], strike: Callable[[], None]) -> Any:
    called = answered = 0
    nth = point.get("nth", 1)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal called, answered
        called += 1
        if called == nth and point["when"] == "before":
            strike()
        _armed.is_due = called >= nth and point["when"] == "commit"
        answer = real(*args, **kwargs)
        # A call that got no answer is repeated.
        answered += 1
        if answered == nth and point["when"] == "after":
            note(point["log"], f"answered {name}")
            strike()
        return answer

    return wrapper


@functools.cache
def statements() -> dict[str, set[int]]:
    """Return, by file of the worker's own, the lines that begin a statement."""
    return {
        str(path): {node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)}
        for path in Path(heartbeats.__file__).parent.glob("*.py")
    }


def _at_moments(thread: str, reached: Callable[[str], None]) -> None:
    """Tell of each moment, when it is first reached: `file:line after N`, N of this thread's commits.

    A line is one that begins a statement. What a process leaves when it is killed is what it has committed: at the
    same line after the same commits, it leaves the same.
    """
    begins = statements()
    own = threading.local()
    seen: set[str] = set()
    commit = BaseDatabaseWrapper._commit

    def committing(self: Any) -> None:
        commit(self)
        own.commits = getattr(own, "commits", 0) + 1

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in begins or not threading.current_thread().name.startswith(thread):
            return None
        return at_line

    def at_line(frame: Any, event: str, _: Any) -> Any:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line in begins[path]:
            moment = f"{Path(path).name}:{line} after {getattr(own, 'commits', 0)}"
            if moment not in seen:
                seen.add(moment)
                reached(moment)
        return at_line

    BaseDatabaseWrapper._commit = committing  # type: ignore[method-assign]
    sys.settrace(trace)
    threading.settrace(trace)


# What the workers run. The input is the file in which a body notes how far it came.


@handler("lethal.step")
def step(attempt: Attempt) -> str:
    """Save where it is, and end."""
    note(attempt.input, "begun")
    attempt.checkpoint({"attempt": attempt.attempt_number}, key="k")
    note(attempt.input, f"saved {attempt.attempt_number}")
    return "done"


@handler("lethal.fails")
def fails(attempt: Attempt) -> str:
    """Fail once."""
    if attempt.attempt_number == 1:
        raise TimeoutError("slow")
    return "done"


@handler("lethal.stops")
def stops(attempt: Attempt) -> str:
    """Have its worker stopped, and give the work back."""
    os.kill(os.getpid(), signal.SIGTERM)
    return waits(attempt)


@handler("lethal.cancelled")
def cancelled(attempt: Attempt) -> str:
    """Have itself cancelled, and find out."""
    authority.cancel(attempt.workload_id, actor="op")
    attempt.checkpoint(1)
    return "not cancelled"


@handler("lethal.waits")
def waits(attempt: Attempt) -> str:
    """Run until it is told to stop, and note that it was."""
    until = time.monotonic() + LONGEST_S
    note(f"{attempt.input}.begun", "begun")
    try:
        while time.monotonic() < until:
            attempt.check()
            time.sleep(0.01)
    except BaseException as stopped:
        note(attempt.input, type(stopped).__name__)
        raise
    return "not stopped"


@handler("lethal.deaf")
def deaf(attempt: Attempt) -> str:
    """Run until a file exists, whatever it is told."""
    until = time.monotonic() + LONGEST_S
    note(f"{attempt.input}.begun", "begun")
    while time.monotonic() < until and not Path(attempt.input).exists():
        time.sleep(0.02)
    return "late"


@handler("lethal.echo")
def echo(attempt: Attempt) -> Any:
    return attempt.input


@handler("lethal.clock")
def clock(attempt: Attempt) -> Any:
    """Outlive a lease, save, fail once, and say what the clock of this process says."""
    until = time.monotonic() + attempt.input
    while time.monotonic() < until:
        attempt.check()
        time.sleep(0.01)
    attempt.checkpoint({"attempt": attempt.attempt_number}, key="k")
    if attempt.attempt_number == 1:
        raise TimeoutError("slow")
    return time.time()


def _begin_and_wait(has_begun: Any) -> None:
    has_begun.set()
    time.sleep(LONGEST_S)


@handler("lethal.pool")
def pool(attempt: Attempt) -> Any:
    """Begin a child process, end it by SIGTERM, and say what ended it."""
    context = multiprocessing.get_context("fork")
    has_begun = context.Event()
    child = context.Process(target=_begin_and_wait, args=(has_begun,))
    child.start()
    # A signal that comes before the interpreter has ended its fork is lost to any program.
    has_begun.wait(LONGEST_S)
    child.terminate()
    child.join(10)
    code = child.exitcode
    child.kill()
    return code


@handler("lethal.leaves")
def leaves(attempt: Attempt) -> str:
    """Leave behind a thread, one of a pool, or a child process, for which a process waits at its end."""
    if attempt.input == "thread":
        threading.Thread(target=time.sleep, args=(LONGEST_S,), name="left thread", daemon=False).start()
    elif attempt.input == "pool":
        ThreadPoolExecutor(thread_name_prefix="left pool").submit(time.sleep, LONGEST_S)
    else:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LONGEST_S,), name="left child")
        child.start()
        return str(child.pid)
    return "done"


if point := os.environ.get(VARIABLE):
    arm(json.loads(point))
if hours := os.environ.get(SKEW):
    skew(float(hours))
