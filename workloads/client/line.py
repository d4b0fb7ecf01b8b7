"""The line to a server: one question, asked again while it may be, until it is answered."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from workloads.client import records
from workloads.errors import WorkloadError
from workloads.worker.news import pause_s
from workloads.worker.port import Unanswered

logger = logging.getLogger("workloads.client")

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
SHORTEST_S: Final = 0.05
NOT_NOW: Final = 429
"""The server has done nothing: every call may be repeated."""
NOT_KNOWN: Final = frozenset({502, 503, 504})
"""A proxy's word, or that of a server whose database went away: whether it was done is not known."""


class Line:
    """HTTP to one server, with one token. Safe to use from many threads.

    `patience_ms` is how long one call is repeated in all, None for as long as it takes. `give_up` ends it sooner. The
    line says in the log when the server stops answering and when it answers again, once each.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        patience_ms: int | None,
        transport: httpx.BaseTransport | None = None,
        verify: Any = True,
    ) -> None:
        self._patience_s = None if patience_ms is None else patience_ms / 1000
        self._guard = threading.Lock()
        self._lost_at: float | None = None
        self._here = threading.local()
        self._http = httpx.Client(
            base_url=base_url.rstrip("/") + "/v1/",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            verify=verify,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"<Line to {self._http.base_url}>"

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    @property
    def is_lost(self) -> bool:
        """Tell whether the last that was heard of the server is that it does not answer."""
        return self._lost_at is not None

    @contextmanager
    def patient(self, left_s: Callable[[], float] | None) -> Iterator[None]:
        """Wait for no answer to this thread's questions longer than `left_s` says, as it is now, that it is of use."""
        self._here.left_s = math.inf if left_s is None else max(SHORTEST_S, left_s())
        try:
            yield
        finally:
            self._here.left_s = math.inf

    def _left_s(self) -> float:
        return getattr(self._here, "left_s", math.inf)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        may_repeat: bool = True,
        wait_s: float = 0.0,
        answer_s: float | None = None,
        give_up: Callable[[], bool] | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> tuple[int, Any, httpx.Headers]:
        """Return the status, the body and the headers of an answer that is no error.

        A refusal is raised as the WorkloadError that it is. What may be repeated is: 429 always; 502, 503, 504 and lost
        answers if `may_repeat`; a Retry-After is obeyed. Unanswered is raised when patience or `give_up` ends
        it. `wait_s` is how long the server may hold the answer back, `answer_s` how long one answer is waited for.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        until = None if self._patience_s is None else time.monotonic() + self._patience_s + wait_s
        limit = httpx.Timeout(
            min(ANSWER_S if answer_s is None else answer_s, self._left_s()) + wait_s, connect=CONNECT_S
        )
        turn = 0
        while True:
            turn += 1
            at_least = 0.0
            try:
                response = self._http.request(method, path, content=content, headers=headers, timeout=limit)
                said = _read(response)
            except (httpx.TransportError, _Garbled) as error:
                if not may_repeat:
                    raise Unanswered(f"No answer to {method} {path}: {_name(error)}") from error
                why: str = _name(error)
            else:
                status = response.status_code
                if status != NOT_NOW and status not in NOT_KNOWN:
                    self._answers()
                    if status >= 300:
                        raise said if isinstance(said, WorkloadError) else _unexpected(status)
                    return status, said, response.headers
                why = f"status {status}"
                if status in NOT_KNOWN and not may_repeat:
                    raise Unanswered(f"No answer to {method} {path}: {why}")
                at_least = retry_after_s(response.headers)
            if why == f"status {NOT_NOW}":
                self._answers()
            else:
                self._lost(why)
            pause = max(at_least * random.uniform(1, 1.25), pause_s(turn))
            if (give_up is not None and give_up()) or (until is not None and time.monotonic() + pause > until):
                raise Unanswered(f"No answer to {method} {path}: {why}", retry_after_s=at_least)
            wait(pause)

    def _lost(self, why: str) -> None:
        with self._guard:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                logger.warning("The authority does not answer (%s). Trying again until it does.", why)

    def _answers(self) -> None:
        if self._lost_at is None:
            return
        with self._guard:
            if self._lost_at is not None:
                logger.warning("The authority answers again, after %.1f s.", time.monotonic() - self._lost_at)
                self._lost_at = None


class _Garbled(Exception):
    """An answer that can't be read: part of it was lost on the way."""


def _read(response: httpx.Response) -> Any:
    """Return an answer's JSON, an error as the WorkloadError that it is; None for what no authority has said."""
    status = response.status_code
    if status == 204:
        return None
    try:
        said = response.json()
    except ValueError as error:
        if status < 300:
            raise _Garbled("the answer is not JSON") from error
        return None
    if status < 300:
        return said
    return records.error(said) if isinstance(said, dict) and "code" in said else None


def _unexpected(status: int) -> WorkloadError:
    code = {401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 413: "WORKLOAD_TOO_LARGE"}.get(status)
    return WorkloadError(
        code or "INTERNAL_ERROR", f"The answer has status {status}, and is not the authority's.", {"status": status}
    )


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how many seconds a server asks to be left alone; 0 where it does not."""
    given = headers.get("Retry-After", "")
    return min(float(given), 3600.0) if given.isascii() and given.isdecimal() else 0.0


def _name(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
