"""The transition table, against section 3 of the contract, which is written out here once more."""

from __future__ import annotations

import pytest

from workloads.contract import AttemptStatus, Backoff, Effect, WorkloadState
from workloads.errors import WORKLOAD_TRANSITION_DENIED
from workloads.lifecycle import states
from workloads.lifecycle.states import TRANSITIONS, denied, is_legal

STATES = (
    "CREATED READY CLAIMED RUNNING CHECKPOINTED RECOVERING SUCCEEDED FAILED TIMED_OUT DEAD_LETTER "
    "CANCELLATION_REQUESTED CANCELLED"
).split()

SECTION_3 = {
    "CREATED": "READY CANCELLED",
    "READY": "CLAIMED TIMED_OUT DEAD_LETTER CANCELLED",
    "CLAIMED": "RUNNING READY DEAD_LETTER FAILED RECOVERING TIMED_OUT CANCELLATION_REQUESTED",
    "RUNNING": "CHECKPOINTED READY DEAD_LETTER SUCCEEDED FAILED RECOVERING TIMED_OUT CANCELLATION_REQUESTED",
    "CHECKPOINTED": "CHECKPOINTED READY DEAD_LETTER SUCCEEDED FAILED RECOVERING TIMED_OUT CANCELLATION_REQUESTED",
    "CANCELLATION_REQUESTED": "CANCELLED RECOVERING",
    "RECOVERING": "READY DEAD_LETTER CANCELLED",
    "FAILED": "READY DEAD_LETTER CANCELLED",
    "TIMED_OUT": "READY DEAD_LETTER CANCELLED",
    "DEAD_LETTER": "READY CANCELLED",
    "SUCCEEDED": "",
    "CANCELLED": "",
}


def test_states_are_those_of_the_contract() -> None:
    assert [str(state) for state in WorkloadState] == STATES
    assert set(SECTION_3) == set(STATES)


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(WorkloadState)


@pytest.mark.parametrize("source", STATES)
@pytest.mark.parametrize("target", STATES)
def test_a_pair_is_legal_exactly_where_section_3_says(source: str, target: str) -> None:
    expected = target in SECTION_3[source].split()
    assert is_legal(source, target) is expected
    assert is_legal(WorkloadState(source), WorkloadState(target)) is expected


@pytest.mark.parametrize("target", STATES)
def test_history_begins_with_created_alone(target: str) -> None:
    assert is_legal("", target) is (target == "CREATED")


@pytest.mark.parametrize("word", ["", "ready", "PAUSED", "READY ", "None"])
def test_words_that_are_no_states_are_never_legal(word: str) -> None:
    assert not any(is_legal(source, word) for source in ["", *STATES])
    if word:
        assert not any(is_legal(word, target) for target in STATES)


def test_release_alone_may_take_these_pairs() -> None:
    assert {(str(a), str(b)) for a, b in states.RELEASE_ONLY} == {
        ("CLAIMED", "READY"),
        ("CLAIMED", "DEAD_LETTER"),
        ("RUNNING", "READY"),
        ("RUNNING", "DEAD_LETTER"),
        ("CHECKPOINTED", "READY"),
        ("CHECKPOINTED", "DEAD_LETTER"),
    }


@pytest.mark.parametrize(
    ("group", "members"),
    [
        (states.FINAL, "SUCCEEDED CANCELLED"),
        (states.PARKED, "DEAD_LETTER TIMED_OUT FAILED"),
        (states.RESTING, "SUCCEEDED CANCELLED DEAD_LETTER TIMED_OUT FAILED"),
        (states.CLAIMED, "CLAIMED RUNNING CHECKPOINTED"),
        (states.STARTED, "RUNNING CHECKPOINTED"),
        (states.HELD, "CLAIMED RUNNING CHECKPOINTED CANCELLATION_REQUESTED"),
    ],
)
def test_groups_are_those_of_section_3(group: frozenset[WorkloadState], members: str) -> None:
    assert {str(state) for state in group} == set(members.split())


def test_nothing_leaves_a_final_state() -> None:
    assert {state for state in WorkloadState if not TRANSITIONS[state]} == set(states.FINAL)


def test_every_state_is_reached_from_created() -> None:
    reached, frontier = {WorkloadState.CREATED}, [WorkloadState.CREATED]
    while frontier:
        for target in TRANSITIONS[frontier.pop()] - reached:
            reached.add(target)
            frontier.append(target)
    assert reached == set(WorkloadState)


def test_a_denial_names_both_states() -> None:
    refusal = denied(WorkloadState.SUCCEEDED, WorkloadState.CANCELLED)
    assert refusal.code == WORKLOAD_TRANSITION_DENIED
    assert refusal.details == {"from": "SUCCEEDED", "to": "CANCELLED"}
    assert [type(value) for value in refusal.details.values()] == [str, str]


def test_values_of_the_other_words() -> None:
    assert [str(status) for status in AttemptStatus] == (
        "CLAIMED RUNNING SUCCEEDED FAILED TIMED_OUT WORKER_LOST CANCELLED RELEASED".split()
    )
    assert [str(backoff) for backoff in Backoff] == ["FIXED", "EXPONENTIAL"]
    assert [str(effect) for effect in Effect] == ["none", "unknown"]
    assert {AttemptStatus.CLAIMED, AttemptStatus.RUNNING} == states.OPEN_ATTEMPT
