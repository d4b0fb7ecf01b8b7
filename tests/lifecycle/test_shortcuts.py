"""Where a rule takes a shorter way for what is common, both ways say the same: of generated values, and of odd ones."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import json
import re
import re._constants as codes
import re._parser as parser
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.lifecycle.builders import NOW, make
from tests.lifecycle.test_secrets import GITHUB, INNOCENT, SAMPLES
from workloads.contract import DEFAULT_RETRY_ON, AdmissionRequest, Backoff, Fence, RetryPolicy, Timeouts, WorkloadState
from workloads.errors import WorkloadError
from workloads.lifecycle import arguments, canonical, credentials, secrets
from workloads.lifecycle.decision import Draft
from workloads.lifecycle.states import TRANSITIONS, is_legal


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


class Mapped(dict[str, Any]):
    pass


# Canonical JSON

strings = st.text() | st.text(alphabet='a"\\/\0\n\x1f\x7fé\u2028\ud800\U0001f600', max_size=6) | st.just("\\u0000")
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**64), 10**300, Level.HIGH])
    # Python writes neither of them: it lets nobody see an example that holds one.
    | st.integers(4_299, 4_301).map(lambda digits: 10**digits)
    | st.floats()
    | st.integers(-100, 100).map(float)
    | strings
    | st.sampled_from([Colour.RED, Loud("soft"), b"", dt.UTC, {1}, -0.0, 1e22, 5e-324])
)
keys = strings | st.sampled_from([1, None, True, 0.5, Colour.RED, Loud("b"), "b", "a"])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=14)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(strings, inner, max_size=14)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(strings, inner, max_size=4).map(Mapped)
    )


values = st.recursive(scalars, containers, max_leaves=40)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(st.text(), inner, max_size=14),
    max_leaves=60,
)


def told(call: Any, *args: Any, **options: Any) -> Any:
    """Return what a call returns, or the refusal in full."""
    try:
        return call(*args, **options)
    except WorkloadError as refusal:
        return refusal.args


def carefully(value: Any) -> str:
    try:
        return canonical._text(value, 0)
    except canonical._Refusal as refusal:
        raise refusal.as_error("input") from None


@settings(max_examples=500)
@given(values | plain)
def test_the_encoder_writes_what_the_careful_way_does(value: Any) -> None:
    assert told(canonical.canonical, value, field="input") == told(carefully, value)


@given(plain, strings | scalars)
def test_one_odd_part_among_many_is_found(value: Any, odd: Any) -> None:
    crowd = [*range(canonical._FEW_PARTS), {"in": [value, {"here": odd}]}]
    assert told(canonical.canonical, crowd, field="input") == told(carefully, crowd)


@pytest.mark.parametrize("depth", range(62, 67))
@pytest.mark.parametrize("container", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}])
def test_depth_counts_the_same_both_ways(depth: int, container: Any) -> None:
    value: Any = list(range(canonical._FEW_PARTS))
    for _ in range(depth):
        value = container(value)
    assert told(canonical.canonical, value, field="input") == told(carefully, value)


def test_cycles_end_the_same_both_ways() -> None:
    cycle: list[Any] = list(range(canonical._FEW_PARTS))
    cycle.append({"again": cycle})
    assert told(canonical.canonical, cycle, field="input") == told(carefully, cycle)


def test_the_shorter_way_is_taken() -> None:
    common = {"order": {"id": "o-1", "lines": [{"sku": "a", "price": 10.5, "gift": False}] * 4}, "note": "Grüße"}
    assert canonical._plain_text(common) == carefully(common)
    for odd in ("nul\0", "lone \ud800", 1.0, 2**64, Colour.RED, Loud("x"), Mapped(), {1: 2}, float("nan")):
        assert canonical._plain_text([common, odd]) is None, odd


@given(st.lists(st.text(), min_size=4, max_size=4))
def test_a_scope_is_hashed_as_the_contract_has_it(scope: list[str]) -> None:
    said = json.dumps(scope, separators=(",", ":"), ensure_ascii=False)
    try:
        expected = "workload_" + canonical.digest(said)[:24]
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            canonical.workload_id(*scope)
    else:
        assert canonical.workload_id(*scope) == expected


ZONES = (
    dt.UTC,
    dt.timezone(dt.timedelta(0)),
    dt.timezone(dt.timedelta(hours=5, minutes=45)),
    dt.timezone(-dt.timedelta(1) / 3),
)


@given(st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)), st.sampled_from(ZONES))
def test_instants_are_written_the_same_in_every_zone(instant: dt.datetime, zone: dt.tzinfo) -> None:
    at = instant.replace(tzinfo=zone)
    utc = at.astimezone(dt.UTC).replace(tzinfo=None)
    assert canonical.iso(at) == utc.isoformat(timespec="microseconds") + "Z"


# Secrets


def first_secret(value: Any, *, patterns: bool, keyed: bool, excused: Any = ()) -> secrets.Secret | None:
    """Find what is first in document order, with no look ahead at all."""
    for text, steps, secret_key in secrets._strings(value):
        for rule in credentials.RULES if patterns else ():
            for _ in rule.spans(text):
                return secrets.Secret(secrets._path(steps), rule.name)
        if keyed and secret_key and text and text not in excused and not secrets.is_reference(text):
            return secrets.Secret(secrets._path(steps), secrets.NAMED_KEY)
    return None


samples = st.sampled_from([sample for _, sample in SAMPLES] + INNOCENT)
spaces = st.sampled_from(["", " ", "\n", "\t", "\x1c", "\x85", "\xa0", "\u3000", "x", "é", "-", "/", "İ"])
texts = (
    st.text(max_size=20)
    | samples
    | st.tuples(spaces, samples, spaces, st.text(max_size=5)).map("".join)
    | st.tuples(samples, st.integers(0, 60)).map(lambda cut: cut[0][: cut[1]])
    | st.tuples(samples, st.integers(0, 60)).map(lambda cut: cut[0][cut[1] :])
    | samples.map(str.swapcase)
)
names = st.sampled_from(["a", "password", "clientSecret", "api-key", "secret" * 20, "x" * 60 + "_secret"]) | st.text(
    max_size=4
)
judged = st.recursive(
    texts
    | st.none()
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.sampled_from([Colour.RED, Loud(GITHUB), dt.UTC]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names | texts, inner, max_size=5)
        | st.dictionaries(st.sampled_from([1, None, Loud("password"), Colour.RED]), inner, max_size=2)
        | st.dictionaries(names, inner, max_size=3).map(Mapped)
    ),
    max_leaves=12,
)


@settings(max_examples=1_500)
@given(judged)
def test_looking_ahead_finds_the_same_secrets(value: Any) -> None:
    assert secrets.find_secret(value, excused={"x"}) == first_secret(value, patterns=True, keyed=True, excused={"x"})
    assert secrets.find_keyed(value, excused={"x"}) == first_secret(value, patterns=False, keyed=True, excused={"x"})
    expected = first_secret(value, patterns=True, keyed=False)
    assert told(secrets.check_patterns, value, field="f") == told(secrets._refuse, expected, "f")


@settings(max_examples=1_000)
@given(st.lists(texts, max_size=6).map(" ".join))
def test_no_rule_that_finds_something_goes_unsuspected(text: str) -> None:
    finding = [rule for rule in credentials.RULES if list(rule.spans(text))]
    suspected = credentials.suspected(text)
    assert [rule for rule in suspected if rule in finding] == finding
    assert suspected == [rule for rule in credentials.RULES if rule in suspected]
    for rule in credentials.RULES:
        assert rule.is_in(["", text]) == (rule in finding)


def letters(tree: Any) -> Iterator[tuple[int, int]]:
    """Give the ranges of the letters that a parsed pattern can take up, what it looks at around them left out."""
    for code, said in tree:
        if code is codes.LITERAL:
            yield said, said
        elif code is codes.RANGE:
            yield said
        elif code is codes.CATEGORY:
            assert said is codes.CATEGORY_DIGIT
        elif code is codes.IN:
            yield from letters(said)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            yield from letters(said[2])
        elif code is codes.SUBPATTERN:
            yield from letters(said[3])
        elif code is codes.BRANCH:
            for branch in said[1]:
                yield from letters(branch)
        else:
            assert code in (codes.ASSERT, codes.ASSERT_NOT), code


@pytest.mark.parametrize("rule", credentials.RULES, ids=lambda rule: rule.name)
def test_what_is_too_short_for_a_rule_is_too_short_for_its_pattern(rule: credentials.Rule) -> None:
    tree = parser.parse(rule.pattern.pattern)
    assert tree.getwidth()[0] >= (credentials._LONG_WORD if rule.one_word else credentials._SHORTEST)
    if rule.one_word:
        found = list(letters(tree))
        assert found
        assert not any(chr(letter).isspace() for low, high in found for letter in range(low, high + 1))


@pytest.mark.parametrize(
    ("rule", "text"),
    [("jwt", "eyJ" + "abcdefgh.ab."), ("slack_token", "xoxb" + "-abcdefghij"), ("url_password", "a://" + ":b@")],
)
def test_the_shortest_of_all_is_found(rule: str, text: str) -> None:
    assert secrets.find_in_text(text) == rule
    assert secrets.find_in_text(text[:-1]) is None


@given(st.dictionaries(st.text(max_size=70) | names, st.none()))
def test_known_keys_name_what_they_name(mapping: dict[str, None]) -> None:
    for key in mapping:
        assert secrets._short_names_secret(key) == secrets.names_secret(key)


# Arguments

BAD_CHARACTER = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


EDGES = " ~!a\0\x7f\x80\x9f\xa0\xad\t\nüé\u2028\ud800"


def judge_identifier(text: str) -> None:
    fits = 1 <= len(text) <= 200 and not BAD_CHARACTER.search(text) and not (text[0].isspace() or text[-1].isspace())
    assert arguments.is_identifier(text) is fits
    outcome = told(arguments.identifier, text, "field")
    if fits:
        assert outcome is text
    else:
        assert outcome[2]["field"] == "field"
        # What is no plain string takes the closer look.
        assert outcome == told(arguments.identifier, Loud(text), "field")


@given(st.text() | st.text("a", min_size=198, max_size=203))
def test_identifiers_are_judged_the_same_by_both_looks(text: str) -> None:
    judge_identifier(text)


@pytest.mark.parametrize("length", range(4))
def test_short_identifiers_are_judged_the_same_by_both_looks(length: int) -> None:
    for text in map("".join, itertools.product(EDGES, repeat=length)):
        judge_identifier(text)


def test_an_identifier_is_always_a_plain_string() -> None:
    for value in (Loud("soft"), Colour.RED):
        assert type(arguments.identifier(value, "field")) is str


POLICY_FIELDS = [field.name for field in fields(RetryPolicy)]
ODD_EQUALS: list[dict[str, Any]] = [
    {"jitter": -0.0},
    {"jitter": 0},
    {"max_attempts": Level.HIGH},
    {"backoff": "EXPONENTIAL"},
    {"backoff": Loud("EXPONENTIAL")},
    {"retry_on": sorted(DEFAULT_RETRY_ON)},
    {"retry_on": frozenset(map(Loud, DEFAULT_RETRY_ON))},
    {"retry_on": dict.fromkeys(DEFAULT_RETRY_ON).keys()},
]


@pytest.mark.parametrize("changes", ODD_EQUALS)
def test_what_only_equals_the_default_policy_comes_back_in_the_one_form(changes: dict[str, Any]) -> None:
    policy = arguments.retry_policy(RetryPolicy(**changes))
    assert policy == RetryPolicy()
    assert [type(getattr(policy, name)) for name in POLICY_FIELDS] == [int, Backoff, int, int, float, frozenset]
    assert str(policy.jitter) == "0.0"
    assert {type(kind) for kind in policy.retry_on} == {str}


def test_kinds_that_can_be_read_only_once_are_kept() -> None:
    assert arguments.retry_policy(RetryPolicy(retry_on=iter(DEFAULT_RETRY_ON))) == RetryPolicy()


@pytest.mark.parametrize("changes", [{"max_attempts": 3.0}, {"initial_delay_ms": 1_000.0}, {"jitter": False}])
def test_what_only_equals_the_default_policy_may_be_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError) as caught:
        arguments.retry_policy(RetryPolicy(**changes))
    (name,) = changes
    assert caught.value.details == {"field": f"retry_policy.{name}"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_attempts", 4),
        ("backoff", Backoff.FIXED),
        ("initial_delay_ms", 1),
        ("max_delay_ms", 1),
        ("jitter", 0.5),
        ("retry_on", frozenset()),
    ],
)
def test_one_field_of_a_policy_makes_it_another(name: str, value: Any) -> None:
    policy = RetryPolicy(**{name: value})
    assert arguments.retry_policy(policy) == policy != RetryPolicy()


def test_defaults_are_right_as_they_are() -> None:
    # Checked in full, as a policy is that is not the default by identity.
    checked = arguments.retry_policy(RetryPolicy(jitter=-0.0, retry_on=list(DEFAULT_RETRY_ON)))
    assert arguments.retry_policy(RetryPolicy()) == checked == RetryPolicy()
    assert arguments.timeouts(Timeouts()) == Timeouts()


@pytest.mark.parametrize("name", [field.name for field in fields(Timeouts)])
def test_one_timeout_is_enough_to_be_checked(name: str) -> None:
    given = Timeouts(**{name: 5})
    assert arguments.timeouts(given) == given
    for bad in (0, False, 1.0):
        with pytest.raises(WorkloadError) as caught:
            arguments.timeouts(Timeouts(**{name: bad}))
        assert caught.value.details == {"field": f"timeouts.{name}"}


class Sub(Fence):
    """A kind of fence."""


def test_a_fence_comes_back_plain() -> None:
    plain = Fence(workload_id="w", claim_id="c", worker_id="k", fencing_token=1)
    assert arguments.fence_types(plain) is plain
    odd: list[dict[str, Any]] = [
        {name: Loud(getattr(plain, name))} for name in ("workload_id", "claim_id", "worker_id")
    ]
    for changes in [*odd, {"fencing_token": Level.HIGH}]:
        given = replace(plain, **changes)
        found = arguments.fence_types(given)
        assert found == given
        assert [type(getattr(found, field.name)) for field in fields(Fence)] == [str, str, str, int]
    assert type(arguments.fence_types(Sub(workload_id="w", claim_id="c", worker_id="k", fencing_token=1))) is Fence
    with pytest.raises(WorkloadError):
        arguments.fence_types(replace(plain, fencing_token=True))


@pytest.mark.parametrize("empty", [(), [], set(), frozenset(), iter(()), {}.keys()])
def test_nothing_is_an_empty_set_whatever_it_stands_in(empty: Any) -> None:
    assert arguments.identifiers(empty, "field") == frozenset()
    request = AdmissionRequest(
        tenant_id="t", application_id="a", requested_by="u", idempotency_key="k", definition_id="d", dependencies=empty
    )
    assert arguments.admission(request).dependencies == ()


@pytest.mark.parametrize("empty", ["", b"", {}, None, 0])
def test_what_is_no_set_is_refused_though_it_is_empty(empty: Any) -> None:
    with pytest.raises(WorkloadError):
        arguments.identifiers(empty, "field")
    with pytest.raises(WorkloadError):
        arguments.dependencies(empty, "own")


# Transitions and drafts


@pytest.mark.parametrize("source", ["", "ELSE", *WorkloadState])
@pytest.mark.parametrize("target", ["", "ELSE", *WorkloadState])
def test_a_pair_is_legal_if_the_table_has_it(source: str, target: str) -> None:
    if source == "":
        expected = target == "CREATED"
    else:
        expected = source in set(WorkloadState) and target in TRANSITIONS[WorkloadState(source)]
    assert is_legal(source, target) is expected
    assert is_legal(str(source), str(target)) is expected


def test_a_draft_changes_a_copy_of_its_own() -> None:
    before = make(WorkloadState.READY)
    kept = replace(before)
    draft = Draft(before, NOW)
    draft.set(priority=9)
    draft.move(WorkloadState.CLAIMED, actor="w")
    decision = draft.decide()
    assert decision.before is before
    assert before == kept
    assert decision.after == replace(
        kept, priority=9, state=WorkloadState.CLAIMED, event_count=6, version=5, updated_at=NOW, finished_at=None
    )


def test_a_snapshot_has_no_other_fields() -> None:
    before = make(WorkloadState.READY)
    assert before.but() == before and before.but() is not before
    assert before.but(priority=3) == replace(before, priority=3)
    with pytest.raises(TypeError, match="nothing"):
        before.but(priority=3, nothing=1)
    draft = Draft(before, NOW)
    with pytest.raises(TypeError, match="nothing"):
        draft.set(priority=3, nothing=1)
    assert draft.after == before
