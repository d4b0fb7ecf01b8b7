"""Each verb of the rules as one call on a snapshot, at one instant, with arguments that change nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.lifecycle.builders import (
    LEASE_MS,
    NOW,
    fence_of,
    policy,
)
from workloads.contract import Effect, Timeouts, WorkloadState
from workloads.lifecycle import claims, deadlines, interventions, recovery, reports
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot, Standing

S = WorkloadState
Verb = Callable[[Snapshot], Decision | None]
RETRIED = policy("timeout", "worker_failure", "broken", initial_delay_ms=0)


def claim(snapshot: Snapshot, start: bool = False) -> Decision | None:
    judged = claims.judge_claim(snapshot, NOW, capabilities={"cpu", "net", "disk"}, unmet=(), draw=0)
    if judged is not None:
        return judged
    return claims.claim(
        snapshot, NOW, worker_id="worker-2", lease_ms=LEASE_MS, claim_id="claim-2", attempt_id="attempt-2", start=start
    )


def start(snapshot: Snapshot) -> Decision | None:
    return claims.start(snapshot, fence_of(snapshot), NOW, draw=0)


def heartbeat(snapshot: Snapshot) -> Decision | None:
    return claims.heartbeat(snapshot, fence_of(snapshot), NOW, extend_ms=LEASE_MS, draw=0)


def context(snapshot: Snapshot) -> Decision | None:
    return claims.context(
        snapshot,
        fence_of(snapshot),
        NOW,
        secret_references={"scope-a"},
        connection_scopes=snapshot.connection_scopes,
        draw=0,
    )


def checkpoint(snapshot: Snapshot, known: str | None = None, limit: int = 1000) -> Decision | None:
    return claims.checkpoint(
        snapshot,
        fence_of(snapshot),
        NOW,
        checkpoint_id="checkpoint-2",
        known=known,
        state_text='{"at":1}',
        limit=limit,
        draw=0,
    )


def release(snapshot: Snapshot, reason: str = "deploy", max_releases: int = 20, attempt: Any = None) -> Decision | None:
    return claims.release(
        snapshot, fence_of(snapshot), NOW, attempt=attempt, reason=reason, max_releases=max_releases, draw=0
    )


def confirm_cancel(snapshot: Snapshot, attempt: Any = None) -> Decision | None:
    return claims.confirm_cancel(snapshot, fence_of(snapshot), NOW, attempt=attempt, late_is_accepted=False)


def complete(snapshot: Snapshot) -> Decision | None:
    return reports.complete(snapshot, fence_of(snapshot), NOW, result_id="result-1", late_is_accepted=False, draw=0)


def fail(snapshot: Snapshot) -> Decision | None:
    decision, _ = reports.fail(
        snapshot,
        fence_of(snapshot),
        NOW,
        kind="broken",
        error="it broke",
        effect=Effect.NONE,
        retry_after_ms=None,
        late_is_accepted=False,
        draw=0,
    )
    return decision


def cancel(snapshot: Snapshot, force: bool = False, reason: str = "why", version: int | None = None) -> Decision | None:
    return interventions.cancel(snapshot, NOW, actor="anna", reason=reason, expected_version=version, force=force)


def force_cancel(snapshot: Snapshot) -> Decision | None:
    return cancel(snapshot, force=True)


def rearm(snapshot: Snapshot, restart: bool = False, version: int | None = None) -> Decision | None:
    return interventions.rearm(
        snapshot, NOW, actor="anna", reason="why", expected_version=version, restart_overall=restart
    )


def time_out(snapshot: Snapshot, reason: str = "why", version: int | None = None) -> Decision | None:
    return interventions.time_out(snapshot, NOW, actor="anna", reason=reason, expected_version=version)


def enforce(snapshot: Snapshot) -> Decision | None:
    return deadlines.enforce(snapshot, NOW, draw=0)


def give_up(snapshot: Snapshot) -> Decision | None:
    return recovery.give_up_on_dependency(snapshot, NOW, dependency="workload_8")


def past(name: str) -> Verb:
    """Enforce deadlines on the workload once its deadline `name` has passed."""
    return lambda snapshot: enforce(replace(snapshot, timeouts=Timeouts(**{f"{name}_ms": 1})))


def recover(snapshot: Snapshot) -> Decision | None:
    return recovery.recover(over(snapshot), NOW, draw=0)


def over(snapshot: Snapshot) -> Snapshot:
    """Let the lease, if there is one, end this instant."""
    claim = snapshot.claim
    return snapshot if claim is None else replace(snapshot, claim=replace(claim, expires_at=NOW))


VERBS: dict[str, Verb] = {
    "claim": claim,
    "claim_start": lambda snapshot: claim(snapshot, start=True),
    "start": start,
    "heartbeat": heartbeat,
    "context": context,
    "checkpoint": checkpoint,
    "checkpoint_same": lambda snapshot: checkpoint(snapshot, known='{"at":1}'),
    "checkpoint_other": lambda snapshot: checkpoint(snapshot, known='{"at":2}'),
    "release": release,
    "confirm_cancel": confirm_cancel,
    "complete": complete,
    "fail": fail,
    "cancel": cancel,
    "cancel_force": force_cancel,
    "rearm": rearm,
    "time_out": time_out,
    "enforce": enforce,
    "past_overall": past("overall"),
    "past_queue": past("queue"),
    "past_claim": past("claim"),
    "past_execution": past("execution"),
    "past_heartbeat": past("heartbeat"),
    "recover": recover,
    "recover_early": lambda snapshot: recovery.recover(snapshot, NOW, draw=0),
    "give_up": lambda snapshot: give_up(replace(snapshot, dependency_standing=Standing.UNMEETABLE)),
    "give_up_early": give_up,
}
