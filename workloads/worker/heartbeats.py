"""The heartbeats: one thread, on its own connection, keeps the leases of everything that runs."""

from __future__ import annotations

import logging
import threading
from typing import Final

from workloads.contract import Claim
from workloads.worker.lease import Lease, monotonic
from workloads.worker.news import pause_s
from workloads.worker.port import Port, Unanswered

logger = logging.getLogger("workloads.worker")

BEATS_A_LEASE: Final = 3
ITEMS_A_CALL: Final = 200


class Heartbeats(threading.Thread):
    """Extends each lease at least three times in its length, and passes on what the authority answers.

    A handler that keeps the processor busy does not stop it (but for code that never lets go of the interpreter), and
    no wait on the database lasts longer than the time between two beats.
    """

    def __init__(self, *, lease_ms: int, port: Port) -> None:
        super().__init__(name="workloads-heartbeats", daemon=True)
        self._lease_ms = lease_ms
        self._port = port
        self._guard = threading.Lock()
        self._leases: set[Lease] = set()
        self._told_lost: set[Lease] = set()
        self._wake = threading.Event()
        self._pace_ms = lease_ms // BEATS_A_LEASE
        self._is_over = False
        self._has_failed = False

    def add(self, lease: Lease) -> None:
        """Keep this lease from now on. The thread is woken if it would come too late for it."""
        with self._guard:
            self._leases.add(lease)
            is_sooner = lease.beat_every_ms < self._pace_ms
        if is_sooner:
            self._wake.set()

    def remove(self, lease: Lease) -> None:
        """Keep this lease no longer."""
        with self._guard:
            self._leases.discard(lease)
            self._told_lost.discard(lease)

    def end(self) -> None:
        """Let the thread end after the beat that it is at."""
        self._is_over = True
        self._wake.set()

    def run(self) -> None:
        """Beat until `end`."""
        failures = 0
        last = monotonic()
        self._port.begin_thread(bound_s=self._every_s())
        while True:
            rest = self._every_s() if failures == 0 else min(self._every_s(), pause_s(failures))
            due = last + rest
            # A new lease may ask for earlier beats than those before it, so the rest is reckoned anew when woken.
            while not self._is_over and (left := due - monotonic()) > 0:
                if self._wake.wait(left):
                    self._wake.clear()
                    due = min(due, last + self._every_s())
            if self._is_over:
                break
            last = monotonic()
            failures = 0 if self._beat_or_say() else failures + 1
        self._port.end_thread()

    def _beat_or_say(self) -> bool:
        """Beat, and never raise: without this thread all leases would run out. A lasting fault is told once."""
        try:
            return self._beat()
        except Exception:
            if not self._has_failed:
                logger.exception("The heartbeats fail. Trying again.")
            self._has_failed = True
            self._port.reset()
            return False

    def _every_s(self) -> float:
        with self._guard:
            usual = self._lease_ms // BEATS_A_LEASE
            self._pace_ms = max(1, min([usual, *(lease.beat_every_ms for lease in self._leases)]))
            return self._pace_ms / 1000

    def _beat(self) -> bool:
        """Extend the leases that are not lost; return whether the authority answered."""
        with self._guard:
            leases = list(self._leases)
        held = []
        for lease in leases:
            reason = lease.lost
            if reason is None:
                held.append(lease)
            else:
                self._tell(lease, reason)
        if not held:
            # Nothing is asked for them any longer, so no answer will tell that the database is back.
            self._port.rest()
        for start in range(0, len(held), ITEMS_A_CALL):
            part = held[start : start + ITEMS_A_CALL]
            # Twice: a connection that the server has ended while it was idle is no loss of the database.
            if not self._extend(part, is_repeat=False) and not self._extend(part, is_repeat=True):
                return False
        return True

    def _extend(self, leases: list[Lease], *, is_repeat: bool) -> bool:
        asked_at = monotonic()
        items = [(lease.fence, self._lease_ms) for lease in leases]
        try:
            answers = self._port.beat(items, bound_s=self._every_s() / 2, is_repeat=is_repeat)
        except Unanswered:
            return False
        if self._has_failed:
            self._has_failed = False
            logger.warning("The heartbeats are answered again.")
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Claim):
                lease.renew(answer, asked_at=asked_at)
            elif answer is not None:
                lease.lose(str(answer))
                self._tell(lease, str(answer))
        return True

    def _tell(self, lease: Lease, reason: str) -> None:
        if not lease.is_running:
            # The answer to its report says what became of it. By now it may have been recorded.
            return
        with self._guard:
            if lease in self._told_lost or lease not in self._leases:
                return
            self._told_lost.add(lease)
        logger.warning("%s: attempt %s is lost: %s", lease.claim.workload_id, lease.claim.attempt_number, reason)


def beat_every_ms(lease_ms: int, heartbeat_ms: int | None) -> int:
    """Return how often work must beat: three times in a lease, and in its heartbeat deadline if it has one."""
    shortest = lease_ms if heartbeat_ms is None else min(lease_ms, heartbeat_ms)
    return max(1, shortest // BEATS_A_LEASE)
