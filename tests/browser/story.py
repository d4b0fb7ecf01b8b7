"""The life of one workload, lived through the authority's verbs at instants of one's own choice."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS


class Story:
    """The life of one workload, told from some minutes ago on."""

    def __init__(self, begun: dt.datetime, key: str, **changes: Any) -> None:
        from workloads import authority
        from workloads.contract import AdmissionRequest

        self._authority = authority
        self.at = begun
        asked = {
            "tenant_id": "acme",
            "application_id": "shop",
            "requested_by": "shop-web",
            "idempotency_key": key,
            "definition_id": "mail.send",
            **changes,
        }
        self.able = asked.get("capability_snapshot", ())
        self.workload_id: str = authority.admit(AdmissionRequest(**asked), now=begun).workload.workload_id
        self.fence: Any = None

    def then(self, *, ms: int = 0, s: float = 0, minutes: float = 0) -> Story:
        """Let time go by."""
        self.at += dt.timedelta(milliseconds=ms, seconds=s, minutes=minutes)
        return self

    def claim(self, worker_id: str = "mail-1", *, lease_ms: int = MINUTE_MS, start: bool = True) -> Story:
        """Have a worker take it, and begin unless told otherwise."""
        given = self._authority.claim(
            self.workload_id, worker_id=worker_id, capabilities=self.able, lease_ms=lease_ms, now=self.at
        )
        self.fence = given.fence
        if start:
            self.then(ms=40)
            self._authority.start(self.fence, now=self.at)
        return self

    def save(self, state: Any, key: str | None = None) -> Story:
        """Have it save its progress."""
        self._authority.checkpoint(self.fence, state, key=key, now=self.at)
        return self

    def beat(self, lease_ms: int = MINUTE_MS) -> Story:
        """Have its worker extend the lease."""
        self._authority.heartbeat(self.fence, extend_ms=lease_ms, now=self.at)
        return self

    def fail(self, kind: str, error: str, **how: Any) -> Story:
        """Have it report a failure."""
        self._authority.fail(self.fence, kind=kind, error=error, now=self.at, **how)
        return self

    def succeed(self, output: Any = None, artifacts: Any = ()) -> Story:
        """Have it report its result."""
        name = f"{self.workload_id}#{self.fence.fencing_token}"
        self._authority.complete(self.fence, result_id=name, output=output, artifacts=artifacts, now=self.at)
        return self

    def lose(self) -> Story:
        """Let its worker be gone, and the pass notice."""
        self._authority.recover_expired(now=self.at)
        return self

    def overrun(self) -> Story:
        """Let its time be up, and the pass notice."""
        self._authority.enforce_deadlines(now=self.at)
        return self

    def cancel(self, actor: str, reason: str, **how: Any) -> Story:
        """Have a person cancel it."""
        self._authority.cancel(self.workload_id, actor=actor, reason=reason, now=self.at, **how)
        return self

    def time_out(self, actor: str, reason: str) -> Story:
        """Have a person end its time."""
        self._authority.time_out(self.workload_id, actor=actor, reason=reason, now=self.at)
        return self

    def rearm(self, actor: str, reason: str) -> Story:
        """Have a person re-arm it."""
        self._authority.rearm(self.workload_id, actor=actor, reason=reason, now=self.at)
        return self
