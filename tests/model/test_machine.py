"""The authority and the model live through the same random histories: the same answers, the same records."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.histories import Histories
from workloads import authority

QUICK = settings(
    max_examples=100,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
READS = {"explain", "get", "issue_grant", "list_for", "read_clock", "read_grant", "verify"}
# The same claims, which bring more: the model has claims.
BRING_MORE = {"claim_with_context", "claim_next_with_context"}
# Beside the record: what it writes nothing that decides reads.
NO_RECORD = {"note_worker"}
# On many at once, by the rules of the single verbs: tests/authority/test_bulk.py compares the two.
OF_MANY = {"begin_bulk", "select_bulk", "confirm_bulk", "continue_bulk", "stop_bulk"}
LONG = settings(QUICK, max_examples=1_000, stateful_step_count=50, derandomize=False, print_blob=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("given", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_the_authority_and_the_model_live_the_same_histories(given: settings) -> None:
    Histories.examples, Histories.calls, Histories.answers = 0, 0, {}
    run_state_machine_as_test(Histories, settings=given)
    answered = {verb for verb, code in Histories.answers if code == "answered"}
    # Which histories are drawn differs with the versions of Python and Hypothesis; nearly all verbs are in them.
    assert len(set(authority.__all__) - READS - BRING_MORE - NO_RECORD - OF_MANY - answered) <= 2
    # Shown by `pytest -rP`.
    sys.stdout.write(f"{Histories.examples} examples, {Histories.calls} calls\n")
    for (verb, code), count in sorted(Histories.answers.items()):
        sys.stdout.write(f"{verb}: {code}: {count}\n")
