"""The place where a test admits its work, and the calls that tests make over and over."""

from __future__ import annotations

import datetime as dt
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from workloads.testing.wire import Answer, Line

LEASE_MS: Final = 60_000
FENCE: Final = ("claim_id", "worker_id", "fencing_token")

# Each call under a fence, with the fields of its own.
FENCED: Final[dict[str, dict[str, Any]]] = {
    "start": {},
    "heartbeat": {"extend_ms": LEASE_MS},
    "context": {},
    "checkpoints": {"state": 1},
    "complete": {"result_id": "r", "output": None},
    "fail": {"kind": "timeout", "error": "e"},
    "release": {},
    "confirm-cancel": {},
}


def unique(name: str = "") -> str:
    """Return a name that nobody has used."""
    return f"{name}{uuid.uuid4().hex}"


def fence(claim: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return the fence of a claim as a body has it, some of it as given here."""
    return {name: claim[name] for name in FENCE} | other


def instant(text: str) -> dt.datetime:
    """Read an instant of the wire: UTC, to the microsecond."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text), text
    return dt.datetime.fromisoformat(text)


def ms_between(earlier: str, later: str) -> float:
    """Return how many milliseconds lie between two instants."""
    return (instant(later) - instant(earlier)) / dt.timedelta(milliseconds=1)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, and return what each returned."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [begun.result() for begun in [threads.submit(call) for call in calls]]


def pass_ms(milliseconds: int) -> None:
    """Let time go by on the server: over the wire there is no other clock to set."""
    time.sleep(milliseconds / 1_000)


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Ask until something holds, at most so long."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.1)  # nothing over the wire tells


@dataclass
class Site:
    """A place on the server. Work of each test has a definition of its own, so that no other's claim takes it."""

    line: Line
    user: str
    tenant: str
    application: str
    prefix: str
    definition: str = field(default_factory=lambda: unique("conformance."))

    def __post_init__(self) -> None:
        self.worker = unique(self.prefix or "w-")

    def admission(self, **fields: Any) -> dict[str, Any]:
        """Return the body of an admission."""
        return {
            "tenant_id": self.tenant,
            "application_id": self.application,
            "idempotency_key": unique(),
            "definition_id": self.definition,
            **fields,
        }

    def admit(self, **fields: Any) -> dict[str, Any]:
        """Admit work, and return its record."""
        record: dict[str, Any] = self.line.post("workloads/", self.admission(**fields)).ok(201)
        return record

    def claiming(self, **fields: Any) -> dict[str, Any]:
        """Return the body of a claim of the next work of this test."""
        return {
            "worker_id": self.worker,
            "capabilities": [],
            "lease_ms": LEASE_MS,
            "tenant_id": self.tenant,
            "application_id": self.application,
            "definitions": [self.definition],
            **fields,
        }

    def claim_next(self, **fields: Any) -> list[dict[str, Any]]:
        """Claim the next work, and return the claims."""
        claims: list[dict[str, Any]] = self.line.post("claims/", self.claiming(**fields)).ok(200)["claims"]
        return claims

    def claim(self, workload_id: str, **fields: Any) -> dict[str, Any]:
        """Claim one workload."""
        body = {"worker_id": self.worker, "capabilities": [], "lease_ms": LEASE_MS, **fields}
        got: dict[str, Any] = self.line.post(f"workloads/{workload_id}/claim/", body).ok(200)
        return got

    def running(self, **fields: Any) -> dict[str, Any]:
        """Admit work, claim and start it, and return the claim."""
        self.admit(**fields)
        (claim,) = self.claim_next(start=True)
        return claim

    def say(self, verb: str, claim: dict[str, Any], **fields: Any) -> Answer:
        """Make a call under the claim's fence; what is given here goes before the fence's own."""
        return self.line.post(f"workloads/{claim['workload_id']}/{verb}/", fence(claim) | fields)

    def complete(self, claim: dict[str, Any], **fields: Any) -> Answer:
        """End the work well."""
        return self.say("complete", claim, **({"result_id": unique("r-"), "output": None} | fields))

    def fail(self, claim: dict[str, Any], **fields: Any) -> Answer:
        """Report a failure."""
        return self.say("fail", claim, **({"kind": "transient_connection", "error": "it broke"} | fields))

    def act(self, verb: str, workload_id: str, **fields: Any) -> Answer:
        """Do what an operator does."""
        return self.line.post(f"workloads/{workload_id}/{verb}/", fields)

    def record(self, workload_id: str) -> dict[str, Any]:
        """Read a record."""
        found: dict[str, Any] = self.line.get(f"workloads/{workload_id}/").ok(200)
        return found

    def history(self, workload_id: str, of: str) -> list[dict[str, Any]]:
        """Read one page of a history."""
        found: list[dict[str, Any]] = self.line.get(f"workloads/{workload_id}/{of}/", page_size=500).ok(200)["results"]
        return found

    def states(self, workload_id: str) -> list[str]:
        """Return the states that the workload went through, whose events run without a gap."""
        events = self.history(workload_id, "events")
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert [event["from_state"] for event in events] == ["", *(event["to_state"] for event in events[:-1])]
        return [event["to_state"] for event in events]
