"""Waiting that a signal's handler can end."""

from __future__ import annotations

import queue
import signal
import time

from workloads.worker.news import wait_for_news


def test_it_waits_as_long_as_it_is_told():
    begun = time.monotonic()
    assert not wait_for_news(queue.SimpleQueue(), 0.7)
    assert time.monotonic() - begun >= 0.7
    assert not wait_for_news(queue.SimpleQueue(), -1)


def test_it_takes_all_that_there_is():
    news = queue.SimpleQueue()
    for item in range(3):
        news.put(item)
    assert wait_for_news(news, None)
    assert news.empty()


def test_a_signals_handler_ends_it():
    news = queue.SimpleQueue()
    before = signal.signal(signal.SIGALRM, lambda *_: news.put(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert wait_for_news(news, None)
    finally:
        signal.signal(signal.SIGALRM, before)
