"""The worker: it asks for as much work as it has room for, runs it in threads, and gives back what it can't end."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import random
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from workloads.contract import Claim
from workloads.errors import WorkloadError
from workloads.worker.completions import Completion
from workloads.worker.handover import Handover
from workloads.worker.heartbeats import Heartbeats, beat_every_ms
from workloads.worker.lease import Lease, monotonic
from workloads.worker.news import wait_for_news
from workloads.worker.port import FAULT, Port, Unanswered
from workloads.worker.registry import Registry, handlers as site_handlers
from workloads.worker.reports import STOPPED, Ending, Reporter

logger = logging.getLogger("workloads.worker")

NOTICE_S: Final = 2.0
"""How long bodies that have been told to stop are waited for, before their work is released over their heads."""
LAST_WORDS_S: Final = 10.0
"""How long a stopping worker tries to be heard by a database that does not answer."""
MOST_LEFT_BEHIND: Final = 10
"""So many threads are given up to bodies that do not end. At one more the worker ends: only a process can be ended."""
SHARE: Final = 4
"""While reports are under way, at least one in so many places must be free before more work is claimed for them."""
PARTS: Final = 2
MANY_PLACES: Final = 48
"""With so many places, work is claimed for one in so many parts of them at a time: while one part is claimed, the
other is run and reported. A claim and a report keep the processor and the database busy in turns.
"""
SOON_S: Final = 0.1
"""For how long, at the most, work is not claimed since more places will be free soon."""
LOOK_S: Final = 0.05
"""Who was told of work and found none looks again no sooner than after this time, however often it is told."""
LEFT_BEHIND_EVERY_S: Final = 0.05
LISTEN_EVERY_S: Final = 20.0
STOP: Final = "stop"
FREED: Final = "freed"
QUEUED: Final = "queued"


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a worker did: attempts by ending, and how many handlers it left running when it ended.

    `is_clogged`: it ended by itself, since too many handlers that had lost their leases did not end.
    """

    endings: Counter[Ending] = field(default_factory=Counter)
    abandoned: int = 0
    is_clogged: bool = False


class Worker:
    """Runs the site's handlers. `run` returns when `stop` was called, or, with `drain`, when there is nothing to do.

    `definitions` (`id` or `id@revision`) and `capabilities` are what it offers; None is those of all handlers. Each
    claim is leased for `lease_ms` and kept by heartbeats. It asks for work when a handler ends, and else about every
    `poll_ms`. Once stopped it waits `grace_ms` for what runs; so long it also waits for a body whose lease is lost,
    before it gives that body's room to other work. `port` is the way to the authority, this site's own if None.
    """

    def __init__(
        self,
        *,
        concurrency: int = 1,
        definitions: Iterable[str] | None = None,
        capabilities: Iterable[str] | None = None,
        lease_ms: int = 60_000,
        tenant_id: str | None = None,
        application_id: str | None = None,
        poll_ms: int = 1_000,
        grace_ms: int = 30_000,
        drain: bool = False,
        worker_id: str | None = None,
        handlers: Registry = site_handlers,
        port: Port | None = None,
    ) -> None:
        bounds: tuple[tuple[str, Any, int], ...] = (
            ("concurrency", concurrency, 1),
            ("lease_ms", lease_ms, 3),
            ("poll_ms", poll_ms, 1),
            ("grace_ms", grace_ms, 0),
        )
        for name, value, least in bounds:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}")
        self.concurrency = concurrency
        self.definitions = sorted(handlers.selectors() if definitions is None else set(definitions))
        self.capabilities = handlers.capabilities() if capabilities is None else frozenset(capabilities)
        self.lease_ms = lease_ms
        self.tenant_id = tenant_id
        self.application_id = application_id
        self.poll_ms = poll_ms
        self.grace_ms = grace_ms
        self.drain = drain
        self.worker_id = worker_id or make_worker_id()
        self._handlers = handlers
        self._port = _site_port() if port is None else port
        self._ended = threading.Event()
        self._work: Handover[Lease | Completion | None] = Handover()
        self._reporter = Reporter(
            handlers=handlers, port=self._port, ended=self._ended, heard=self._heard, later=self._work.put
        )
        self._heartbeats = Heartbeats(lease_ms=lease_ms, port=self._port)
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._stops = 0
        self._guard = threading.Lock()
        self._running: set[Lease] = set()
        self._left_behind: set[Lease] = set()
        self._looks_for_deaf_at = 0.0
        self._most_a_claim = concurrency if concurrency < MANY_PLACES else -(-concurrency // PARTS)
        self._is_clogged = False
        self._is_refused = False
        self._endings: Counter[Ending] = Counter()

    @property
    def is_stopping(self) -> bool:
        """Tell whether `stop` was called."""
        return self._stops > 0

    def stop(self) -> None:
        """Claim no more, and end when what runs has ended or the grace period is over; said twice, at once.

        May be called from any thread and from a signal's handler.
        """
        self._stops += 1
        self._news.put(STOP)

    def run(self) -> Summary:
        """Claim and run work until stopped or drained."""
        self._port.begin_thread()
        self._port.watch_forks()
        self._heartbeats.start()
        slots = [self._begin_slot() for _ in range(self.concurrency)]
        if not self.drain:
            self._port.hear(self._wake)
        logger.info("%s: claims %s", self.worker_id, ", ".join(self.definitions) or "nothing")
        try:
            self._loop()
        finally:
            try:
                self._wind_up()
            finally:
                self._ended.set()
                if not self.drain:
                    self._port.hear_no_more(self._wake)
                self._heartbeats.end()
                for _ in slots:
                    self._work.put(None)
        with self._guard:
            busy = len(self._running) + len(self._left_behind)
        if not busy:
            for thread in slots:
                thread.join(timeout=NOTICE_S)
        self._heartbeats.join(timeout=NOTICE_S)
        self._port.end_thread()
        with self._guard:
            endings = Counter(self._endings)
        logger.info("%s: ended; %s", self.worker_id, _say(endings, busy))
        return Summary(endings=endings, abandoned=busy, is_clogged=self._is_clogged)

    def _count(self) -> int:
        with self._guard:
            return len(self._running)

    def _wake(self) -> None:
        self._news.put(QUEUED)

    def _loop(self) -> None:
        full_until = 0.0
        while not self._stops:
            self._leave_behind()
            free = self.concurrency - self._count()
            if free <= 0:
                self._rest(self._poll_s())
                continue
            if free * SHARE < self.concurrency and self._reporter.is_reporting:
                # More places are free as soon as that is answered. Work for all of them is claimed together.
                full_until = full_until or monotonic() + SOON_S
                if (left := full_until - monotonic()) > 0:
                    self._rest(left)
                    continue
            full_until = 0.0
            asked_at = monotonic()
            limit = min(free, self._most_a_claim)
            claims = self._claim(limit)
            for lease in claims or ():
                self._begin(lease)
            if self.drain and claims == [] and free == self.concurrency:
                return
            has_waited = self._port.claims_wait and (bool(claims) or monotonic() - asked_at >= self.poll_ms / 1000)
            if claims is None or (len(claims) < limit and not has_waited):
                self._await_work(has_found=bool(claims), asked_at=asked_at)

    def _await_work(self, *, has_found: bool, asked_at: float) -> None:
        """Wait until there may be work, or more room for it. The words of a burst are all one."""
        told = self._rest(self._poll_s())
        while told == {QUEUED} and not has_found and (left := asked_at + LOOK_S - monotonic()) > 0:
            told = self._rest(left) or told

    def _poll_s(self) -> float:
        return self.poll_ms / 1000 * random.uniform(0.75, 1.25)

    def _rest(self, seconds: float) -> set[str]:
        """Wait for news, at most so many seconds, and return it. Older news is all one."""
        until = monotonic() + seconds
        while True:
            left = until - monotonic()
            if not self.drain and not self._stops:
                self._port.hear(self._wake)
            told = wait_for_news(self._news, min(left, LISTEN_EVERY_S))
            if told or left <= LISTEN_EVERY_S:
                return told

    def _leave_behind(self) -> None:
        """Give up the threads of bodies that go on though their leases are lost, and let other threads take their room.

        Nothing can end a thread. One that ends in its own time makes its report, which the fence judges, and is gone.
        """
        if monotonic() < self._looks_for_deaf_at:
            return
        self._looks_for_deaf_at = monotonic() + LEFT_BEHIND_EVERY_S
        with self._guard:
            deaf = [x for x in self._running if x.is_running and (x.lost_s or 0) * 1000 > self.grace_ms]
        for lease in deaf:
            with self._guard:
                if lease not in self._running:
                    continue
                if len(self._left_behind) >= MOST_LEFT_BEHIND:
                    self._is_clogged = True
                    break
                if not lease.leave_behind():
                    continue
                self._running.discard(lease)
                self._left_behind.add(lease)
                count = len(self._left_behind)
            self._heartbeats.remove(lease)
            logger.warning(
                "%s: the handler of attempt %s does not end, and is left behind (%d so far)",
                lease.claim.workload_id,
                lease.claim.attempt_number,
                count,
            )
            self._begin_slot()
        if self._is_clogged:
            logger.error("%s: ends, since too many handlers do not end", self.worker_id)
            self.stop()

    def _claim(self, limit: int) -> list[Lease] | None:
        """Claim up to `limit` workloads, started at once. A lost answer is asked for again under the same request.

        None: there was no answer. A lasting fault is told once, and ends a worker that drains.
        """
        request_id = secrets.token_hex(16)
        asked_at = monotonic()

        def ask() -> list[tuple[Claim, int | None]]:
            nonlocal asked_at
            asked_at = monotonic()
            return self._port.claim(
                worker_id=self.worker_id,
                capabilities=self.capabilities,
                lease_ms=self.lease_ms,
                limit=limit,
                tenant_id=self.tenant_id,
                application_id=self.application_id,
                definitions=self.definitions,
                start=True,
                request_id=request_id,
            )

        try:
            claims = self._port.ask(ask, wait=self._rest, give_up=lambda: self._stops > 0)
        except Exception as error:
            if isinstance(error, WorkloadError) and error.code != FAULT:
                # What it offers is refused, and will be.
                raise
            if self._stops:
                return None
            if self.drain:
                raise
            if not self._is_refused:
                logger.error(
                    "Work can't be claimed: %s. Trying again.",
                    error,
                    exc_info=not isinstance(error, (Unanswered, WorkloadError)),
                )
            self._is_refused = True
            return None
        if self._is_refused:
            self._is_refused = False
            logger.warning("Work can be claimed again.")
        return [
            Lease(claim, asked_at=asked_at, beat_every_ms=beat_every_ms(self.lease_ms, heartbeat_ms))
            for claim, heartbeat_ms in claims
        ]

    def _begin(self, lease: Lease) -> None:
        with self._guard:
            self._running.add(lease)
        self._heartbeats.add(lease)
        self._work.put(lease)

    def _begin_slot(self) -> threading.Thread:
        thread = threading.Thread(target=self._slot, name=f"workloads-slot-{next(self._numbers)}", daemon=True)
        thread.start()
        return thread

    def _slot(self) -> None:
        """Run what is handed over, one after another, until there is no more or another thread has taken its room."""
        self._port.begin_thread()
        is_needed = True
        while is_needed and (given := self._work.get()) is not None:
            if isinstance(given, Lease):
                self._reporter.run(given)
                is_needed = not given.is_left_behind
            else:
                self._reporter.go_on(given)
            del given
        self._port.end_thread()

    def _heard(self, endings: Sequence[tuple[Lease, Ending | None]]) -> None:
        """Give the room of these attempts to other work."""
        for lease, ending in endings:
            logger.debug("%s: attempt %s %s", lease.claim.workload_id, lease.claim.attempt_number, ending)
            self._heartbeats.remove(lease)
            if ending is Ending.UNKNOWN_DEFINITION:
                self._forget(lease.claim)
        with self._guard:
            for lease, ending in endings:
                if ending is not None and (lease in self._running or lease in self._left_behind):
                    self._endings[ending] += 1
                self._running.discard(lease)
                self._left_behind.discard(lease)
        self._news.put(FREED)

    def _forget(self, claim: Claim) -> None:
        """Ask no longer for what was given back as unknown: it is first in the queue again, and hides what is known."""
        definition_id, exact = claim.definition_id, f"{claim.definition_id}@{claim.definition_revision}"
        known = [name for name in self._handlers.selectors() if name.partition("@")[0] == definition_id]
        with self._guard:
            kept = {name for name in self.definitions if name not in (definition_id, exact)}
            self.definitions = sorted(kept.union(known) if definition_id in self.definitions else kept)

    def _wind_up(self) -> None:
        """Wait for what runs, then tell it to stop, then release what does not."""
        self._wait_until(lambda: not self._count(), self.grace_ms / 1000, stops=2)
        with self._guard:
            left = list(self._running)
        if not left:
            return
        for lease in left:
            lease.stop()
        logger.info("%s: the grace period is over; %d to be released", self.worker_id, len(left))
        self._wait_until(lambda: not self._count(), NOTICE_S, stops=2)
        # If the database does not answer in time, the leases say the rest.
        last_words = threading.Timer(LAST_WORDS_S, self._ended.set)
        last_words.daemon = True
        last_words.start()
        with self._guard:
            left = list(self._running)
        stuck = {lease for lease in left if lease.give_back()}
        for lease in stuck:
            # By this thread, since its own is still in the handler; what that reports later, the fence refuses.
            self._heartbeats.remove(lease)
            ending = self._reporter.release(lease, STOPPED)
            with self._guard:
                self._endings[ending] += 1
        # The handlers of the others have ended. Their reports are outstanding, and no signal cuts them short.
        self._wait_until(lambda: self._ended.is_set() or self._are_within(stuck), LAST_WORDS_S)
        last_words.cancel()

    def _are_within(self, leases: set[Lease]) -> bool:
        with self._guard:
            return self._running <= leases

    def _wait_until(self, holds: Callable[[], bool], seconds: float, *, stops: int | None = None) -> None:
        """Wait until something holds, at most so many seconds, and only until `stop` was called `stops` times."""
        until = monotonic() + seconds
        while (stops is None or self._stops < stops) and not holds() and (left := until - monotonic()) > 0:
            self._rest(left)


def _site_port() -> Port:
    # Here, so that a worker on another machine needs no Django.
    from workloads.worker.site import SitePort

    return SitePort()


def make_worker_id() -> str:
    """Return a new worker's id: the host, the process, and chance."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-._")[:100] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _say(endings: Counter[Ending], abandoned: int) -> str:
    parts = [f"{ending}: {count}" for ending, count in sorted(endings.items())]
    if abandoned:
        parts.append(f"left running: {abandoned}")
    return ", ".join(parts) or "nothing was done"
