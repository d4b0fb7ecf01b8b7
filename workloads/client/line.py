"""The line to a server: one question, asked again while it may be, until it is answered."""

from __future__ import annotations

import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import httpx

from workloads.client import records
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError
from workloads.worker.news import pause_s
from workloads.worker.port import FAULT, Unanswered

logger = logging.getLogger("workloads.client")

T = TypeVar("T")

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
SHORTEST_S: Final = 0.05
LONGEST_S: Final = 3_600.0
NOT_NOW: Final = frozenset({408, 425, 429})
"""Nothing was done: every call may be repeated. The first two are the word of what stands before the server."""
NOT_KNOWN: Final = frozenset({502, 503, 504})
"""A proxy's word, or that of a server whose database went away: whether it was done is not known."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Line:
    """HTTP to one server, with one token. Safe to use from many threads.

    `patience_ms` is how long one call is repeated in all, None for as long as it takes, 0 for not at all. The line says
    in the log when the server stops answering and when it answers again, once each.
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
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            # Here, since the transport would say it with the token in its message.
            raise ValueError("The token must be characters of ASCII, without a space or a line's end.")
        self._patience_s = None if patience_ms is None else patience_ms / 1000
        self._guard = threading.Lock()
        self._lost_at: float | None = None
        self._here = threading.local()
        self._http = httpx.Client(
            base_url=_address(base_url),
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            # A heartbeat must not wait for a connection that a report has.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
            verify=verify,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"<Line to {self._http.base_url}>"

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

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
        read: Callable[[Any], T],
        may_repeat: bool = True,
        wait_s: float = 0.0,
        answer_s: float = ANSWER_S,
    ) -> tuple[int, T, httpx.Headers]:
        """Return the status, what `read` makes of the JSON, and the headers of an answer that is no error.

        A refusal is raised as the WorkloadError that it is. What may be repeated is: 408, 425, 429 always; 502, 503,
        504 and answers that are lost or can't be read if `may_repeat`; a Retry-After is obeyed. Unanswered is raised
        when patience ends. `wait_s` is how long the server may hold the answer back, `answer_s` how long one answer is
        waited for.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        until = None
        if self._patience_s is not None:
            until = time.monotonic() + self._patience_s + (wait_s if self._patience_s else 0.0)
        answer_s = min(answer_s, self._left_s())
        limit = httpx.Timeout(answer_s + wait_s, connect=min(CONNECT_S, answer_s))
        turn = 0
        while True:
            if self._http.is_closed:
                raise Unanswered(f"{method} {path} was not asked: the line is closed")
            turn += 1
            at_least = 0.0
            try:
                response = self._http.request(method, path, content=content, headers=headers, timeout=limit)
                status = response.status_code
                if status not in NOT_NOW and status not in NOT_KNOWN:
                    answer = _read(response, read)
                    self._answers()
                    return status, answer, response.headers
            except (httpx.RequestError, _Garbled) as error:
                why, is_unknown = _name(error), True
            else:
                why, is_unknown = f"status {status}", status in NOT_KNOWN
                at_least = retry_after_s(response.headers)
            unanswered = Unanswered(f"No answer to {method} {path}: {why}", retry_after_s=at_least)
            if is_unknown and not may_repeat:
                raise unanswered
            if is_unknown:
                self._lost(why)
            else:
                self._answers()
            pause = max(obeyed_s(at_least), pause_s(turn))
            if until is not None and time.monotonic() + pause > until:
                raise unanswered
            time.sleep(pause)  # nothing tells when it is back

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
    """An answer that can't be read: part of it was lost on the way, or somebody else has given it."""


def _address(base_url: str) -> httpx.URL:
    """Return where the interface is; a ValueError, which does not repeat the address, if it can't be there."""
    try:
        url = httpx.URL(base_url.rstrip("/") + "/v1/")
    except (httpx.InvalidURL, AttributeError, TypeError, ValueError):
        url = httpx.URL("")
    # A user's name in the address would be sent in the token's stead.
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise ValueError(
            "base_url must be as https://example.org/api, without a user, a query or a fragment."
        ) from None
    return url


def _read(response: httpx.Response, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of an answer's JSON; an error is raised as the WorkloadError that it is."""
    status = response.status_code
    try:
        said = response.json()
    except (ValueError, RecursionError) as error:
        if 200 <= status < 300:
            raise _Garbled("the answer is not JSON") from error
        said = None
    if not 200 <= status < 300:
        is_authoritys = isinstance(said, dict) and isinstance(said.get("code"), str)
        raise records.error(said) if is_authoritys else _unexpected(status)
    try:
        return read(said)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _Garbled(f"the answer is not the authority's: {type(error).__name__}: {error}") from error


def _unexpected(status: int) -> WorkloadError:
    code = {401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 413: WORKLOAD_TOO_LARGE}.get(status)
    return WorkloadError(
        code or (FAULT if status >= 500 else "UNEXPECTED_ANSWER"),
        f"The answer has status {status}, and is not the authority's.",
        {"status": status},
    )


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how many seconds a server asks to be left alone; 0 where it does not."""
    given = headers.get("Retry-After", "")
    if given.isascii() and given.isdecimal():
        return min(float(given), LONGEST_S)
    try:
        return min(max(0.0, parsedate_to_datetime(given).timestamp() - time.time()), LONGEST_S)
    except (ValueError, OverflowError):
        return 0.0


def obeyed_s(seconds: float) -> float:
    """Return how long to leave a server alone that asks for so long: others were asked the same, and part so."""
    return seconds * random.uniform(1, 1.25)


def _name(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
