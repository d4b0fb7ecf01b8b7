"""Operators look at a version first, then at the state, then at the overall deadline. Section 7."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lifecycle.builders import (
    EPOCH,
    NOW,
    check,
    make,
    refused,
    steps,
    text,
)
from tests.lifecycle.verbs import cancel, rearm, time_out
from workloads.contract import Timeouts, WorkloadState
from workloads.lifecycle.interventions import Verb, decide, leads_to
from workloads.lifecycle.states import HELD

S = WorkloadState


OPEN_TO_OPERATORS = {(cancel, S.READY), (rearm, S.DEAD_LETTER), (time_out, S.RUNNING)}


@pytest.mark.parametrize("verb", [cancel, rearm, time_out])
@pytest.mark.parametrize("state", list(WorkloadState))
def test_another_version_is_a_conflict_in_any_state(verb: Any, state: WorkloadState) -> None:
    snapshot = make(state, version=4)
    assert refused("WORKLOAD_CONFLICT", verb, snapshot, version=3) == {"version": 4}
    assert refused("WORKLOAD_CONFLICT", verb, snapshot, version=5) == {"version": 4}
    if (verb, state) in OPEN_TO_OPERATORS:
        assert verb(snapshot, version=4) is not None


@pytest.mark.parametrize("state", [S.DEAD_LETTER, S.TIMED_OUT])
def test_a_rearm_past_the_overall_deadline(state: WorkloadState) -> None:
    parked = make(state, timeouts=Timeouts(overall_ms=20_000), retry_count=2)
    details = refused("WORKLOAD_TIMED_OUT", rearm, parked)
    assert details == {"deadline": "overall", "deadline_at": text(NOW)}
    decision = rearm(parked, restart=True)
    assert decision is not None
    check(decision)
    assert (decision.after.overall_from, decision.after.next_attempt_at) == (NOW, NOW)
    assert (decision.after.retry_count, decision.after.operator_retries) == (2, 1)
    in_time = rearm(replace(parked, timeouts=Timeouts(overall_ms=20_001)))
    assert in_time is not None and in_time.after.overall_from == EPOCH
    always = rearm(replace(parked, timeouts=Timeouts()), restart=True)
    assert always is not None and always.after.overall_from == NOW


def test_a_rearm_of_unparked_work_is_denied_before_its_deadline_is_looked_at() -> None:
    refused("WORKLOAD_TRANSITION_DENIED", rearm, make(S.RUNNING, timeouts=Timeouts(overall_ms=1)))


def test_old_records_are_rearmed_whatever_their_overall_timeout_says() -> None:
    old = make(S.FAILED, contract_version=1, timeouts=Timeouts(overall_ms=1))
    decision = rearm(old)
    assert decision is not None and steps(decision) == ["READY"]


PASSED_THROUGH = {S.CREATED, S.RECOVERING}


@pytest.mark.parametrize("state", [s for s in WorkloadState if s not in PASSED_THROUGH])
@pytest.mark.parametrize("verb", list(Verb))
def test_what_a_verb_leads_to_is_what_its_rule_decides(verb: Verb, state: WorkloadState) -> None:
    def decided(**more: Any) -> Any:
        given = {"actor": "op", "reason": "because", "expected_version": None, **more}
        return decide(verb, make(state, version=4), NOW, **given)

    leads = leads_to(verb, state)
    refused("WORKLOAD_CONFLICT", decided, expected_version=3)
    if leads is None:
        refused("WORKLOAD_TRANSITION_DENIED", decided, expected_version=4)
        return
    decision = decided(expected_version=4)
    if leads is state:
        assert decision is None
        return
    check(decision)
    assert decision.after.state is leads
    assert {(e.actor, e.evidence["reason"]) for e in decision.events} == {("op", "because")}
    assert any(e.evidence.get("forced") for e in decision.events) == (verb is Verb.FORCE_CANCEL and state in HELD)


def test_re_arming_among_the_verbs_takes_the_overall_deadline_along() -> None:
    parked = make(S.DEAD_LETTER, timeouts=Timeouts(overall_ms=1))
    said = {"actor": "op", "reason": "because", "expected_version": None}
    refused("WORKLOAD_TIMED_OUT", lambda: decide(Verb.REARM, parked, NOW, **said))
    decision = decide(Verb.REARM, parked, NOW, **said, restart_overall=True)
    assert decision is not None and decision.after.overall_from == NOW


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("state", ["", "spoilt", *PASSED_THROUGH])
def test_a_verb_leads_nowhere_from_a_state_in_which_nothing_rests(verb: Verb, state: str) -> None:
    assert leads_to(verb, state) is None
