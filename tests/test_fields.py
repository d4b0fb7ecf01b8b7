"""The column types that keep canonical text: a shorter way to a text is the same text."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from workloads.contract import DEFAULT_RETRY_ON, Backoff, RetryPolicy, Timeouts
from workloads.fields import (
    TIMEOUT_NAMES,
    CanonicalText,
    JSONTextField,
    RetryPolicyField,
    StringSetField,
    TimeoutsField,
    policy_to_json,
)


class Level(enum.IntEnum):
    HIGH = 3


def dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


durations = st.none() | st.integers(1, 10**12)


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_json_is_kept_as_canonical_text(value: Any) -> None:
    assert JSONTextField().get_prep_value(value) == dump(value)
    assert JSONTextField(null=True).get_prep_value(value) == (None if value is None else dump(value))


@given(
    st.builds(
        RetryPolicy,
        max_attempts=st.sampled_from([3, 3.0, Level.HIGH, 1, True]),
        backoff=st.sampled_from([*Backoff, "EXPONENTIAL"]),
        initial_delay_ms=st.sampled_from([1_000, 1_000.0, 0]),
        max_delay_ms=st.sampled_from([60_000, 60_000.0, 0]),
        jitter=st.sampled_from([0.0, -0.0, 0, False, 0.5]),
        retry_on=st.sampled_from([DEFAULT_RETRY_ON, frozenset(), frozenset({"b", "a"})]),
    )
)
def test_what_only_equals_the_default_policy_has_its_own_text(policy: RetryPolicy) -> None:
    assert RetryPolicyField().get_prep_value(policy) == dump(policy_to_json(policy))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_attempts", 3.0),
        ("backoff", Backoff.FIXED),
        ("initial_delay_ms", 1_000.0),
        ("max_delay_ms", 60_000.0),
        ("jitter", -0.0),
        ("jitter", 0),
        ("retry_on", frozenset()),
    ],
)
def test_one_field_of_a_policy_makes_another_text(name: str, value: Any) -> None:
    policy = RetryPolicy(**{name: value})
    text = RetryPolicyField().get_prep_value(policy)
    assert text == dump(policy_to_json(policy)) != dump(policy_to_json(RetryPolicy()))


def test_the_default_policy_has_its_text() -> None:
    text = RetryPolicyField().get_prep_value(RetryPolicy())
    assert text == dump(policy_to_json(RetryPolicy()))
    assert RetryPolicyField().from_db_value(text, None, None) == RetryPolicy()


@given(st.builds(Timeouts, **dict.fromkeys(TIMEOUT_NAMES, durations)))
def test_timeouts_that_are_not_given_are_left_out(timeouts: Timeouts) -> None:
    given = {name: getattr(timeouts, name) for name in TIMEOUT_NAMES if getattr(timeouts, name) is not None}
    text = TimeoutsField().get_prep_value(timeouts)
    assert text == dump(given)
    assert TimeoutsField().from_db_value(text, None, None) == timeouts


@pytest.mark.parametrize("members", [frozenset(), frozenset({"b", "a", "é"}), [], ["b", "a"], set(), ()])
def test_a_set_is_kept_in_order(members: Any) -> None:
    text = StringSetField().get_prep_value(members)
    assert text == dump(sorted(members))
    assert StringSetField().from_db_value(text, None, None) == frozenset(members)


@pytest.mark.parametrize("kind", [JSONTextField, StringSetField, RetryPolicyField, TimeoutsField])
def test_canonical_text_is_kept_as_it_stands(kind: type[JSONTextField]) -> None:
    text = kind().get_prep_value(CanonicalText('{"b": 1}'))
    assert text == '{"b": 1}'
    assert type(text) is str
