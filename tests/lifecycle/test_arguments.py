"""The bounds of section 1 of the contract, and the refusals of section 4 that need no record."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import itertools
import math
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from workloads.contract import (
    AdmissionRequest,
    Backoff,
    Dependency,
    Effect,
    Fence,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import WORKLOAD_INVALID, WorkloadError
from workloads.lifecycle import arguments
from workloads.lifecycle.canonical import workload_id

UTC = dt.UTC
MAX32 = 2_147_483_647
CENTURY = 3_155_760_000_000


def details_of(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(WorkloadError) as caught:
        call()
    assert caught.value.code == WORKLOAD_INVALID
    assert caught.value.details is not None
    return caught.value.details


def field_of(call: Callable[[], object]) -> str:
    details = details_of(call)
    assert set(details) == {"field"}
    field = details["field"]
    assert isinstance(field, str)
    return field


class Name(enum.StrEnum):
    ONE = "one"


class Number(enum.IntEnum):
    FIVE = 5


GOOD_IDENTIFIERS = [
    "a",
    "a" * 200,
    "\U0001f600" * 200,
    "a b",
    "a@b",
    "é",
    "e\u0301",
    "\u200b",
    "\u00ad",
    "0",
    "secret://x",
    "<script>",
    "'\"; --",
]
CONTROLS = [chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) == "Cc"]
SPACES = [chr(point) for point in range(0x110000) if chr(point).isspace()]
NOT_STRINGS: list[Any] = [None, 1, True, 1.5, b"a", ["a"], {"a": 1}, object()]
BAD_IDENTIFIERS: list[Any] = [
    *NOT_STRINGS,
    "",
    "a" * 201,
    "\U0001f600" * 201,
    *[f"a{control}b" for control in CONTROLS],
    *[space + "a" for space in SPACES],
    *["a" + space for space in SPACES],
    *SPACES,
    "a\ud800",
    "\udfffa",
    "\ud83d\ude00",
]


def name_of(value: Any) -> str:
    return ascii(value)[:24]


def test_control_characters_are_c0_del_and_c1() -> None:
    assert [ord(control) for control in CONTROLS] == [*range(0x20), *range(0x7F, 0xA0)]


@pytest.mark.parametrize("value", GOOD_IDENTIFIERS, ids=name_of)
def test_identifiers_pass_as_they_are(value: str) -> None:
    assert arguments.identifier(value, "actor") == value
    assert arguments.optional_identifier(value, "actor") == value
    assert arguments.is_identifier(value)


@pytest.mark.parametrize("value", BAD_IDENTIFIERS, ids=name_of)
def test_other_values_are_no_identifiers(value: Any) -> None:
    assert field_of(lambda: arguments.identifier(value, "worker_id")) == "worker_id"
    assert not arguments.is_identifier(value)
    if value is not None:
        assert field_of(lambda: arguments.optional_identifier(value, "key")) == "key"


def test_white_space_inside_an_identifier_passes() -> None:
    for space in SPACES:
        if space not in CONTROLS:
            assert arguments.identifier(f"a{space}b", "kind") == f"a{space}b"


def test_an_optional_identifier_may_be_none() -> None:
    assert arguments.optional_identifier(None, "request_id") is None


def test_string_enums_become_plain_strings() -> None:
    assert type(arguments.identifier(Name.ONE, "kind")) is str
    assert type(arguments.reason(Name.ONE)) is str


@given(st.text(st.characters(categories=["L", "N", "Z", "C", "P", "S", "M"]), max_size=6))
def test_an_identifier_is_what_the_contract_says(value: str) -> None:
    allowed = (
        1 <= len(value) <= 200
        and value == value.strip()
        and all(unicodedata.category(char) not in ("Cc", "Cs") for char in value)
    )
    assert arguments.is_identifier(value) is allowed


def test_definitions_hold_no_at() -> None:
    assert arguments.definition("files.checksum", "definition_id") == "files.checksum"
    for value in ("a@b", "@", "a@", "", " a", None):
        assert field_of(lambda value=value: arguments.definition(value, "definition_revision")) == "definition_revision"


@pytest.mark.parametrize("value", [["a"], ("a",), {"a"}, frozenset({"a"}), ["a", "a"], {"a": 1}.keys()])
def test_a_set_is_given_as_any_iterable(value: Any) -> None:
    assert arguments.identifiers(value, "capabilities") == frozenset({"a"})
    assert arguments.identifiers(iter(value), "capabilities") == frozenset({"a"})
    assert arguments.identifiers((member for member in value), "capabilities") == frozenset({"a"})


@pytest.mark.parametrize(
    "value", [None, "a", "", b"a", bytearray(b"a"), {}, {"a": 1}, 1, object(), ["a", ""], ["a", None], [["a"]], [b"a"]]
)
def test_what_is_no_set_of_identifiers_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.identifiers(value, "secret_references")) == "secret_references"


def test_a_set_has_at_most_100_members_counted_once_each() -> None:
    hundred = [f"m{number}" for number in range(100)]
    assert arguments.identifiers(hundred * 2, "capabilities") == frozenset(hundred)
    assert field_of(lambda: arguments.identifiers([*hundred, "x"], "capabilities")) == "capabilities"
    endless = (str(number) for number in itertools.count())
    assert field_of(lambda: arguments.identifiers(endless, "capabilities")) == "capabilities"
    assert field_of(lambda: arguments.identifiers(["a", "b"], "few", limit=1)) == "few"
    assert arguments.identifiers([], "capabilities") == frozenset()


def test_definitions_are_ids_or_ids_with_a_revision() -> None:
    assert arguments.definitions(None) is None
    assert arguments.definitions([]) == frozenset()
    assert arguments.definitions(["a", "a@1", "a@1", "b c@x y"]) == frozenset({"a", "a@1", "b c@x y"})
    longest = "a" * 200 + "@" + "b" * 200
    assert arguments.definitions((longest,)) == frozenset({longest})


@pytest.mark.parametrize(
    "value",
    [
        *["a", b"a", {}, {"a": "1"}, 1, False, [""], ["@"], ["a@"], ["@1"], ["a@1@2"], ["a@@1"], [" a"], ["a @1"]],
        *[["a@ 1"], ["a@1 "], [None], [("a", "1")], ["a" * 201], ["a@" + "1" * 201], ["a\0"]],
        [f"d{number}" for number in range(101)],
    ],
    ids=name_of,
)
def test_any_other_definitions_are_refused(value: Any) -> None:
    assert field_of(lambda: arguments.definitions(value)) == "definitions"


NOT_INTEGERS: list[Any] = [None, True, False, 1.0, math.nan, "1", b"1", [1], decimal.Decimal(1), fractions.Fraction(1)]


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
def test_what_is_no_integer_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.integer(value, "lease_ms", 0, 5)) == "lease_ms"
    assert field_of(lambda: arguments.count32(value, "schema_version")) == "schema_version"
    assert field_of(lambda: arguments.priority(value)) == "priority"
    assert field_of(lambda: arguments.duration_ms(value, "extend_ms")) == "extend_ms"
    assert field_of(lambda: arguments.limit(value)) == "limit"
    if value is not None:
        assert field_of(lambda: arguments.optional_limit(value)) == "limit"
        assert field_of(lambda: arguments.retry_after_ms(value)) == "retry_after_ms"


def integer_1_to_5(value: object) -> int:
    return arguments.integer(value, "x", 1, 5)


@pytest.mark.parametrize(
    ("check", "low", "high"),
    [
        (integer_1_to_5, 1, 5),
        (lambda value: arguments.count32(value, "x"), 0, MAX32),
        (lambda value: arguments.count32(value, "x", 1), 1, MAX32),
        (lambda value: arguments.priority(value, "x"), -MAX32 - 1, MAX32),
        (lambda value: arguments.duration_ms(value, "x"), 0, CENTURY),
        (lambda value: arguments.duration_ms(value, "x", 1, 86_400_000), 1, 86_400_000),
    ],
)
def test_integers_lie_within_their_bounds(check: Callable[[object], int], low: int, high: int) -> None:
    assert check(low) == low
    assert check(high) == high
    assert field_of(lambda: check(low - 1)) == "x"
    assert field_of(lambda: check(high + 1)) == "x"
    assert field_of(lambda: check(10**5000)) == "x"


def test_integer_enums_become_plain_integers() -> None:
    assert type(integer_1_to_5(Number.FIVE)) is int


def test_retry_after_has_no_upper_bound() -> None:
    assert arguments.retry_after_ms(None) is None
    assert arguments.retry_after_ms(0) == 0
    assert arguments.retry_after_ms(10**5000) == 10**5000
    assert field_of(lambda: arguments.retry_after_ms(-1)) == "retry_after_ms"


def test_limits_are_at_least_1() -> None:
    assert arguments.limit(1) == 1
    assert arguments.limit(10**30) == MAX32
    assert arguments.optional_limit(None) is None
    assert arguments.optional_limit(7) == 7
    assert field_of(lambda: arguments.limit(0)) == "limit"
    assert field_of(lambda: arguments.limit(-1)) == "limit"
    assert field_of(lambda: arguments.optional_limit(0)) == "limit"
    assert field_of(lambda: arguments.optional_limit(0, "pages")) == "pages"


def test_booleans_are_nothing_else() -> None:
    assert arguments.boolean(True, "force") is True
    assert arguments.boolean(False, "force") is False
    for value in (None, 0, 1, "true", "", [], 1.0):
        assert field_of(lambda value=value: arguments.boolean(value, "start")) == "start"


class FarZone(dt.tzinfo):
    """A zone whose instants at the ends of the calendar have no UTC."""

    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=-23)

    def dst(self, when: dt.datetime | None) -> None:
        return None

    def tzname(self, when: dt.datetime | None) -> str:
        return "far"


class Clueless(FarZone):
    """A zone that does not say how far it is from UTC: its instants are naive."""

    def utcoffset(self, when: dt.datetime | None) -> None:  # type: ignore[override]
        return None


EAST = dt.timezone(dt.timedelta(hours=14))
WEST = dt.timezone(dt.timedelta(hours=-12))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (dt.datetime(2000, 1, 1, tzinfo=UTC), dt.datetime(2000, 1, 1, tzinfo=UTC)),
        (dt.datetime(2899, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),) * 2,
        (dt.datetime(2000, 1, 1, 14, tzinfo=EAST), dt.datetime(2000, 1, 1, tzinfo=UTC)),
        (dt.datetime(1999, 12, 31, 12, tzinfo=WEST), dt.datetime(2000, 1, 1, tzinfo=UTC)),
        (dt.datetime(2900, 1, 1, 13, tzinfo=EAST), dt.datetime(2899, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_instants_come_back_in_utc(value: dt.datetime, expected: dt.datetime) -> None:
    for at in (arguments.instant(value, "not_before"), arguments.now(value)):
        assert at == expected
        assert at is not None
        assert at.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        dt.datetime(2900, 1, 1, tzinfo=UTC),
        dt.datetime(2000, 1, 1, 13, tzinfo=EAST),
        dt.datetime(2899, 12, 31, 12, tzinfo=WEST),
        dt.datetime(9999, 12, 31, 23, tzinfo=FarZone()),
        dt.datetime(1, 1, 1, tzinfo=EAST),
        dt.datetime(2026, 1, 1),
        dt.datetime(2026, 1, 1, tzinfo=Clueless()),
        dt.date(2026, 1, 1),
        "2026-01-01T00:00:00Z",
        1_767_225_600,
        False,
    ],
    ids=repr,
)
def test_naive_and_far_instants_and_other_values_are_refused(value: Any) -> None:
    assert field_of(lambda: arguments.instant(value, "before")) == "before"
    assert field_of(lambda: arguments.now(value)) == "now"


def test_now_may_be_left_to_the_database() -> None:
    assert arguments.now(None) is None
    assert field_of(lambda: arguments.instant(None, "before")) == "before"


def test_reasons_are_text_of_at_most_2000_characters() -> None:
    for value in ("", " ", "é" * 2_000, "two\nlines\t\x01", "\U0001f600" * 2_000):
        assert arguments.reason(value) == value
    for bad in ("a" * 2_001, "nul\0", "lone \ud800", *NOT_STRINGS):
        assert field_of(lambda bad=bad: arguments.reason(bad)) == "reason"
    assert field_of(lambda: arguments.reason(None, "note")) == "note"


MARK = "… [cut]"


@pytest.mark.parametrize(
    ("text", "limit", "mended"),
    [
        ("", 8, ""),
        ("as it is", 8, "as it is"),
        ("as it is!", 8, "a" + MARK),
        ("nul\0 and \ud800\udc00", 100, "nul\ufffd and \ufffd\ufffd"),
        ("\U0001f600é\n\x01", 100, "\U0001f600é\n\x01"),
        ("abcdefgh", 7, MARK),
        ("abcdefgh", 6, "abcdef"),
        ("abcdefgh", 1, "a"),
        ("abcdefgh", 0, ""),
        ("ab\0defgh", 3, "ab\ufffd"),
    ],
)
def test_error_texts_are_mended_and_cut(text: str, limit: int, mended: str) -> None:
    assert arguments.mend_error(text, limit) == mended


@given(st.text(st.characters(), max_size=30), st.integers(0, 40))
def test_a_mended_text_is_kept_and_stays(text: str, limit: int) -> None:
    mended = arguments.mend_error(text, limit)
    assert len(mended) <= limit
    assert "\0" not in mended
    mended.encode()
    assert arguments.mend_error(mended, limit) == mended


@pytest.mark.parametrize("value", NOT_STRINGS, ids=repr)
def test_an_error_that_is_no_text_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.mend_error(value, 10)) == "error"


def test_effects_are_given_as_members_or_values() -> None:
    assert arguments.effect(None) is None
    assert arguments.effect("none") is Effect.NONE
    assert arguments.effect(Effect.UNKNOWN) is Effect.UNKNOWN
    for value in ("", "NONE", "some", True, 0, ["none"]):
        assert field_of(lambda value=value: arguments.effect(value)) == "effect"


FENCE = Fence(workload_id="workload_x", claim_id="c", worker_id="w", fencing_token=1)


def test_a_fences_values_are_not_bounded() -> None:
    odd = Fence(workload_id="", claim_id="\0", worker_id=" \ud800" * 999, fencing_token=-(10**30))
    assert arguments.fence_types(odd) == odd
    assert arguments.fence_types(FENCE) == FENCE
    plain = arguments.fence_types(dataclasses.replace(FENCE, worker_id=Name.ONE, fencing_token=Number.FIVE))
    assert (type(plain.worker_id), type(plain.fencing_token)) == (str, int)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workload_id": None}, "fence.workload_id"),
        ({"claim_id": 1}, "fence.claim_id"),
        ({"worker_id": b"w"}, "fence.worker_id"),
        ({"fencing_token": "1"}, "fence.fencing_token"),
        ({"fencing_token": True}, "fence.fencing_token"),
        ({"fencing_token": 1.0}, "fence.fencing_token"),
        ({"fencing_token": None}, "fence.fencing_token"),
    ],
)
def test_a_fences_types_are_checked(change: dict[str, Any], field: str) -> None:
    assert field_of(lambda: arguments.fence_types(dataclasses.replace(FENCE, **change))) == field


@pytest.mark.parametrize("value", [None, {}, ("workload_x", "c", "w", 1), "fence"])
def test_what_is_no_fence_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.fence_types(value)) == "fence"


def test_the_default_policy_passes_in_one_form() -> None:
    policy = arguments.retry_policy(RetryPolicy())
    assert policy == RetryPolicy()
    assert policy.retry_on == frozenset({"timeout", "transient_connection", "worker_failure"})


def test_a_policy_comes_back_in_one_form() -> None:
    given_policy = RetryPolicy(
        max_attempts=MAX32,
        backoff="FIXED",  # type: ignore[arg-type]
        initial_delay_ms=0,
        max_delay_ms=CENTURY,
        jitter=1,
        retry_on=["b", "a", "a"],
    )
    policy = arguments.retry_policy(given_policy)
    assert policy == RetryPolicy(
        max_attempts=MAX32,
        backoff=Backoff.FIXED,
        initial_delay_ms=0,
        max_delay_ms=CENTURY,
        jitter=1.0,
        retry_on=frozenset({"a", "b"}),
    )
    assert policy.backoff is Backoff.FIXED
    assert type(policy.jitter) is float
    assert type(policy.retry_on) is frozenset
    assert math.copysign(1, arguments.retry_policy(RetryPolicy(jitter=-0.0)).jitter) == 1
    assert arguments.retry_policy(RetryPolicy(retry_on=())).retry_on == frozenset()
    assert arguments.retry_policy(RetryPolicy(max_attempts=1)).max_attempts == 1


BAD_POLICIES: list[tuple[str, list[Any]]] = [
    ("max_attempts", [0, -1, MAX32 + 1, True, "3", None, 3.0]),
    ("backoff", ["fixed", "", "LINEAR", None, 1, ["FIXED"]]),
    ("initial_delay_ms", [-1, CENTURY + 1, None, 1.0, True]),
    ("max_delay_ms", [-1, CENTURY + 1, None, 1.0, True]),
    ("jitter", [-0.1, 1.1, -1, 2, math.nan, math.inf, -math.inf, 10**400, True, False, "0", None, decimal.Decimal(0)]),
    ("retry_on", ["timeout", None, {"timeout": 1}, [""], [None], [f"k{number}" for number in range(101)]]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_POLICIES for value in values], ids=name_of
)
def test_a_bad_policy_names_its_field(name: str, value: Any) -> None:
    policy = RetryPolicy(**{name: value})
    assert field_of(lambda: arguments.retry_policy(policy)) == f"retry_policy.{name}"


@pytest.mark.parametrize("value", [None, {}, "", Timeouts()])
def test_what_is_no_policy_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.retry_policy(value)) == "retry_policy"


TIMEOUTS = [field.name for field in dataclasses.fields(Timeouts)]


@pytest.mark.parametrize("name", TIMEOUTS)
def test_a_timeout_is_none_or_at_least_1(name: str) -> None:
    for good in (None, 1, CENTURY):
        given_timeouts = Timeouts(**{name: good})
        assert arguments.timeouts(given_timeouts) == given_timeouts
    for bad in (0, -1, CENTURY + 1, True, 1.0, "1"):
        assert field_of(lambda bad=bad: arguments.timeouts(Timeouts(**{name: bad}))) == f"timeouts.{name}"


@pytest.mark.parametrize("value", [None, {}, 1, RetryPolicy()])
def test_what_are_no_timeouts_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.timeouts(value)) == "timeouts"


def needs(id_: Any, state: Any = WorkloadState.SUCCEEDED) -> Dependency:
    return Dependency(workload_id=id_, required_state=state)


def test_dependencies_come_back_sorted_and_once_each() -> None:
    given_dependencies = [needs("b"), needs("a", "CANCELLED"), needs("b", "SUCCEEDED"), needs("c", "DEAD_LETTER")]
    expected = (
        needs("a", WorkloadState.CANCELLED),
        needs("b", WorkloadState.SUCCEEDED),
        needs("c", WorkloadState.DEAD_LETTER),
    )
    for value in (
        given_dependencies,
        tuple(given_dependencies),
        iter(given_dependencies),
        frozenset(given_dependencies),
    ):
        found = arguments.dependencies(value, "own")
        assert found == expected
        assert all(type(dependency.required_state) is WorkloadState for dependency in found)
    assert arguments.dependencies((), "own") == ()


def test_there_are_at_most_100_dependencies_counted_once_each() -> None:
    hundred = [needs(f"w{number:03}") for number in range(100)]
    assert arguments.dependencies(hundred * 2, "own") == tuple(hundred)
    assert field_of(lambda: arguments.dependencies([*hundred, needs("x")], "own")) == "dependencies"


ALLOWED = {"SUCCEEDED", "CANCELLED", "DEAD_LETTER"}


@pytest.mark.parametrize("state", list(WorkloadState))
def test_a_required_state_is_one_of_three(state: WorkloadState) -> None:
    if state in ALLOWED:
        assert arguments.dependencies([needs("a", state)], "own") == (needs("a", state),)
    else:
        assert field_of(lambda: arguments.dependencies([needs("a", state)], "own")) == "dependencies"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a",
        {},
        {"a": "SUCCEEDED"},
        1,
        needs("a"),
        ["a"],
        [("a", "SUCCEEDED")],
        [{"workload_id": "a"}],
        [None],
        [needs("")],
        [needs(None)],
        [needs(" a")],
        [needs("a" * 201)],
        [needs("a\0")],
        [needs("a", None)],
        [needs("a", "succeeded")],
        [needs("a", ["SUCCEEDED"])],
        [needs("a"), needs("a", WorkloadState.CANCELLED)],
    ],
    ids=name_of,
)
def test_bad_dependencies_are_refused(value: Any) -> None:
    assert field_of(lambda: arguments.dependencies(value, "own")) == "dependencies"


def test_a_dependency_on_itself_is_a_cycle() -> None:
    details = details_of(lambda: arguments.dependencies([needs("a"), needs("own")], "own"))
    assert details == {"field": "dependencies", "cycle": ["own"]}


def request(**changes: Any) -> AdmissionRequest:
    values: dict[str, Any] = {
        "tenant_id": "t",
        "application_id": "a",
        "requested_by": "r",
        "idempotency_key": "k",
        "definition_id": "d",
    }
    return AdmissionRequest(**(values | changes))


def test_the_defaults_are_those_of_the_contract() -> None:
    assert arguments.admission(request()) == AdmissionRequest(
        tenant_id="t",
        application_id="a",
        requested_by="r",
        idempotency_key="k",
        definition_id="d",
        definition_revision="1",
        environment="production",
        input=None,
        capability_snapshot=frozenset(),
        connection_scopes=frozenset(),
        priority=0,
        retry_policy=RetryPolicy(
            max_attempts=3,
            backoff=Backoff.EXPONENTIAL,
            initial_delay_ms=1_000,
            max_delay_ms=60_000,
            jitter=0.0,
            retry_on=frozenset({"timeout", "transient_connection", "worker_failure"}),
        ),
        timeouts=Timeouts(),
        dependencies=(),
        not_before=None,
        trigger="",
        session_id=None,
        grant=None,
    )


def test_a_request_comes_back_in_one_form() -> None:
    payload = {"bad": b"for canonical to judge"}
    found = arguments.admission(
        request(
            definition_id="d",
            definition_revision="2",
            environment="staging",
            input=payload,
            capability_snapshot=iter(["b", "a"]),
            connection_scopes=["s", "s"],
            priority=-5,
            retry_policy=RetryPolicy(jitter=1, retry_on=["x"]),
            timeouts=Timeouts(queue_ms=5),
            dependencies=[needs("b"), needs("a", "CANCELLED"), needs("b")],
            not_before=dt.datetime(2026, 1, 1, 14, tzinfo=EAST),
            trigger="cron",
            session_id="session",
            grant="signed",
        )
    )
    assert found == request(
        definition_revision="2",
        environment="staging",
        input=payload,
        capability_snapshot=frozenset({"a", "b"}),
        connection_scopes=frozenset({"s"}),
        priority=-5,
        retry_policy=RetryPolicy(jitter=1.0, retry_on=frozenset({"x"})),
        timeouts=Timeouts(queue_ms=5),
        dependencies=(needs("a", WorkloadState.CANCELLED), needs("b")),
        not_before=dt.datetime(2026, 1, 1, tzinfo=UTC),
        trigger="cron",
        session_id="session",
        grant="signed",
    )
    assert found.input is payload
    assert found.not_before is not None
    assert found.not_before.tzinfo is UTC


BAD_REQUESTS: list[tuple[str, list[Any]]] = [
    ("tenant_id", [None, "", " t", "t" * 201, "t\0", 1]),
    ("application_id", [None, "", "a\n"]),
    ("requested_by", [None, "", "r\x7f"]),
    ("idempotency_key", [None, "", "k\ud800"]),
    ("definition_id", [None, "", "a@b"]),
    ("definition_revision", [None, "", "1@2", 1]),
    ("environment", [None, "", " "]),
    ("capability_snapshot", [None, "a", [""], [f"c{number}" for number in range(101)]]),
    ("connection_scopes", [None, "a", {"a": 1}, [f"s{number}" for number in range(101)]]),
    ("priority", [None, True, 1.0, MAX32 + 1, -MAX32 - 2]),
    ("retry_policy", [None, {}]),
    ("timeouts", [None, {}]),
    ("dependencies", [None, "a", [needs("a", "READY")]]),
    ("not_before", [dt.datetime(2026, 1, 1), "2026-01-01", dt.datetime(1999, 1, 1, tzinfo=UTC)]),
    ("trigger", [None, " ", "a\n", "t" * 201, 1]),
    ("session_id", ["", " s", 1]),
    ("grant", [1, b"grant", ["g"]]),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_REQUESTS for value in values], ids=name_of
)
def test_a_bad_request_names_its_field(name: str, value: Any) -> None:
    assert field_of(lambda: arguments.admission(request(**{name: value}))) == name


def test_every_field_is_checked_but_the_input() -> None:
    checked = {name for name, _ in BAD_REQUESTS}
    assert {field.name for field in dataclasses.fields(AdmissionRequest)} - checked == {"input"}


def test_the_first_bad_field_in_order_is_named() -> None:
    order = [name for name, _ in BAD_REQUESTS]
    bad = {name: values[0] for name, values in BAD_REQUESTS}
    for at, name in enumerate(order):
        changes = {later: bad[later] for later in order[at:]}
        assert field_of(lambda changes=changes: arguments.admission(request(**changes))) == name


def test_policies_name_their_fields_inside_a_request() -> None:
    bad_policy = request(retry_policy=RetryPolicy(max_attempts=0))
    assert field_of(lambda: arguments.admission(bad_policy)) == "retry_policy.max_attempts"
    bad_timeouts = request(timeouts=Timeouts(claim_ms=0))
    assert field_of(lambda: arguments.admission(bad_timeouts)) == "timeouts.claim_ms"


def test_a_request_that_depends_on_itself_is_refused() -> None:
    own = workload_id("t", "a", "r", "k")
    details = details_of(lambda: arguments.admission(request(dependencies=[needs(own)])))
    assert details == {"field": "dependencies", "cycle": [own]}


@pytest.mark.parametrize("value", [None, {}, "request", Timeouts()])
def test_what_is_no_request_is_refused(value: Any) -> None:
    assert field_of(lambda: arguments.admission(value)) == "request"
