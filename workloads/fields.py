"""Column types that keep a value as canonical text, and read it back as the contract's value.

The database's own JSON types are not used: MariaDB refuses deep values and rewrites numbers (section 1, "JSON").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import models

from workloads.contract import Backoff, RetryPolicy, Timeouts

if TYPE_CHECKING:
    _Text = models.TextField[Any, Any]
else:
    _Text = models.TextField


class CanonicalText(str):
    """Text that is canonical JSON already, so that a field stores it as it stands."""

    __slots__ = ()


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


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


class StringSetField(JSONTextField):
    """A set of strings; reads as a frozenset."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> frozenset[str] | None:
        return None if value is None else frozenset(json.loads(value))

    def get_prep_value(self, value: Any) -> str | None:
        if value is None or isinstance(value, CanonicalText):
            return super().get_prep_value(value)
        return _dump(sorted(value))


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


class RetryPolicyField(JSONTextField):
    """A retry policy; reads as the dataclass."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> RetryPolicy | None:
        return None if value is None else policy_from_json(json.loads(value))

    def get_prep_value(self, value: Any) -> str | None:
        return super().get_prep_value(policy_to_json(value) if isinstance(value, RetryPolicy) else value)


class TimeoutsField(JSONTextField):
    """Timeouts; reads as the dataclass. Those that are not given are left out of the text."""

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Timeouts | None:
        return None if value is None else Timeouts(**json.loads(value))

    def get_prep_value(self, value: Any) -> str | None:
        if isinstance(value, Timeouts):
            value = {name: given for name in TIMEOUT_NAMES if (given := getattr(value, name)) is not None}
        return super().get_prep_value(value)
