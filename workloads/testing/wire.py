"""One caller of the server under test: how it asks, what came back, and what every refusal must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

TIMEOUT_S: Final = 60.0

STATUSES: Final[Mapping[str, int]] = {
    "WORKLOAD_INVALID": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "WORKLOAD_GRANT_INVALID": 403,
    "WORKLOAD_CAPABILITY_DENIED": 403,
    "WORKLOAD_SCOPE_DENIED": 403,
    "WORKLOAD_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "NOT_ACCEPTABLE": 406,
    "WORKLOAD_CONFLICT": 409,
    "WORKLOAD_NOT_READY": 409,
    "WORKLOAD_ATTEMPTS_EXHAUSTED": 409,
    "WORKLOAD_CLAIM_INVALID": 409,
    "WORKLOAD_STALE_FENCE": 409,
    "WORKLOAD_LEASE_EXPIRED": 409,
    "WORKLOAD_TRANSITION_DENIED": 409,
    "WORKLOAD_TIMED_OUT": 409,
    "WORKLOAD_RESULT_CONFLICT": 409,
    "WORKLOAD_RESULT_DUPLICATE": 409,
    "WORKLOAD_CHECKPOINT_CONFLICT": 409,
    "WORKLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "IDEMPOTENCY_KEY_REUSED": 422,
    "IDEMPOTENCY_KEY_RETIRED": 422,
    "WORKLOAD_SECRET_MATERIAL": 422,
    "THROTTLED": 429,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: httpx.Headers
    text: str

    @property
    def body(self) -> Any:
        """The JSON of it; integers are exact."""
        return json.loads(self.text)

    def ok(self, *statuses: int) -> Any:
        """Return the body of an answer that is no refusal."""
        assert self.status in (statuses or (200, 201)), f"{self.status}: {self.text[:2_000]}"
        assert self.headers["content-type"].partition(";")[0] == "application/json"
        return self.body

    def refused(self, code: str, **details: Any) -> Any:
        """Return the details of a refusal of this code, in the one form, that hold these details at least."""
        assert self.status == STATUSES[code], f"{code} is {STATUSES[code]}; got {self.status}: {self.text[:2_000]}"
        assert self.headers["content-type"].partition(";")[0] == "application/json"
        return refusal(self.body, code, **details)


def refusal(said: Any, code: str, **details: Any) -> Any:
    """Return the details of an error in the one form."""
    assert set(said) == {"code", "message", "details"}, said
    assert said["code"] == code, said
    assert isinstance(said["message"], str) and said["message"]
    assert said["details"] is None or isinstance(said["details"], dict)
    found = said["details"] or {}
    assert {name: found.get(name) for name in details} == details, said
    return found


def outcome(said: Any, code: str, **details: Any) -> Any:
    """Return the details of the refusal that one item of a batch got."""
    assert set(said) == {"status", "error"}, said
    assert said["status"] == STATUSES[code], said
    return refusal(said["error"], code, **details)


class Line:
    """One caller with a token, or without. Threads may share it."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=64)
        self.client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, limits=limits)

    def ask(self, method: str, path: str, body: Any = None, *, content: Any = None, **headers: str) -> Answer:
        """Ask, `body` as JSON or `content` as it is. Header names have `_` for `-`."""
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        if content is None and body is not None:
            content = json.dumps(body).encode()
        if content is not None:
            named.setdefault(b"content-type", b"application/json")
        got = self.client.request(method, path, content=content, headers=named)
        return Answer(got.status_code, got.headers, got.text)

    def ask_alone(self, method: str, path: str, content: Any) -> Answer:
        """Ask on a connection of its own: what the server leaves unread of the body is in nobody's way."""
        own = Line(str(self.client.base_url), None)
        own.client.headers = self.client.headers
        try:
            return own.ask(method, path, content=content)
        finally:
            own.end()

    def get(self, path: str, **parameters: Any) -> Answer:
        """Read a path."""
        got = self.client.get(path, params=parameters or None)
        return Answer(got.status_code, got.headers, got.text)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask for an operation."""
        return self.ask("POST", path, {} if body is None else body, **headers)

    def end(self) -> None:
        """Give the connections back."""
        self.client.close()
