"""Callers over HTTP: users with access and tokens, and one way to ask."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client
from knox.models import AuthToken

from workloads.models import Access

ROOT = "/api/v1/"
TENANT, APPLICATION = "acme", "invoices"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Any
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text) if self.text else None

    @property
    def code(self) -> str:
        return self.body["code"]

    @property
    def details(self) -> Any:
        return self.body["details"]

    @property
    def code_or_none(self) -> str | None:
        return self.body.get("code") if self.status >= 400 else None

    @property
    def outcomes(self) -> Any:
        return self.body["outcomes"]

    def same(self) -> tuple[int, dict[str, str], str]:
        """Return all that a caller could tell two answers apart by."""
        return self.status, dict(self.headers), self.text


def refusal(answer: Answer, status: int, code: str) -> Any:
    """Look that an answer is this refusal, in the one form, and return its details."""
    assert (answer.status, answer.code) == (status, code), answer.text[:500]
    in_form(answer)
    return answer.details


def in_form(answer: Answer) -> None:
    """Look that an answer is an error in the one form."""
    assert 400 <= answer.status < 600
    assert answer.headers["Content-Type"] == "application/json"
    assert list(answer.body) == ["code", "message", "details"], answer.text[:500]
    assert isinstance(answer.code, str) and answer.code.isupper() and isinstance(answer.body["message"], str)
    assert answer.details is None or isinstance(answer.details, dict)
    for word in ("Traceback", "SELECT", "INSERT", ".py", "psycopg", "sqlite", "MySQL"):
        assert word not in answer.text, answer.text[:500]


class Caller:
    """A user with a token, or nobody."""

    def __init__(self, name: str | None, *places: Access) -> None:
        self.name = name
        self.client = Client()
        self.headers: dict[str, str] = {}
        if name is not None:
            self.user = get_user_model().objects.create_user(name)
            for place in places:
                place.user = self.user
                place.save()
            _, token = AuthToken.objects.create(self.user)
            self.headers["authorization"] = f"Bearer {token}"

    def ask(
        self, method: str, path: str, body: Any = None, environ: dict[str, Any] | None = None, **headers: str
    ) -> Answer:
        """Ask, a body that is no bytes as JSON. `environ` goes over what the request is made of."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        content_type = headers.pop("content_type", "application/json")
        url = path if path.startswith("/") or "://" in path else ROOT + path
        response = self.client.generic(
            method, url, data, content_type=content_type, headers=self.headers | headers, **environ or {}
        )
        return Answer(response.status_code, response.headers, response.content.decode())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, {} if body is None else body, **headers)


def place(*roles: str, tenant: str = TENANT, application: str = APPLICATION, **fields: Any) -> Access:
    """Return an Access row, not saved yet."""
    return Access(tenant_id=tenant, application_id=application, **{f"is_{role}": True for role in roles}, **fields)


def admission(key: str = "k-1", **fields: Any) -> dict[str, Any]:
    """Return the body of an admission."""
    return {
        "tenant_id": TENANT,
        "application_id": APPLICATION,
        "idempotency_key": key,
        "definition_id": "invoices.render",
        **fields,
    }


def claiming(**fields: Any) -> dict[str, Any]:
    """Return the body of a claim."""
    return {"worker_id": "w-1", "capabilities": [], "lease_ms": 60_000, **fields}


def fence(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the fence of a claim, as a body has it."""
    return {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
