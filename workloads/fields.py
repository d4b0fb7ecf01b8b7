"""Column types that keep a value as canonical text, and read it back as the contract's value.

The database's own JSON types are not used: MariaDB refuses deep values and rewrites numbers (section 1, "JSON").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from django.db import models

from workloads.contract import Backoff, RetryPolicy, Timeouts

if TYPE_CHECKING:
    _Text = models.TextField[Any, Any]
else:
    _Text = models.TextField


READ_BEFORE: Final = 1_024


class CanonicalText(str):
    """Text that is canonical JSON already, so that a field stores it as it stands."""

    __slots__ = ()


_dump: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


class JSONTextField(_Text):
    """A JSON value kept as canonical text."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> str | None:
        if value is None and self.null:
            return None
        return str(value) if isinstance(value, CanonicalText) else _dump(value)

    def value_to_string(self, obj: models.Model) -> str:
        return _dump(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, CanonicalText) else value


# The same few texts stand in very many rows, and what they say can't be changed, so each is read once.


@lru_cache(maxsize=READ_BEFORE)
def _read_set(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


@lru_cache(maxsize=READ_BEFORE)
def _read_policy(text: str) -> RetryPolicy:
    return policy_from_json(json.loads(text))


@lru_cache(maxsize=READ_BEFORE)
def _read_timeouts(text: str) -> Timeouts:
    return Timeouts(**json.loads(text))


class StringSetField(JSONTextField):
    """A set of strings; reads as a frozenset."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> frozenset[str] | None:
        return None if value is None else _read_set(value)

    def get_prep_value(self, value: Any) -> str | None:
        if value is None or isinstance(value, CanonicalText):
            return super().get_prep_value(value)
        return "[]" if value == frozenset() else _dump(sorted(value))


def policy_to_json(policy: RetryPolicy) -> dict[str, Any]:
    """Return the policy as a JSON object, its set sorted."""
    return {
        "max_attempts": policy.max_attempts,
        "backoff": str(policy.backoff),
        "initial_delay_ms": policy.initial_delay_ms,
        "max_delay_ms": policy.max_delay_ms,
        "jitter": policy.jitter,
        "retry_on": sorted(policy.retry_on),
    }


def policy_from_json(data: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that `policy_to_json` wrote."""
    return RetryPolicy(
        max_attempts=data["max_attempts"],
        backoff=Backoff(data["backoff"]),
        initial_delay_ms=data["initial_delay_ms"],
        max_delay_ms=data["max_delay_ms"],
        jitter=float(data["jitter"]),
        retry_on=frozenset(data["retry_on"]),
    )


TIMEOUT_NAMES = ("overall_ms", "queue_ms", "claim_ms", "execution_ms", "heartbeat_ms")


_DEFAULT_POLICY: Final = RetryPolicy()
_DEFAULT_POLICY_TEXT: Final = _dump(policy_to_json(_DEFAULT_POLICY))


def _is_default(policy: RetryPolicy) -> bool:
    # By identity: what is merely equal, as True is to 1 and -0.0 to 0.0, has another text.
    default = _DEFAULT_POLICY
    return (
        policy.max_attempts is default.max_attempts
        and policy.backoff is default.backoff
        and policy.initial_delay_ms is default.initial_delay_ms
        and policy.max_delay_ms is default.max_delay_ms
        and policy.jitter is default.jitter
        and policy.retry_on is default.retry_on
    )


class RetryPolicyField(JSONTextField):
    """A retry policy; reads as the dataclass."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> RetryPolicy | None:
        return None if value is None else _read_policy(value)

    def get_prep_value(self, value: Any) -> str | None:
        if isinstance(value, RetryPolicy):
            return _DEFAULT_POLICY_TEXT if _is_default(value) else _dump(policy_to_json(value))
        return super().get_prep_value(value)


class TimeoutsField(JSONTextField):
    """Timeouts; reads as the dataclass. Those that are not given are left out of the text."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Timeouts | None:
        return None if value is None else _read_timeouts(value)

    def get_prep_value(self, value: Any) -> str | None:
        if isinstance(value, Timeouts):
            given = {name: ms for name in TIMEOUT_NAMES if (ms := getattr(value, name)) is not None}
            return _dump(given) if given else "{}"
        return super().get_prep_value(value)
