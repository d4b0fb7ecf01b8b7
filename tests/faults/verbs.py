"""The verbs of the authority as scenes to be disturbed: how each is prepared and called, and what traces it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.authority.builders import admit, claim, id_of, request
from tests.support import at
from workloads import authority
from workloads.contract import (
    Admission,
    Dependency,
    Fence,
    PassReport,
    RetryPolicy,
    Timeouts,
)
from workloads.errors import WorkloadError
from workloads.models import Attempt, Checkpoint, Event, Result, Workload

NOW = at(5_000)
"""When the verbs are called: leases run, and no deadline has passed but the one of `enforce`."""
LATER = at(10_000_000)
"""When every lease is over."""
RETRIED = RetryPolicy(retry_on=frozenset({"timeout", "worker_failure", "broken"}), initial_delay_ms=0)


@dataclass(frozen=True)
class Scene:
    """One piece of work, the fence under which it is held, and that of the work it depends on, where there are any."""

    key: str
    fence: Fence
    parent: Fence
    dependencies: tuple[str, ...] = ()

    @property
    def workload_id(self) -> str:
        return id_of(self.key)


@dataclass(frozen=True)
class Call:
    """A call on a scene by `who`, and how many traces of it are stored. `accepted` counts what an answer promises."""

    do: Callable[[Scene, str], Any]
    trace: Callable[[Scene, str], int]
    accepted: Callable[[Scene, Any], int] = lambda scene, answer: 1
    # Traces that do not tell who left them are counted together.
    is_shared: bool = False
    # Answered again when it was done already: one trace, however often it is accepted.
    is_replayed: bool = False


@dataclass(frozen=True)
class Verb:
    """A call on a scene that `prepare` sets. `again` is what the same call is told once it was recorded."""

    prepare: Callable[[str], Scene]
    call: str
    against: tuple[str, ...]
    again: str = "same"


def outcome(call: Callable[[], Any]) -> Any:
    """Return the answer, or the refusal; any other error is raised."""
    try:
        return call()
    except WorkloadError as refusal:
        return refusal


def nobody(key: str) -> Fence:
    return Fence(workload_id=id_of(key), claim_id="none", worker_id="nobody", fencing_token=0)


# Scenes. Each work has a definition of its own, so that `claim_next` finds it alone.


def _admitted(key: str, **changes: Any) -> str:
    return admit(key, definition_id=key, retry_policy=RETRIED, **changes)


def nothing(key: str) -> Scene:
    return Scene(key, nobody(key), nobody(f"{key} parent"))


def running_parent(key: str) -> Scene:
    name = f"{key} parent"
    _admitted(name)
    fence = claim(id_of(name)).fence
    authority.start(fence, now=at(2_000))
    return Scene(key, nobody(key), fence, (id_of(name),))


def unknown_parent(key: str) -> Scene:
    return replace(running_parent(key), dependencies=(id_of(f"{key} parent"), id_of(f"{key} unknown")))


def ready(key: str) -> Scene:
    _admitted(key)
    return nothing(key)


def blocked(key: str) -> Scene:
    scene = running_parent(key)
    _admitted(key, dependencies=[Dependency(workload_id=d) for d in scene.dependencies])
    return scene


def hopeless(key: str) -> Scene:
    scene = blocked(key)
    authority.cancel(scene.parent.workload_id, actor="op", force=True, now=at(3_000))
    return scene


def claimed(key: str, **changes: Any) -> Scene:
    _admitted(key, **changes)
    fence = claim(id_of(key)).fence
    return Scene(key, fence, nobody(f"{key} parent"))


def late(key: str) -> Scene:
    return claimed(key, timeouts=Timeouts(claim_ms=1_000))


def running(key: str) -> Scene:
    """Set running work that another waits for, so that its ending has a dependent to follow."""
    scene = claimed(key)
    authority.start(scene.fence, now=at(2_000))
    _admitted(f"{key} child", dependencies=[Dependency(workload_id=scene.workload_id)])
    return scene


def cancelling(key: str) -> Scene:
    scene = running(key)
    authority.cancel(scene.workload_id, actor="op", now=at(3_000))
    return scene


def parked(key: str) -> Scene:
    scene = running(key)
    authority.fail(scene.fence, kind="final", error="", now=at(3_000))
    return scene


# Traces.


def _events(scene: Scene, **wanted: Any) -> Iterable[Any]:
    return Event.objects.filter(record__workload_id=scene.workload_id, **wanted)


def _attempts(scene: Scene, **wanted: Any) -> int:
    return Attempt.objects.filter(record__workload_id=scene.workload_id, **wanted).count()


def _results(fence: Fence, who: str) -> int:
    return Result.objects.filter(record__workload_id=fence.workload_id, result_id=f"{who} {fence.workload_id}").count()


def _reasons(scene: Scene, who: str, target: str) -> int:
    return sum(e.evidence.get("reason") == who and e.to_state == target for e in _events(scene))


def _decided_by_clock(scene: Scene, _: str) -> int:
    ends = {("RECOVERING", "authority.recovery"), ("TIMED_OUT", "authority.deadline")}
    return sum(
        (e.to_state, e.actor) in ends or e.evidence.get("decision") == "dependency_unsatisfiable"
        for e in _events(scene)
    )


def _named(scene: Scene, answer: Any) -> int:
    if isinstance(answer, PassReport):
        assert answer.failed == {}
        answer = [*answer.timed_out, *answer.recovered, *answer.unsatisfiable]
    return list(answer).count(scene.workload_id)


def _result(fence: Fence, who: str) -> Any:
    return authority.complete(fence, result_id=f"{who} {fence.workload_id}", output={"by": who}, now=NOW)


def _admit(scene: Scene, who: str, **changes: Any) -> Admission:
    wanted = [Dependency(workload_id=d) for d in scene.dependencies]
    asked = request(scene.key, definition_id=scene.key, retry_policy=RETRIED, dependencies=wanted, **changes)
    return authority.admit(asked, now=NOW)


def _admissions(scene: Scene, _: str) -> int:
    return Workload.objects.filter(workload_id=scene.workload_id, priority=0).count()


CALLS: dict[str, Call] = {
    "admit": Call(_admit, _admissions, lambda scene, answer: int(answer.created), is_shared=True),
    "admit other": Call(
        lambda scene, who: _admit(scene, who, priority=9),
        lambda scene, who: Workload.objects.filter(workload_id=scene.workload_id, priority=9).count(),
        lambda scene, answer: int(answer.created),
    ),
    "admit unknown": Call(
        lambda scene, who: authority.admit(
            request(f"{scene.key} unknown", dependencies=[Dependency(workload_id=scene.workload_id)]), now=NOW
        ),
        lambda scene, who: Workload.objects.filter(workload_id=id_of(f"{scene.key} unknown")).count(),
    ),
    "claim": Call(
        lambda scene, who: claim(scene.workload_id, worker_id=who, now=NOW, request_id=scene.key),
        lambda scene, who: _attempts(scene, worker_id=who),
    ),
    "claim_next": Call(
        lambda scene, who: authority.claim_next(
            worker_id=who,
            capabilities=(),
            lease_ms=600_000,
            definitions=[scene.key],
            start=True,
            request_id=f"{scene.key} next",
            now=NOW,
        ),
        lambda scene, who: _attempts(scene, worker_id=who),
        lambda scene, answer: len(answer),
    ),
    "start": Call(
        lambda scene, who: authority.start(scene.fence, now=NOW),
        lambda scene, who: _attempts(scene, started_at=NOW, claim_id=scene.fence.claim_id),
        is_replayed=True,
    ),
    "heartbeat": Call(
        lambda scene, who: authority.heartbeat(scene.fence, extend_ms=700_000, now=NOW),
        lambda scene, who: 0,
        lambda scene, answer: 0,
    ),
    "checkpoint": Call(
        lambda scene, who: authority.checkpoint(scene.fence, {"by": who}, key=who, now=NOW),
        lambda scene, who: Checkpoint.objects.filter(record__workload_id=scene.workload_id, key=who).count(),
    ),
    "complete": Call(lambda scene, who: _result(scene.fence, who), lambda scene, who: _results(scene.fence, who)),
    "complete parent": Call(
        lambda scene, who: _result(scene.parent, who), lambda scene, who: _results(scene.parent, who)
    ),
    "fail": Call(
        lambda scene, who: authority.fail(scene.fence, kind="broken", error=who, now=NOW),
        lambda scene, who: _attempts(scene, status="FAILED", error=who),
    ),
    "release": Call(
        lambda scene, who: authority.release(scene.fence, reason=who, now=NOW),
        lambda scene, who: sum(e.evidence.get("decision") == "released" for e in _events(scene)),
        is_replayed=True,
    ),
    "confirm_cancel": Call(
        lambda scene, who: authority.confirm_cancel(scene.fence, now=NOW),
        lambda scene, who: len(list(_events(scene, to_state="CANCELLED"))),
        is_replayed=True,
    ),
    "cancel": Call(
        lambda scene, who: authority.cancel(scene.workload_id, actor="op", reason=who, force=True, now=NOW),
        lambda scene, who: len(list(_events(scene, to_state="CANCELLED"))),
        is_replayed=True,
    ),
    "rearm": Call(
        lambda scene, who: authority.rearm(scene.workload_id, actor="op", reason=who, now=NOW),
        lambda scene, who: _reasons(scene, who, "READY"),
    ),
    "time_out": Call(
        lambda scene, who: authority.time_out(scene.workload_id, actor="op", reason=who, now=NOW),
        lambda scene, who: _reasons(scene, who, "TIMED_OUT"),
    ),
    "pass": Call(lambda scene, who: authority.run_pass(now=NOW), _decided_by_clock, _named, is_shared=True),
    "pass later": Call(lambda scene, who: authority.run_pass(now=LATER), _decided_by_clock, _named, is_shared=True),
    "recover later": Call(
        lambda scene, who: authority.recover_expired(now=LATER), _decided_by_clock, _named, is_shared=True
    ),
}

PASSES = frozenset({"pass", "pass later", "recover later"})
_HOLDER = ("cancel", "recover later", "complete", "fail", "release", "time_out", "claim")

VERBS: dict[str, Verb] = {
    "admit": Verb(nothing, "admit", ("admit", "admit other", "cancel", "claim_next", "pass later")),
    "admit with a dependency": Verb(
        running_parent, "admit", ("complete parent", "admit", "admit other", "pass later", "cancel")
    ),
    "admit with an unknown dependency": Verb(
        unknown_parent, "admit", ("complete parent", "admit", "admit unknown", "pass later", "cancel")
    ),
    "claim": Verb(ready, "claim", ("cancel", "claim", "claim_next", "time_out", "pass later")),
    "claim of a dependent": Verb(blocked, "claim", ("complete parent", "cancel", "claim", "pass later"), "NOT_READY"),
    "claim_next": Verb(ready, "claim_next", ("cancel", "claim", "claim_next", "time_out", "pass later")),
    "claim_next of a dependent": Verb(blocked, "claim_next", ("complete parent", "cancel", "claim_next")),
    "start": Verb(claimed, "start", _HOLDER),
    "heartbeat": Verb(running, "heartbeat", _HOLDER),
    "checkpoint": Verb(running, "checkpoint", (*_HOLDER, "checkpoint")),
    "complete": Verb(running, "complete", _HOLDER),
    "fail": Verb(running, "fail", _HOLDER),
    "release": Verb(running, "release", _HOLDER),
    "confirm_cancel": Verb(cancelling, "confirm_cancel", ("cancel", "recover later", "complete", "confirm_cancel")),
    "cancel": Verb(running, "cancel", _HOLDER),
    "rearm": Verb(parked, "rearm", ("cancel", "rearm", "claim", "claim_next", "pass later"), "TRANSITION_DENIED"),
    "time_out": Verb(running, "time_out", _HOLDER, "TRANSITION_DENIED"),
    "pass over a lost lease": Verb(running, "pass later", (*_HOLDER, "pass later"), "nothing"),
    "pass over a deadline": Verb(late, "pass", ("start", *_HOLDER, "pass"), "nothing"),
    "pass over a hopeless dependency": Verb(hopeless, "pass", ("cancel", "claim", "pass", "time_out"), "nothing"),
}
