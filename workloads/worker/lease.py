"""What this computer knows of one claim: until when its lease surely holds, and who may end the attempt.

The lease is measured from before the question was sent, by a clock that nobody sets, so that what is left here is
never more than what the authority would say.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from typing import Final

from workloads.contract import Claim, Fence

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Return seconds on a clock that only goes forward, and that goes on while the computer sleeps, where it can."""
    return time.clock_gettime(_CLOCK)


class Stopped(BaseException):
    """The body must stop and cause no more effects.

    Not an Exception: a body that goes on after `except Exception` must not go on after this.
    """


class LeaseLost(Stopped):
    """The work is no longer ours: the lease is over, or the authority has said so."""


class Released(LeaseLost):
    """The worker is being stopped, and gives the work back."""


class Cancelled(Stopped):
    """Somebody has asked for the work to be cancelled."""


class Phase(enum.Enum):
    """Who speaks next for an attempt."""

    RUNNING = enum.auto()
    REPORTING = enum.auto()
    GIVEN_BACK = enum.auto()


class Lease:
    """One claim as this worker holds it. Safe to ask and to tell from any thread."""

    def __init__(self, claim: Claim, *, asked_at: float, beat_every_ms: int) -> None:
        self.claim = claim
        self.beat_every_ms = beat_every_ms
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._ends_at = asked_at + claim.lease_left_ms / 1000
        self._lost: str | None = None
        self._lost_at: float | None = None
        self._cancelled = claim.cancellation_requested
        self._must_stop = False
        self._phase = Phase.RUNNING
        self._is_left_behind = False

    @property
    def fence(self) -> Fence:
        """What every call for this attempt proves itself with."""
        return self.claim.fence

    @property
    def left_ms(self) -> int:
        """How many milliseconds the lease surely holds; 0 once it is over or lost."""
        if self._is_elsewhere:
            return 0
        with self._guard:
            return 0 if self._lost is not None else max(0, int((self._ends_at - monotonic()) * 1000))

    @property
    def is_cancelled(self) -> bool:
        """Tell whether cancellation was requested, as far as this worker has heard."""
        return self._cancelled

    @property
    def lost(self) -> str | None:
        """Why the lease is lost, or None. Once lost it stays lost, whatever a late answer says."""
        if self._is_elsewhere:
            return "a child process has no part in the attempt"
        with self._guard:
            if monotonic() >= self._ends_at:
                self._lose("the lease is over")
            return self._lost

    @property
    def lost_s(self) -> float | None:
        """For how many seconds the lease has been known to be lost, or None."""
        return None if self.lost is None or self._lost_at is None else monotonic() - self._lost_at

    @property
    def is_running(self) -> bool:
        """Tell whether the body has neither ended nor been given up."""
        return self._phase is Phase.RUNNING

    @property
    def is_left_behind(self) -> bool:
        """Tell whether the body was given up while it was running. Settled once its report has begun."""
        return self._is_left_behind

    @property
    def _is_elsewhere(self) -> bool:
        """Tell whether this is a copy in a child process, to which no heartbeat tells anything."""
        return os.getpid() != self._pid

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost, self._lost_at = reason, monotonic()

    def renew(self, claim: Claim, *, asked_at: float) -> None:
        """Let the lease hold as long as the authority has answered, to a question sent at `asked_at`."""
        with self._guard:
            self._cancelled = self._cancelled or claim.cancellation_requested
            # A lease that was over before its renewal was heard of may have stopped a body: it stays over.
            if monotonic() < self._ends_at:
                self._ends_at = max(self._ends_at, asked_at + claim.lease_left_ms / 1000)

    def lose(self, reason: str) -> None:
        """Let the lease be lost: the authority has refused this attempt."""
        with self._guard:
            self._lose(reason)

    def cancel(self) -> None:
        """Let the attempt know that cancellation was requested."""
        self._cancelled = True

    def stop(self) -> None:
        """Let the body's next check raise, so that it ends and its work is given back."""
        self._must_stop = True

    def check(self) -> None:
        """Raise when the body must stop: Released, LeaseLost or Cancelled."""
        lost = self.lost
        if lost is not None:
            raise LeaseLost(lost)
        if self._phase is Phase.GIVEN_BACK or self._must_stop:
            raise Released("the worker is being stopped")
        if self._phase is Phase.REPORTING:
            # A thread that the body has left behind must cause no more effects either.
            raise LeaseLost("the attempt has ended")
        if self._cancelled:
            raise Cancelled("cancellation was requested")

    def leave_behind(self) -> bool:
        """Give the body up, unless it has ended; return whether that was done."""
        with self._guard:
            self._is_left_behind = self._is_left_behind or self._phase is Phase.RUNNING
            return self._is_left_behind

    def begin_report(self) -> bool:
        """Let the attempt's own thread report its ending; False if the work was given back before."""
        return self._enter(Phase.REPORTING)

    def give_back(self) -> bool:
        """Let the stopping worker release the work over its body's head; False if the body has ended before."""
        return self._enter(Phase.GIVEN_BACK)

    def _enter(self, phase: Phase) -> bool:
        with self._guard:
            if self._phase is Phase.RUNNING:
                self._phase = phase
            return self._phase is phase
