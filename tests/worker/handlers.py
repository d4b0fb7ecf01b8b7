"""Handlers for worker processes that tests start."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from workloads.worker import Attempt, handler

LONGEST_S = 60.0


@handler("test.echo")
def echo(attempt: Attempt) -> Any:
    return attempt.input


@handler("test.able", revisions=["1"], capabilities={"files:read"})
def able(attempt: Attempt) -> str:
    return "read"


@handler("test.until")
def until(attempt: Attempt) -> str:
    """Run until the file that the input names exists, stopping when told to."""
    ends_at = time.monotonic() + LONGEST_S
    while not Path(attempt.input).exists() and time.monotonic() < ends_at:
        attempt.check()
        time.sleep(0.02)
    return "done"


@handler("test.deaf")
def deaf(attempt: Attempt) -> str:
    """Run for a minute, whatever it is told."""
    ends_at = time.monotonic() + LONGEST_S
    while time.monotonic() < ends_at:
        time.sleep(0.05)
    return "late"


@handler("test.suicide")
def suicide(attempt: Attempt) -> None:
    """Save where it is, then kill the whole process."""
    attempt.checkpoint({"attempt": attempt.attempt_number})
    os.kill(os.getpid(), signal.SIGKILL)
