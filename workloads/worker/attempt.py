"""What a handler is given: the work's input, its checkpoints, and how its lease stands."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from workloads.contract import CheckpointRecord, ExecutionContext, Fence
from workloads.errors import WORKLOAD_CHECKPOINT_CONFLICT, WORKLOAD_TRANSITION_DENIED, WorkloadError
from workloads.lifecycle import canonical
from workloads.worker.failures import WorkloadFailure, refusal_kind
from workloads.worker.lease import Cancelled, Lease, LeaseLost
from workloads.worker.port import Unanswered

T = TypeVar("T")


class Asking(Protocol):
    """Repeats a call until it is answered, or until `give_up` says so; no answer is waited for longer than `left_s`."""

    def __call__(
        self, call: Callable[[], T], *, give_up: Callable[[], bool], left_s: Callable[[], float] | None = None
    ) -> T: ...


class Attempt:
    """One attempt at one workload, for the handler that runs it."""

    def __init__(self, context: ExecutionContext, lease: Lease, ask: Asking, authority: Any) -> None:
        self._context = context
        self._lease = lease
        self._ask = ask
        self._authority = authority
        self._checkpoints = tuple(context.checkpoints)

    def __repr__(self) -> str:
        return (
            f"<Attempt {self.attempt_number} of {self.workload_id} ({self.definition_id}@{self.definition_revision})>"
        )

    @property
    def context(self) -> ExecutionContext:
        """All that the authority said of the work when the attempt began."""
        return self._context

    @property
    def workload_id(self) -> str:
        return self._context.workload_id

    @property
    def attempt_id(self) -> str:
        return self._context.attempt_id

    @property
    def attempt_number(self) -> int:
        return self._context.attempt_number

    @property
    def definition_id(self) -> str:
        return self._context.definition_id

    @property
    def definition_revision(self) -> str:
        return self._context.definition_revision

    @property
    def tenant_id(self) -> str:
        return self._context.tenant_id

    @property
    def application_id(self) -> str:
        return self._context.application_id

    @property
    def environment(self) -> str:
        return self._context.environment

    @property
    def capability_snapshot(self) -> frozenset[str]:
        return self._context.capability_snapshot

    @property
    def connection_scopes(self) -> frozenset[str]:
        return self._context.connection_scopes

    @property
    def fence(self) -> Fence:
        """What proves this attempt to the authority, and to any store that keeps the highest fencing token it saw."""
        return self._lease.fence

    @property
    def input(self) -> Any:
        """The input as it was admitted."""
        return self._context.input

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints of all attempts so far, this one's included, in order."""
        return self._checkpoints

    @property
    def last_checkpoint(self) -> CheckpointRecord | None:
        """The newest checkpoint, where a retry goes on; None if there is none."""
        return self._checkpoints[-1] if self._checkpoints else None

    @property
    def cancelled(self) -> bool:
        """Tell whether cancellation was requested, as the last heartbeat has said."""
        return self._lease.is_cancelled

    @property
    def lease_left_ms(self) -> int:
        """How many milliseconds the lease surely holds. Heartbeats keep it going; nobody is asked here."""
        return self._lease.left_ms

    @property
    def lease_left(self) -> float:
        """How many seconds the lease surely holds."""
        return self._lease.left_ms / 1000

    def check(self) -> None:
        """Raise if the body must stop: LeaseLost or Cancelled. Cheap: call it before each effect.

        LeaseLost comes as soon as this worker's own clock says that the lease is over, without anybody being asked.
        """
        self._lease.check()

    def checkpoint(self, state: Any, key: str | None = None) -> CheckpointRecord:
        """Save progress, a JSON value, for this attempt and later ones.

        Raises as `check` does, also when the lease ends while the database does not answer. With a `key` the same call
        may be repeated; without one, this call makes its own, so that a lost answer saves nothing twice. State that
        can't be stored is a WorkloadFailure: `checkpoint_invalid`, `checkpoint_too_large` or `checkpoint_secret`.
        """
        self.check()
        name = key if key is not None else f"call-{secrets.token_hex(8)}"
        try:
            # A copy, so that a repetition says the same, whatever else the body does to the state meanwhile.
            plain = canonical.parse(canonical.canonical(state, field="state"))
            record = self._ask(
                lambda: self._authority.checkpoint(self.fence, plain, key=name),
                give_up=lambda: self._lease.lost is not None,
                left_s=lambda: self.lease_left,
            )
        except Unanswered as error:
            self.check()
            raise LeaseLost("the checkpoint could not be saved") from error
        except WorkloadError as refusal:
            raise self._as_stop(refusal) from refusal
        if all(known.checkpoint_id != record.checkpoint_id for known in self._checkpoints):
            self._checkpoints += (record,)
        return record

    def _as_stop(self, refusal: WorkloadError) -> BaseException:
        kind = refusal_kind(refusal, "checkpoint")
        if kind is not None:
            return WorkloadFailure(kind, str(refusal))
        if refusal.code == WORKLOAD_CHECKPOINT_CONFLICT:
            return WorkloadFailure("checkpoint_conflict", str(refusal))
        if refusal.code == WORKLOAD_TRANSITION_DENIED:
            self._lease.cancel()
            return Cancelled("cancellation was requested")
        self._lease.lose(str(refusal))
        return LeaseLost(str(refusal))
