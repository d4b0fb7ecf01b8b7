"""What is left of workers that died: put right by a pass and another worker, and judged."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from tests.worker.tools import attempts, drain, eventually, get, state
from workloads import authority
from workloads.authority import clock
from workloads.models import Workload
from workloads.worker.registry import Registry

LEASE_MS = 60_000
STEP, FAILS, STOPS, CANCELLED = "lethal.step", "lethal.fails", "lethal.stops", "lethal.cancelled"
VERBS = ("claim_next", "context", "heartbeat_many", "complete")


def noted(log: Path) -> list[str]:
    return log.read_text().split("\n")[:-1] if log.exists() else []


class Aftermath:
    """What workers left that died, and how it is put right: by a pass after their leases, and another worker."""

    def __init__(self, logs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = logs
        self.later = clock.read(connection) + timedelta(milliseconds=LEASE_MS + 1_000)
        self.monkeypatch = monkeypatch
        self.states = {workload_id: state(workload_id) for workload_id in logs}
        assert list(authority.verify()) == []

    def is_held(self, workload_id: str) -> bool:
        return self.states[workload_id] in {"CLAIMED", "RUNNING", "CHECKPOINTED", "CANCELLATION_REQUESTED"}

    def put_right(self) -> None:
        """Let the clock pass the leases; let a pass and another worker do their part."""
        assert authority.recover_expired() == []
        held = sorted(filter(self.is_held, self.states))
        recovered: list[str] = []

        def are_recovered() -> bool:
            recovered.extend(authority.run_pass(now=self.later).recovered)
            return len(recovered) >= len(held)

        # The server may need a moment to see that the connection of the dead is gone.
        eventually(are_recovered)
        assert sorted(recovered) == held
        assert authority.run_pass(now=self.later).recovered == []
        with self.monkeypatch.context() as patched:
            for verb in VERBS:
                patched.setattr(authority, verb, functools.partial(getattr(authority, verb), now=self.later))
            eventually(self._are_ended)
        assert list(authority.verify(now=self.later)) == []

    def _are_ended(self) -> bool:
        handlers = Registry()
        for definition in (STEP, FAILS, STOPS, CANCELLED):
            handlers.add(lambda attempt: "by the other", definition)
        drain(handlers, worker_id="other", lease_ms=LEASE_MS)
        return {state(workload_id) for workload_id in self.states} <= {"SUCCEEDED", "CANCELLED"}

    def check(self) -> None:
        """Assert that nothing acknowledged is missing, and that each work has one ending."""
        for workload_id, log in self.logs.items():
            self._check(get(workload_id), noted(log))

    def _check(self, workload: Workload, told: list[str]) -> None:
        statuses = [row.status for row in attempts(workload.workload_id)]
        endings = [e.to_state for e in workload.events.all() if e.to_state in {"SUCCEEDED", "CANCELLED"}]
        assert endings == [workload.state]
        assert statuses.count("SUCCEEDED") == (workload.state == "SUCCEEDED")
        assert workload.fencing_token == len(statuses)
        saved = [c.state for c in workload.checkpoints.all()]
        assert all({"attempt": int(line.split()[1])} in saved for line in told if line.startswith("saved"))
        # A body ran only where a claim was committed, and each ran once.
        assert told.count("begun") <= 1
        if "answered complete" in told:
            assert workload.result.output == "done"
        if "answered checkpoint" in told:
            assert {"attempt": 1} in saved or workload.state == "CANCELLED"
