"""The bounds of what is given to an operation: each value is refused, or comes back in the one form that rules read.

Section 1 of the contract ("Bounds"), and the refusals of section 4. Every refusal is WORKLOAD_INVALID with
`details.field`, dotted inside a policy. Nothing here looks at a record. JSON is checked in `canonical`, not here.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from workloads.contract import (
    DEFAULT_RETRY_ON,
    AdmissionRequest,
    Backoff,
    Dependency,
    Effect,
    Fence,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import invalid
from workloads.lifecycle.admission import cyclic
from workloads.lifecycle.canonical import workload_id
from workloads.lifecycle.deadlines import has_none

MAX_IDENTIFIER_CHARS: Final = 200
MAX_REASON_CHARS: Final = 2_000
MAX_MEMBERS: Final = 100
MAX_DURATION_MS: Final = 3_155_760_000_000
MIN_INT32: Final = -(2**31)
MAX_INT32: Final = 2**31 - 1
FIRST_YEAR: Final = 2000
LAST_YEAR: Final = 2899

REQUIRABLE_STATES: Final = frozenset({WorkloadState.SUCCEEDED, WorkloadState.CANCELLED, WorkloadState.DEAD_LETTER})

CUT_MARK: Final = "… [cut]"

# Requests leave these as they are, for the most part: what is known to be right is not checked again.
_DEFAULT_POLICY: Final = RetryPolicy()
_NO_TIMEOUTS: Final = Timeouts()
_COLLECTIONS: Final = (frozenset, tuple, set, list)

_UNKEPT: Final = re.compile("[\0\ud800-\udfff]")
_CONTROL_OR_SURROGATE: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


def string(value: object, field: str) -> str:
    """Return a string as a plain one. Members of string enums, and other kinds of string, are what they hold."""
    if not isinstance(value, str):
        raise invalid(field, "not a string")
    return str.__str__(value)


def boolean(value: object, field: str) -> bool:
    """Return a boolean; numbers are none."""
    if not isinstance(value, bool):
        raise invalid(field, "not a boolean")
    return value


def identifier(value: object, field: str) -> str:
    """Return an identifier: 1 to 200 characters, no control characters or lone surrogates, no white space at its ends.

    It is not normalised: identifiers are compared byte for byte.
    """
    # Nearly all are ASCII that prints, whose one white space is the blank: the closer look is for the others.
    if (
        type(value) is str
        and value.isascii()
        and value.isprintable()
        and 1 <= len(value) <= MAX_IDENTIFIER_CHARS
        and value[0] != " "
        and value[-1] != " "
    ):
        return value
    text = string(value, field)
    fault = _identifier_fault(text)
    if fault is not None:
        raise invalid(field, fault)
    return text


def is_identifier(value: object) -> bool:
    """Say whether a stored id can equal this value. What cannot names nothing, and no database need be asked."""
    return isinstance(value, str) and _identifier_fault(str.__str__(value)) is None


def _identifier_fault(text: str) -> str | None:
    if not 1 <= len(text) <= MAX_IDENTIFIER_CHARS:
        return f"not 1 to {MAX_IDENTIFIER_CHARS} characters"
    if _CONTROL_OR_SURROGATE.search(text):
        return "holds a control character or a lone surrogate"
    if text[0].isspace() or text[-1].isspace():
        return "begins or ends with white space"
    return None


def optional_identifier(value: object, field: str) -> str | None:
    """Return an identifier, or None where none is given."""
    return None if value is None else identifier(value, field)


def definition(value: object, field: str) -> str:
    """Return a definition's id or revision: an identifier without `@`."""
    text = identifier(value, field)
    if "@" in text:
        raise invalid(field, "holds an @")
    return text


def identifiers(value: object, field: str, limit: int = MAX_MEMBERS) -> frozenset[str]:
    """Return a set of at most `limit` identifiers, counted once each, from any iterable but a string or a mapping."""
    return _set_of(value, field, identifier, limit)


def definitions(value: object, field: str = "definitions") -> frozenset[str] | None:
    """Return the definitions asked for, each `id` or `id@revision`. None is any, an empty set is none."""
    return None if value is None else _set_of(value, field, _definition_name, MAX_MEMBERS)


def _definition_name(value: object, field: str) -> str:
    name, at, revision = string(value, field).partition("@")
    definition(name, field)
    if at:
        definition(revision, field)
    return name + at + revision


def _set_of(value: object, field: str, check: Callable[[object, str], str], limit: int) -> frozenset[str]:
    if _is_empty(value):
        return frozenset()
    members: set[str] = set()
    for member in _iterate(value, field):
        members.add(check(member, field))
        if len(members) > limit:
            raise invalid(field, f"more than {limit} members")
    return frozenset(members)


def _iterate(value: object, field: str) -> Iterator[object]:
    if type(value) in _COLLECTIONS:
        return iter(value)  # type: ignore[call-overload, no-any-return]
    # A string is an iterable of its characters and a mapping of its keys: given for a set, both are mistakes.
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise invalid(field, "not a set or list")
    return iter(value)


def _is_empty(value: object) -> bool:
    return type(value) in _COLLECTIONS and not value


def integer(value: object, field: str, low: int, high: int | None) -> int:
    """Return an integer from `low` to `high` (None: no upper bound). Booleans and floats are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(field, "not an integer")
    number = int.__int__(value)
    if number < low or (high is not None and number > high):
        raise invalid(field, f"not at least {low}" if high is None else f"not from {low} to {high}")
    return number


def count32(value: object, field: str, low: int = 0) -> int:
    """Return a count that fits 32 signed bits."""
    return integer(value, field, low, MAX_INT32)


def priority(value: object, field: str = "priority") -> int:
    """Return a priority: any integer of 32 signed bits."""
    return integer(value, field, MIN_INT32, MAX_INT32)


def duration_ms(value: object, field: str, low: int = 0, high: int = MAX_DURATION_MS) -> int:
    """Return a duration in milliseconds, at most a hundred years."""
    return integer(value, field, low, high)


def retry_after_ms(value: object, field: str = "retry_after_ms") -> int | None:
    """Return the delay that a failure asks for, in milliseconds, or None. It has no upper bound, since it is capped."""
    return None if value is None else integer(value, field, 0, None)


def limit(value: object, field: str = "limit") -> int:
    """Return how many are wanted, at least 1. What is past 32 bits is more than there is, and comes back as that."""
    return min(integer(value, field, 1, None), MAX_INT32)


def optional_limit(value: object, field: str = "limit") -> int | None:
    """Return how many are wanted, at least 1, or None for all."""
    return None if value is None else limit(value, field)


def instant(value: object, field: str) -> dt.datetime:
    """Return an instant in UTC, in the years 2000 to 2899 as UTC counts them. A naive one is refused."""
    if not isinstance(value, dt.datetime):
        raise invalid(field, "not a datetime")
    if value.utcoffset() is None:
        raise invalid(field, "has no time zone")
    try:
        at = value.astimezone(dt.UTC)
    except OverflowError:
        raise invalid(field, f"not in the years {FIRST_YEAR} to {LAST_YEAR}") from None
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise invalid(field, f"not in the years {FIRST_YEAR} to {LAST_YEAR}")
    return at


def now(value: object) -> dt.datetime | None:
    """Return the instant that the caller gives for now, or None, which is the database's clock."""
    return None if value is None else instant(value, "now")


def reason(value: object, field: str = "reason") -> str:
    """Return a reason: at most 2,000 characters, without NUL or lone surrogates. It may be empty."""
    text = string(value, field)
    if len(text) > MAX_REASON_CHARS:
        raise invalid(field, f"more than {MAX_REASON_CHARS} characters")
    if _UNKEPT.search(text):
        raise invalid(field, "holds a NUL character or a lone surrogate")
    return text


def mend_error(value: object, limit: int, field: str = "error") -> str:
    """Return an error text that every database keeps, in at most `limit` characters.

    NULs and lone surrogates become U+FFFD; what is too long is cut and marked, the mark counted in, or cut alone where
    the mark has no room. A text that was mended once stays as it is. Look for secrets before this: a cut one is
    harder to know.
    """
    text = _UNKEPT.sub("\N{REPLACEMENT CHARACTER}", string(value, field))
    if len(text) <= limit:
        return text
    if limit < len(CUT_MARK):
        return text[: max(limit, 0)]
    return text[: limit - len(CUT_MARK)] + CUT_MARK


def effect(value: object, field: str = "effect") -> Effect | None:
    """Return what a failed attempt says it did to the world: an Effect or its value, or None where it does not say."""
    if value is None:
        return None
    try:
        return Effect(string(value, field))
    except ValueError:
        raise invalid(field, "not one of none, unknown") from None


def fence_types(value: object, field: str = "fence") -> Fence:
    """Return a fence whose values have the right types. They are compared later, and not bounded here."""
    if not isinstance(value, Fence):
        raise invalid(field, "not a Fence")
    if (
        type(value) is Fence
        and type(value.workload_id) is str
        and type(value.claim_id) is str
        and type(value.worker_id) is str
        and type(value.fencing_token) is int
    ):
        return value
    if isinstance(value.fencing_token, bool) or not isinstance(value.fencing_token, int):
        raise invalid(f"{field}.fencing_token", "not an integer")
    return Fence(
        workload_id=string(value.workload_id, f"{field}.workload_id"),
        claim_id=string(value.claim_id, f"{field}.claim_id"),
        worker_id=string(value.worker_id, f"{field}.worker_id"),
        fencing_token=int.__int__(value.fencing_token),
    )


def retry_policy(value: object, field: str = "retry_policy") -> RetryPolicy:
    """Return a retry policy with `backoff` an enum member, `jitter` a float and `retry_on` a frozenset."""
    if not isinstance(value, RetryPolicy):
        raise invalid(field, "not a RetryPolicy")
    # By identity: what is merely equal to a default, as True is to 1, need not be in the one form.
    default = _DEFAULT_POLICY
    if (
        value.max_attempts is default.max_attempts
        and value.backoff is default.backoff
        and value.initial_delay_ms is default.initial_delay_ms
        and value.max_delay_ms is default.max_delay_ms
        and value.jitter is default.jitter
        and value.retry_on is default.retry_on
    ):
        return default
    return RetryPolicy(
        max_attempts=count32(value.max_attempts, f"{field}.max_attempts", 1),
        backoff=_backoff(value.backoff, f"{field}.backoff"),
        initial_delay_ms=duration_ms(value.initial_delay_ms, f"{field}.initial_delay_ms"),
        max_delay_ms=duration_ms(value.max_delay_ms, f"{field}.max_delay_ms"),
        jitter=_share(value.jitter, f"{field}.jitter"),
        retry_on=DEFAULT_RETRY_ON
        if value.retry_on is DEFAULT_RETRY_ON
        else identifiers(value.retry_on, f"{field}.retry_on"),
    )


def _backoff(value: object, field: str) -> Backoff:
    if isinstance(value, Backoff):
        return value
    try:
        return Backoff(string(value, field))
    except ValueError:
        raise invalid(field, "not one of FIXED, EXPONENTIAL") from None


def _share(value: object, field: str) -> float:
    # Written so that NaN, which is neither below 0 nor above 1, is refused; and -0.0 comes back as 0.0.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise invalid(field, "not a number from 0 to 1")
    return float(value) + 0.0


def timeouts(value: object, field: str = "timeouts") -> Timeouts:
    """Return timeouts, each None or at least 1 ms."""
    if not isinstance(value, Timeouts):
        raise invalid(field, "not Timeouts")
    if has_none(value):
        return _NO_TIMEOUTS

    def bounded(name: str) -> int | None:
        given = getattr(value, name)
        return None if given is None else duration_ms(given, f"{field}.{name}", 1)

    return Timeouts(
        overall_ms=bounded("overall_ms"),
        queue_ms=bounded("queue_ms"),
        claim_ms=bounded("claim_ms"),
        execution_ms=bounded("execution_ms"),
        heartbeat_ms=bounded("heartbeat_ms"),
    )


def dependencies(value: object, own_id: str, field: str = "dependencies") -> tuple[Dependency, ...]:
    """Return dependencies in the order of their ids, each once; at most 100.

    Refused: a `required_state` that is not SUCCEEDED, CANCELLED or DEAD_LETTER (members or their values); one id with
    two required states; and `own_id`, the id that this admission will have, with that id as `details.cycle`.
    """
    required: dict[str, WorkloadState] = {}
    for given in _iterate(value, field):
        if not isinstance(given, Dependency):
            raise invalid(field, "a member is not a Dependency")
        id_ = identifier(given.workload_id, field)
        state = _required_state(given.required_state, field)
        if id_ == own_id:
            raise cyclic([own_id])
        if required.setdefault(id_, state) is not state:
            raise invalid(field, "one workload is required in two states")
        if len(required) > MAX_MEMBERS:
            raise invalid(field, f"more than {MAX_MEMBERS} members")
    return tuple(Dependency(workload_id=id_, required_state=required[id_]) for id_ in sorted(required))


def _required_state(value: object, field: str) -> WorkloadState:
    text = string(value, field)
    for state in REQUIRABLE_STATES:
        if text == state.value:
            return state
    raise invalid(field, "a required_state is not one of SUCCEEDED, CANCELLED, DEAD_LETTER")


def admission(request: object) -> AdmissionRequest:
    """Return the request with every argument but its input checked, in the order of its fields, and in one form.

    None is refused for what has another default. The input is returned as given, for `canonical` to judge. A grant is
    only known to be a string: whether it holds is the authority's to verify.
    """
    if not isinstance(request, AdmissionRequest):
        raise invalid("request", "not an AdmissionRequest")
    tenant_id = identifier(request.tenant_id, "tenant_id")
    application_id = identifier(request.application_id, "application_id")
    requested_by = identifier(request.requested_by, "requested_by")
    idempotency_key = identifier(request.idempotency_key, "idempotency_key")
    # Only what depends on other work can depend on itself.
    is_free = _is_empty(request.dependencies)
    own_id = "" if is_free else workload_id(tenant_id, application_id, requested_by, idempotency_key)
    return AdmissionRequest(
        tenant_id=tenant_id,
        application_id=application_id,
        requested_by=requested_by,
        idempotency_key=idempotency_key,
        definition_id=definition(request.definition_id, "definition_id"),
        definition_revision=definition(request.definition_revision, "definition_revision"),
        environment=identifier(request.environment, "environment"),
        input=request.input,
        capability_snapshot=identifiers(request.capability_snapshot, "capability_snapshot"),
        connection_scopes=identifiers(request.connection_scopes, "connection_scopes"),
        priority=priority(request.priority),
        retry_policy=retry_policy(request.retry_policy),
        timeouts=timeouts(request.timeouts),
        dependencies=() if is_free else dependencies(request.dependencies, own_id),
        not_before=None if request.not_before is None else instant(request.not_before, "not_before"),
        trigger="" if string(request.trigger, "trigger") == "" else identifier(request.trigger, "trigger"),
        session_id=optional_identifier(request.session_id, "session_id"),
        grant=None if request.grant is None else string(request.grant, "grant"),
    )
