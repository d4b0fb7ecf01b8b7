"""Admission: what makes two requests the same, how history begins, cycles, and how dependencies stand. Section 4."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.lifecycle.builders import EPOCH, MS, check, make, refused, text
from workloads.contract import AdmissionRequest, Backoff, Dependency, RetryPolicy, Timeouts, WorkloadState
from workloads.lifecycle.admission import Terms, admit, check_replay, cyclic, find_cycle, terms_of
from workloads.lifecycle.dependencies import REQUIRABLE, changes_a_standing, standing_of, worst
from workloads.lifecycle.snapshot import Standing

S = WorkloadState

AWAITED = (Dependency(workload_id="workload_a"), Dependency(workload_id="workload_b"))
REQUEST = AdmissionRequest(
    tenant_id="tenant",
    application_id="application",
    requested_by="anna",
    idempotency_key="key",
    definition_id="definition",
    capability_snapshot=frozenset({"cpu"}),
    connection_scopes=frozenset({"scope-a"}),
    dependencies=AWAITED,
    not_before=EPOCH,
)

# In the order in which section 4 names them; `input` is compared by its hash.
COMPARED: list[tuple[str, Any]] = [
    ("definition_id", "other"),
    ("definition_revision", "2"),
    ("environment", "staging"),
    ("input", None),
    ("capability_snapshot", frozenset({"cpu", "net"})),
    ("connection_scopes", frozenset()),
    ("priority", 1),
    ("retry_policy", RetryPolicy(max_attempts=4)),
    ("timeouts", Timeouts(queue_ms=1)),
    ("dependencies", (Dependency(workload_id="workload_a"),)),
    ("not_before", None),
]


def terms(request: AdmissionRequest = REQUEST, input_hash: str = "0" * 64) -> Terms:
    return terms_of(request, input_hash=input_hash)


def changed(names: Collection[str]) -> Terms:
    differences = {name: value for name, value in COMPARED if name in names and name != "input"}
    return terms(replace(REQUEST, **differences), "1" * 64 if "input" in names else "0" * 64)


def test_the_defaults_are_those_of_section_4() -> None:
    plain = AdmissionRequest(
        tenant_id="t", application_id="a", requested_by="r", idempotency_key="k", definition_id="d"
    )
    assert (plain.definition_revision, plain.environment, plain.input, plain.priority) == ("1", "production", None, 0)
    assert (set(plain.capability_snapshot), set(plain.connection_scopes), set(plain.dependencies)) == (set(),) * 3
    assert (plain.not_before, plain.trigger, plain.session_id, plain.grant) == (None, "", None, None)
    assert plain.timeouts == Timeouts(
        overall_ms=None, queue_ms=None, claim_ms=None, execution_ms=None, heartbeat_ms=None
    )
    assert plain.retry_policy == RetryPolicy(
        max_attempts=3,
        backoff=Backoff.EXPONENTIAL,
        initial_delay_ms=1000,
        max_delay_ms=60_000,
        jitter=0.0,
        retry_on=frozenset({"timeout", "transient_connection", "worker_failure"}),
    )
    assert Dependency(workload_id="w").required_state is S.SUCCEEDED


def test_the_terms_are_those_of_section_4_in_its_order() -> None:
    assert [f.name for f in fields(Terms)] == [name for name, _ in COMPARED]


@pytest.mark.parametrize("name", [name for name, _ in COMPARED])
def test_each_term_is_compared(name: str) -> None:
    assert refused("IDEMPOTENCY_KEY_REUSED", check_replay, terms(), changed([name])) == {"fields": [name]}
    assert refused("IDEMPOTENCY_KEY_REUSED", check_replay, changed([name]), terms()) == {"fields": [name]}


@given(st.sets(st.sampled_from([name for name, _ in COMPARED])))
def test_all_differing_fields_are_named_in_order(names: set[str]) -> None:
    if not names:
        check_replay(terms(), changed(names))
        return
    details = refused("IDEMPOTENCY_KEY_REUSED", check_replay, terms(), changed(names))
    assert details == {"fields": [name for name, _ in COMPARED if name in names]}


@pytest.mark.parametrize(
    "changes",
    [
        {"trigger": "cron"},
        {"session_id": "session"},
        {"grant": "signed"},
        {"dependencies": AWAITED[::-1]},
        {"dependencies": (*AWAITED, Dependency(workload_id="workload_a"))},
        {"capability_snapshot": ["cpu", "cpu"]},
        {"not_before": EPOCH.astimezone(dt.timezone(dt.timedelta(hours=5)))},
        {"retry_policy": RetryPolicy(jitter=0)},
    ],
)
def test_what_is_not_compared(changes: dict[str, Any]) -> None:
    check_replay(terms(), terms(replace(REQUEST, **changes)))


def test_a_required_state_is_compared() -> None:
    asked = replace(
        REQUEST,
        dependencies=(
            Dependency(workload_id="workload_a", required_state=S.CANCELLED),
            Dependency(workload_id="workload_b"),
        ),
    )
    assert refused("IDEMPOTENCY_KEY_REUSED", check_replay, terms(), terms(asked)) == {"fields": ["dependencies"]}


# The first two events.


@pytest.mark.parametrize(
    ("not_before", "due", "evidence"),
    [
        (None, EPOCH, {}),
        (EPOCH - 1000 * MS, EPOCH - 1000 * MS, {"not_before": text(EPOCH - 1000 * MS)}),
        (EPOCH, EPOCH, {"not_before": text(EPOCH)}),
        (EPOCH + MS, EPOCH + MS, {"not_before": text(EPOCH + MS)}),
    ],
)
def test_history_begins(not_before: dt.datetime | None, due: dt.datetime, evidence: dict[str, str]) -> None:
    created = make(S.CREATED, event_count=0)
    decision = admit(created, requested_by="anna", not_before=not_before)
    first, second = decision.events
    assert (first.sequence, first.from_state, first.to_state) == (1, "", "CREATED")
    assert (second.sequence, second.from_state, second.to_state) == (2, "CREATED", "READY")
    assert first.actor == second.actor == "anna"
    assert first.at == second.at == decision.after.updated_at == EPOCH
    assert first.evidence == evidence
    later = {"next_attempt_at": text(due)} if due > EPOCH else {}
    assert second.evidence == {**evidence, **later}
    after = decision.after
    assert (after.state, after.version, after.event_count) == (S.READY, 1, 2)
    assert (after.next_attempt_at, after.finished_at, after.overall_from) == (due, None, EPOCH)
    check(replace(decision, before=replace(created, event_count=1), events=(second,)))


# Cycles, against an oracle that walks every path.

NODES = "abcdefg"
graphs = st.dictionaries(st.sampled_from(NODES), st.sets(st.sampled_from(NODES), max_size=3))


def looked_up(graph: Mapping[str, Collection[str]]) -> Any:
    asked: list[str] = []

    def dependencies_of(ids: Collection[str]) -> Mapping[str, Collection[str]]:
        asked.extend(ids)
        return {node: graph[node] for node in ids if node in graph}

    return dependencies_of, asked


def reaches(graph: Mapping[str, Collection[str]], starts: Collection[str]) -> set[str]:
    reached = set(starts)
    for _ in NODES:
        reached |= set(itertools.chain.from_iterable(graph.get(node, ()) for node in reached))
    return reached


@given(graph=graphs, starts=st.sets(st.sampled_from(NODES), max_size=3))
def test_cycles(graph: dict[str, set[str]], starts: set[str]) -> None:
    # The one that is being admitted has no row yet, so nothing is known of what it depends on.
    graph.pop("a", None)
    dependencies_of, asked = looked_up(graph)
    cycle = find_cycle("a", [Dependency(workload_id=node) for node in sorted(starts)], dependencies_of)
    expected = reaches(graph, starts)
    assert (cycle is not None) == ("a" in expected)
    assert len(asked) == len(set(asked))
    assert set(asked) <= expected
    if cycle is None:
        assert set(asked) == expected
        return
    assert cycle[0] == "a"
    assert len(set(cycle)) == len(cycle)
    whole = {**graph, "a": starts}
    for node, following in zip(cycle, [*cycle[1:], "a"], strict=True):
        assert following in whole[node]


def test_a_workload_that_depends_on_itself_is_a_cycle_of_one() -> None:
    dependencies_of, asked = looked_up({})
    found = find_cycle("a", [Dependency(workload_id="b"), Dependency(workload_id="a")], dependencies_of)
    assert (found, asked) == (["a"], [])


def test_a_long_chain_is_walked_without_recursion() -> None:
    chain = {str(n): {str(n + 1)} for n in range(5000)}
    dependencies_of, _ = looked_up({**chain, "5000": {"a"}})
    cycle = find_cycle("a", [Dependency(workload_id="0")], dependencies_of)
    assert cycle == ["a", *(str(n) for n in range(5001))]


def test_the_refusal_of_a_cycle() -> None:
    refusal = cyclic(["a", "b"])
    assert refusal.code == "WORKLOAD_INVALID"
    assert refusal.details == {"field": "dependencies", "cycle": ["a", "b"]}


# How a dependency stands.

REQUIRED = ["SUCCEEDED", "CANCELLED", "DEAD_LETTER"]


@pytest.mark.parametrize("required", REQUIRED)
@pytest.mark.parametrize("state", [None, *WorkloadState])
@pytest.mark.parametrize("pruned", [False, True])
def test_the_standing_of_one(state: WorkloadState | None, required: str, pruned: bool) -> None:
    if state is None:
        expected = Standing.MISSING
    elif state == required:
        expected = Standing.MET
    elif pruned or state in {"SUCCEEDED", "CANCELLED"}:
        expected = Standing.UNMEETABLE
    else:
        expected = Standing.WAITING
    assert standing_of(state, required, pruned=pruned) is expected
    if not pruned:
        assert standing_of(state, required) is expected


def test_the_states_that_may_be_required() -> None:
    assert {str(state) for state in REQUIRABLE} == set(REQUIRED)


@given(st.lists(st.sampled_from(Standing)))
def test_several_stand_as_their_worst(standings: list[Standing]) -> None:
    together = worst(standings)
    assert (together is Standing.MET) == all(standing is Standing.MET for standing in standings)
    assert (together is Standing.UNMEETABLE) == (Standing.UNMEETABLE in standings)
    assert worst([str(standing) for standing in reversed(standings)]) is together
    if standings:
        assert together in standings


@pytest.mark.parametrize("before", list(WorkloadState))
@pytest.mark.parametrize("after", list(WorkloadState))
def test_whatever_changes_a_standing_is_said_to(before: WorkloadState, after: WorkloadState) -> None:
    moved = any(standing_of(before, required) is not standing_of(after, required) for required in REQUIRED)
    if moved:
        assert changes_a_standing(before, after)
    if before is after:
        assert not changes_a_standing(before, after)
