"""Handing things to threads: nothing is lost or done twice, few threads do short work, and none waits for another."""

from __future__ import annotations

import threading
import time
from collections import Counter

from tests.worker.tools import PATIENCE_S, eventually
from workloads.worker.handover import Handover


class Crew:
    """Threads that do what they are handed, until they are handed None."""

    def __init__(self, size, work):
        self.handover = Handover()
        self.done = []
        self.busy = Counter()
        self._work = work
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while (thing := self.handover.get()) is not None:
            self.busy[threading.current_thread().name] += 1
            self._work(thing)
            self.done.append(thing)

    def end(self):
        for _ in self._threads:
            self.handover.put(None)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_everything_is_done_once_whoever_puts_it_there():
    crew = Crew(20, lambda thing: None)
    putters = [threading.Thread(target=lambda n=n: [crew.handover.put((n, i)) for i in range(2_000)]) for n in range(5)]
    for thread in putters:
        thread.start()
    for thread in putters:
        thread.join(PATIENCE_S)
    crew.end()
    assert sorted(crew.done) == [(n, i) for n in range(5) for i in range(2_000)]


def test_what_one_thread_puts_is_begun_in_its_order():
    crew = Crew(1, lambda thing: None)
    for number in range(500):
        crew.handover.put(number)
    crew.end()
    assert crew.done == list(range(500))


def test_where_each_waits_for_all_others_there_is_a_thread_for_each():
    size = 50
    everybody = threading.Barrier(size)
    crew = Crew(size, lambda thing: everybody.wait(PATIENCE_S))
    for _ in range(3):
        before = len(crew.done)
        for number in range(size):
            crew.handover.put(number)
        eventually(lambda before=before: len(crew.done) == before + size)
    crew.end()


def test_one_thing_after_another_is_done_by_few_threads():
    crew = Crew(50, lambda thing: None)
    eventually(lambda: len(crew.handover._idle) == 50)
    for number in range(200):
        crew.handover.put(number)
        eventually(lambda number=number: len(crew.done) == number + 1)
    crew.end()
    # Each is done by who was busy last, and has gone to rest again.
    assert crew.busy.most_common(1)[0][1] > 100, crew.busy


def test_who_is_woken_for_nothing_rests_again():
    crew = Crew(3, lambda thing: time.sleep(0.001))
    for _ in range(20):
        for number in range(10):
            crew.handover.put(number)
        eventually(lambda: len(crew.handover._idle) == 3)
        assert not crew.handover._one_is_waking
    assert len(crew.done) == 200
    crew.end()
