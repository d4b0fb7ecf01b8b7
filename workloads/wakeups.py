"""Telling those who wait for work that there is some: within a process at once, between processes by NOTIFY.

Everything here is a hint. Whoever waits looks again after a while by itself, so that a lost word costs time alone, and
a site whose pooler can't LISTEN loses nothing but that (`WORKLOADS["NOTIFICATIONS"] = False`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

from django.db import connections, router

from workloads import conf
from workloads.models import Workload

logger = logging.getLogger("workloads")

CHANNEL: Final = "workloads_queued"
GAP_S: Final = 0.05
"""Words that come within this time of one another are said once: each NOTIFY holds up other commits for a moment."""
SENDER_IDLE_S: Final = 5.0
LISTENER_IDLE_S: Final = 60.0
"""After how long without anybody who waits the connection is given up: longer than the longest wait."""
UNHEARD_S: Final = 30.0
"""For how long nothing has been heard before that is told, once."""
STEP_S: Final = 5.0
SHORTEST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LAST_WORD_S: Final = 1.0


def are_on(using: str) -> bool:
    """Tell whether processes tell each other of work: on PostgreSQL by psycopg 3, unless the site has turned it off."""
    if connections[using].vendor != "postgresql" or not conf.limits().notifications:
        return False
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)


class Bell:
    """What threads and event loops of this process wait on. Each word wakes all that wait when it is said."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._is_over = False
        self._waiting: set[Callable[[], None]] = set()
        self._told: frozenset[Callable[[], object]] = frozenset()

    @property
    def count(self) -> int:
        """How often it has rung. Ask before looking for work, and wait for what rings after that."""
        return self._count

    @property
    def is_over(self) -> bool:
        """Whether nobody is to wait any more, since the process is about to end."""
        return self._is_over

    def ring(self) -> None:
        """Wake everybody."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            # An event loop that was closed has nobody left to wake.
            with suppress(RuntimeError):
                wake()
        for tell in self._told:
            tell()

    def tell(self, wake: Callable[[], object]) -> None:
        """Let `wake` be called at each ring from now on, by whoever rings. Said twice, it is called once."""
        if wake not in self._told:
            with self._condition:
                self._told |= {wake}

    def tell_no_more(self, wake: Callable[[], object]) -> bool:
        """Let `wake` be called at no ring any more; return whether anybody else is told."""
        with self._condition:
            self._told -= {wake}
            return bool(self._told)

    def end(self) -> None:
        """Wake everybody, and let nobody wait from now on."""
        self._is_over = True
        self.ring()

    def wait(self, since: int, seconds: float) -> bool:
        """Wait until it has rung after `since`, at most so many seconds; return whether it has."""
        with self._condition:
            return self._condition.wait_for(lambda: self._count != since or self._is_over, timeout=seconds)

    async def wait_async(self, since: int, seconds: float) -> bool:
        """Wait as `wait` does, holding no thread."""
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(rung.set)

        with self._condition:
            if self._count != since or self._is_over:
                return True
            self._waiting.add(wake)
        try:
            async with asyncio.timeout(seconds):
                await rung.wait()
        except TimeoutError:
            return False
        finally:
            with self._condition:
                self._waiting.discard(wake)
        return True


def _open(using: str) -> Any:
    """Return a session of its own, outside the site's pool, if it has one, and outside every transaction."""
    connection: Any = connections[using]
    return connection.Database.connect(**(connection.get_connection_params() | {"autocommit": True}))


class Sender(threading.Thread):
    """Says NOTIFY on a connection of its own, so that nobody's commit waits for it."""

    def __init__(self, using: str) -> None:
        super().__init__(name="workloads-notify", daemon=True)
        self._using = using
        self._changed = threading.Condition()
        self._is_due = False
        self._is_speaking = False
        self._is_over = False

    def send(self) -> bool:
        """Let it be said soon; False if this thread is over, and another is needed."""
        with self._changed:
            if self._is_over:
                return False
            self._is_due = True
            self._changed.notify_all()
            return True

    def stop(self) -> None:
        """Say what is to be said, and end."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait a moment for what is to be said, before the process ends."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_due or self._is_speaking), timeout=LAST_WORD_S)

    def run(self) -> None:
        """Send until there has been nothing to send for a while."""
        session: Any = None
        try:
            while self._await_word():
                session = self._say(session)
                with self._changed:
                    self._is_speaking = False
                    self._changed.notify_all()
                    # What comes meanwhile is said together.
                    self._changed.wait_for(lambda: self._is_over, timeout=GAP_S)
        finally:
            with self._changed:
                self._is_over, self._is_speaking = True, False
                self._changed.notify_all()
            if session is not None:
                session.close()

    def _await_word(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_due or self._is_over, timeout=SENDER_IDLE_S)
            self._is_over = self._is_over or not self._is_due
            self._is_speaking, self._is_due = self._is_due, False
            return self._is_speaking

    def _say(self, session: Any) -> Any:
        """Say it on this session, or on a new one if that has ended meanwhile; return the session to go on with."""
        for given in (session, None) if session is not None else (None,):
            said = given
            try:
                said = given if given is not None else _open(self._using)
                said.execute(f"NOTIFY {CHANNEL}")
                return said
            except Exception as error:
                # If the database is away, so is the work that was spoken of.
                logger.debug("NOTIFY was not said: %s", error)
                if said is not None:
                    said.close()
        return None


class Listener(threading.Thread):
    """Listens on one connection for the whole process, and rings its bell, as long as somebody waits now and then."""

    def __init__(self, using: str, bell: Bell) -> None:
        super().__init__(name="workloads-listen", daemon=True)
        self._using = using
        self._bell = bell
        self._guard = threading.Lock()
        self._wanted_at = time.monotonic()
        self._over = threading.Event()
        self._reads, self._writes = os.pipe()
        self.is_listening = threading.Event()

    def want(self) -> bool:
        """Let it go on for a while; False if this thread is over, and another is needed."""
        with self._guard:
            self._wanted_at = time.monotonic()
            return not self._over.is_set()

    def stop(self) -> None:
        """End soon, the connection closed."""
        with self._guard:
            if not self._over.is_set():
                self._over.set()
                os.write(self._writes, b".")

    def run(self) -> None:
        """Listen, on a new connection whenever the old one has ended."""
        pause = SHORTEST_PAUSE_S
        heard_at: float | None = time.monotonic()
        try:
            while self._is_wanted():
                try:
                    with closing(_open(self._using)) as session:
                        session.execute(f"LISTEN {CHANNEL}")
                        pause = SHORTEST_PAUSE_S
                        self.is_listening.set()
                        # Nobody knows what was said before.
                        self._bell.ring()
                        try:
                            self._hear(session)
                        finally:
                            heard_at = time.monotonic()
                except Exception as error:
                    # A session that is soon renewed, and a database that is away, are no news of this thread's.
                    if heard_at is not None and time.monotonic() - heard_at >= UNHEARD_S:
                        logger.warning("Notifications are not heard (%s): those who wait look for themselves.", error)
                        heard_at = None
                    self.is_listening.clear()
                    self._over.wait(pause)  # nothing tells when a database is back
                    pause = min(LONGEST_PAUSE_S, 2 * pause)
        finally:
            self.is_listening.clear()
            with self._guard:
                self._over.set()
                os.close(self._reads)
                os.close(self._writes)

    def _is_wanted(self) -> bool:
        with self._guard:
            if time.monotonic() - self._wanted_at > LISTENER_IDLE_S:
                self._over.set()
            return not self._over.is_set()

    def _hear(self, session: Any) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(session.fileno(), selectors.EVENT_READ)
            selector.register(self._reads, selectors.EVENT_READ)
            while self._is_wanted():
                if not selector.select(STEP_S):
                    # A session that has been cut in silence is found out by asking it something.
                    session.execute("SELECT 1")
                if list(session.notifies(timeout=0)):
                    self._bell.ring()


class _Here:
    """The bell, the sender and the listener of one process. A child that was forked has its own."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.guard = threading.Lock()
        self.senders: dict[str, Sender] = {}
        self.listeners: dict[str, Listener] = {}


_here = _Here()


def _renew() -> None:
    global _here
    _here = _Here()


os.register_at_fork(after_in_child=_renew)


def bell() -> Bell:
    """Return this process's bell."""
    return _here.bell


def listen() -> Bell:
    """Return this process's bell, and see to it that it rings for other processes too, where it can.

    To be called whenever somebody begins to wait: a listener that nobody wants gives its connection up.
    """
    here = _here
    using = router.db_for_write(Workload)
    if are_on(using):
        with here.guard:
            listener = here.listeners.get(using)
            if listener is None or not listener.want():
                listener = Listener(using, here.bell)
                listener.start()
                here.listeners[using] = listener
    return here.bell


def hang_up() -> None:
    """Give up listening, since who waited here does so no longer. Whoever waits next begins to listen anew."""
    here = _here
    with here.guard:
        listeners = list(here.listeners.values())
    for listener in listeners:
        listener.stop()
        listener.join(LAST_WORD_S)


def announce(*, using: str, **kwargs: Any) -> None:
    """Tell everybody that waits that there is work. A receiver of `signals.work_queued`."""
    here = _here
    here.bell.ring()
    if not are_on(using):
        return
    with here.guard:
        sender = here.senders.get(using)
        if sender is None or not sender.send():
            sender = Sender(using)
            sender.send()
            sender.start()
            here.senders[using] = sender


def stop() -> None:
    """Give up every connection that is held here, once what is to be said is said. The next word opens them again.

    For tests, whose database can't be removed while somebody is connected to it.
    """
    here = _here
    with here.guard:
        threads: list[Sender | Listener] = [*here.senders.values(), *here.listeners.values()]
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(LAST_WORD_S + STEP_S)


@atexit.register
def _say_the_last() -> None:
    for sender in list(_here.senders.values()):
        sender.flush()
