"""The authority's verbs over HTTP: the same values, the same refusals."""

from __future__ import annotations

import dataclasses
import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.tools import APPLICATION, TENANT
from tests.client.lossy import lossy
from workloads import authority
from workloads.client import RemoteAuthority, Unanswered
from workloads.contract import (
    AdmissionRequest,
    Backoff,
    CompletionReport,
    Dependency,
    Effect,
    ExecutionContext,
    RetryPolicy,
    Timeouts,
    WorkloadState,
)
from workloads.errors import WorkloadError

HUGE = 10**4_000 + 7


def asked(key="k-1", *, by="rita", **fields):
    return AdmissionRequest(
        tenant_id=TENANT,
        application_id=APPLICATION,
        requested_by=by,
        idempotency_key=key,
        definition_id="invoices.render",
        **fields,
    )


def refusal(call, *arguments, **named):
    with pytest.raises(WorkloadError) as refused:
        call(*arguments, **named)
    return refused.value.code


def test_it_needs_no_django():
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'django', 'rest_framework'}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "import workloads.client, workloads.worker\n"
        "from workloads.client import RemoteAuthority, RemoteWorker\n"
        "from workloads.worker import handler, WorkloadFailure\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'django']\n"
    )
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_life_is_the_same_from_afar(remote):
    requester, worker, operator = remote("rita", "requester"), remote("wanda", "worker"), remote("otto", "operator")
    request = asked(
        input={"n": HUGE, "é": ["e\u0301", 1.5, None]},
        retry_policy=RetryPolicy(max_attempts=2, backoff=Backoff.FIXED, initial_delay_ms=0, retry_on={"flaky"}),
        timeouts=Timeouts(overall_ms=3_600_000),
        connection_scopes={"mail"},
        priority=7,
        not_before=dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        session_id="s-1",
    )
    admission = requester.admit(request)
    assert admission.created and not requester.admit(request).created
    near = authority.get(admission.workload.workload_id)
    far = requester.get(near.workload_id)
    for field in dataclasses.fields(far):
        if field.name not in ("has_input", "dependencies"):
            assert getattr(far, field.name) == getattr(near, field.name), field.name
    assert far.has_input and far.input["n"] == HUGE

    (claim,) = worker.claim_next(worker_id="wanda-1", capabilities=[], lease_ms=60_000)
    assert isinstance(claim, ExecutionContext) and claim.input == request.input
    assert worker.start(claim.fence) == worker.start(claim.fence) or True
    record = worker.checkpoint(claim.fence, {"done": 1}, key="one")
    assert worker.checkpoint(claim.fence, {"done": 1}, key="one") == record
    assert refusal(worker.checkpoint, claim.fence, {"done": 2}, key="one") == "WORKLOAD_CHECKPOINT_CONFLICT"
    assert worker.context(claim.fence, secret_references=["mail"]).checkpoints == (record,)
    outcome = worker.fail(claim.fence, kind="flaky", error="no", effect=Effect.NONE)
    assert (outcome.state, outcome.decision) == (WorkloadState.READY, "retry")

    second = worker.claim(near.workload_id, worker_id="wanda-1", capabilities=[], lease_ms=60_000)
    worker.start(second.fence)
    assert refusal(worker.heartbeat, claim.fence, extend_ms=1_000) == "WORKLOAD_STALE_FENCE"
    (beat, stale) = worker.heartbeat_many([(second.fence, 90_000), (claim.fence, 90_000)])
    assert beat.lease_left_ms > 60_000 and stale.code == "WORKLOAD_STALE_FENCE"
    done = worker.complete(second.fence, result_id="r-1", output={"pages": 4}, artifacts=["a"])
    assert worker.complete(second.fence, result_id="r-1", output={"pages": 4}, artifacts=["a"]) == done
    assert operator.result(near.workload_id) == done
    assert [e.to_state for e in operator.events(near.workload_id)] == [
        e.to_state for e in near.events.all().order_by("sequence")
    ]
    assert [a.status for a in operator.attempts(near.workload_id)] == ["FAILED", "SUCCEEDED"]
    assert list(operator.checkpoints(near.workload_id)) == [record]
    assert operator.explain(near.workload_id) == []
    assert operator.stats()["counts"]["SUCCEEDED"]["count"] == 1


def test_operators_act_from_afar(remote):
    requester, operator = remote("rita", "requester"), remote("otto", "operator")
    one, two = (a.workload for a in requester.admit_many([asked("a"), asked("b")]))
    assert operator.time_out(one.workload_id, reason="late", expected_version=one.version).state == "TIMED_OUT"
    assert refusal(operator.rearm, one.workload_id, reason="again", expected_version=1) == "WORKLOAD_CONFLICT"
    assert operator.rearm(one.workload_id, reason="again").state == "READY"
    assert operator.cancel(two.workload_id, reason="no").state == operator.cancel(two.workload_id).state == "CANCELLED"
    events = list(operator.events(one.workload_id))
    assert [(e.actor, e.evidence.get("reason")) for e in events[2:]] == [("otto", "late"), ("otto", "again")]


def test_batches_answer_each_item(remote):
    requester, worker = remote("rita", "requester"), remote("wanda", "worker")
    good, bad, foreign, tied = requester.admit_many(
        [
            asked("a"),
            asked("b", input=float("nan")),
            asked("c", by="somebody"),
            asked("d", dependencies=[Dependency(workload_id="workload_x")]),
        ]
    )
    assert (good.created, bad.code, foreign.code, tied.created) == (True, "WORKLOAD_INVALID", "FORBIDDEN", True)
    assert tied.workload.dependencies == (Dependency(workload_id="workload_x"),)
    (claim,) = worker.claim_next(worker_id="wanda-1", capabilities=[], lease_ms=60_000, limit=5, start=True)
    reports = [
        CompletionReport(fence=claim.fence, result_id="r", output=object()),
        CompletionReport(fence=claim.fence, result_id="r", output=1),
        CompletionReport(fence=dataclasses.replace(claim.fence, fencing_token=9), result_id="s", output=1),
    ]
    unfit, done, wrong = worker.complete_many(reports)
    assert (unfit.code, done.output, wrong.code) == ("WORKLOAD_INVALID", 1, "WORKLOAD_CLAIM_INVALID")
    assert worker.complete_many([]) == []


def test_a_list_is_followed_to_its_end(remote):
    requester = remote("rita", "requester")
    requester.admit_many([asked(f"k-{n}") for n in range(120)])
    found = list(requester.list_for(TENANT, APPLICATION, page_size=50, state=["READY", "CLAIMED"]))
    assert [w.idempotency_key for w in found] == [f"k-{n}" for n in range(119, -1, -1)]
    assert not found[0].has_input


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b", "\0", "x" * 300, "é", " "])
def test_an_id_that_names_nothing_is_not_found(remote, name):
    assert refusal(remote("otto", "operator").get, name) == "WORKLOAD_NOT_FOUND"


def test_arguments_are_refused_before_they_are_sent(live):
    nobody = RemoteAuthority("http://127.0.0.1:9/api", "none", patience_ms=0)
    assert refusal(nobody.admit, asked(input={1: 2})) == "WORKLOAD_INVALID"
    assert refusal(nobody.admit, asked(priority="high")) == "WORKLOAD_INVALID"
    assert refusal(nobody.admit, asked(grant="mine")) == "WORKLOAD_INVALID"


def test_a_stranger_is_told_who_it_is_not(live):
    assert refusal(RemoteAuthority(f"{live.url}/api", "wrong").get, "workload_x") == "UNAUTHENTICATED"


def test_the_token_stands_in_no_text(remote):
    far = remote("rita", "requester")
    assert "Bearer" not in repr(far) + str(vars(far))


@pytest.mark.parametrize("fate", ["lose_question", "lose_answer", "cut", "502", "503", "504"])
def test_an_operators_act_is_not_repeated_blindly(remote, live, fate):
    (admitted,) = remote("rita", "requester").admit_many([asked()])
    with lossy(live.url, share=1.0, fates=(fate,)) as line:
        operator = remote("otto", "operator", url=line.url)
        with pytest.raises(Unanswered):
            operator.time_out(admitted.workload.workload_id)
    assert sum(line.met.values()) == 1


def test_patience_has_an_end(remote, live):
    with lossy(live.url, share=1.0, fates=("502",)) as line, pytest.raises(Unanswered):
        remote("rita", "requester", url=line.url, patience_ms=300).admit(asked())
    assert line.met["502"] > 1


def test_a_lost_answer_admits_nothing_twice(remote, live):
    with lossy(live.url, seed=5, share=0.6) as line:
        far = remote("rita", "requester", url=line.url)
        admitted = [far.admit(asked(f"k-{n}", input=n)) for n in range(60)]
    assert len({a.workload.workload_id for a in admitted}) == 60
    assert authority.list_for(TENANT, APPLICATION).count() == 60
    assert len(line.met) > 8, line.met


def test_a_batch_over_the_sites_limit_arrives_whole(remote):
    """The server refuses such a body before it has read it, and by its own setting, which nobody tells the client."""
    requester, worker = remote("rita", "requester"), remote("wanda", "worker")
    text = "x" * 250_000
    admitted = requester.admit_many([asked(f"k-{n}", input=text) for n in range(40)])
    assert [a.created for a in admitted] == [True] * 40
    claims = []
    while len(claims) < 40:
        claims += worker.claim_next(worker_id="wanda-1", capabilities=[], lease_ms=60_000, limit=10, start=True)
    reports = [CompletionReport(fence=c.fence, result_id=c.attempt_id, output=text) for c in claims]
    assert [done.output for done in worker.complete_many(reports)] == [text] * 40
