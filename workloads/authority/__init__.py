"""The public verbs of the product: everything that may be said to the authority, as plain functions.

Each is one guarded transaction, which joins the caller's if there is one. Each takes `now`, an aware instant for tests
and replays; None is the database's clock, read once the rows are locked. Each refuses with
`workloads.errors.WorkloadError`, and changes nothing then, unless it says that it records something.

- requester: `admit`, `admit_many`, `issue_grant`
- worker: `claim`, `claim_next`, both also as `…_with_context`; `start`, `heartbeat`, `heartbeat_many`, `context`,
  `checkpoint`, `release`, `confirm_cancel`; `complete`, `complete_many`, `fail`
- operator: `cancel`, `rearm`, `time_out`, `explain`
- clock: `enforce_deadlines`, `recover_expired`, `dead_letter_unsatisfiable`, `run_pass`
- everybody: `get`, `list_for`; `read_clock`, `verify`
"""

from workloads.authority.admission import admit, admit_many
from workloads.authority.claims import claim, claim_next, claim_next_with_context, claim_with_context
from workloads.authority.clock import read_clock
from workloads.authority.explain import explain
from workloads.authority.grants import issue_grant
from workloads.authority.interventions import cancel, get, list_for, rearm, time_out
from workloads.authority.leases import checkpoint, confirm_cancel, context, heartbeat, heartbeat_many, release, start
from workloads.authority.recovery import dead_letter_unsatisfiable, enforce_deadlines, recover_expired, run_pass
from workloads.authority.reports import complete, complete_many, fail
from workloads.authority.verification import verify

__all__ = [
    "admit",
    "admit_many",
    "cancel",
    "checkpoint",
    "claim",
    "claim_next",
    "claim_next_with_context",
    "claim_with_context",
    "complete",
    "complete_many",
    "confirm_cancel",
    "context",
    "dead_letter_unsatisfiable",
    "enforce_deadlines",
    "explain",
    "fail",
    "get",
    "heartbeat",
    "heartbeat_many",
    "issue_grant",
    "list_for",
    "read_clock",
    "rearm",
    "recover_expired",
    "release",
    "run_pass",
    "start",
    "time_out",
    "verify",
]
