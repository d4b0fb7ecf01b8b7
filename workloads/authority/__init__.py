"""The public verbs of the product: everything that may be said to the authority, as plain functions.

Each is one guarded transaction, which joins the caller's if there is one. Each takes `now`, an aware instant for tests
and replays; None is the database's clock, read once the rows are locked. Each refuses with
`workloads.errors.WorkloadError`, and changes nothing then, unless it says that it records something.

- requester: `admit`, `admit_many`, `issue_grant`
- worker: `claim`, `claim_next`, both also as `…_with_context`; `start`, `heartbeat`, `heartbeat_many`, `context`,
  `checkpoint`, `release`, `confirm_cancel`; `complete`, `complete_many`, `fail`; `note_worker`
- operator: `cancel`, `rearm`, `time_out`, `explain`; of many at once `begin_bulk`, `select_bulk`, `confirm_bulk`,
  `continue_bulk`, `stop_bulk`
- clock: `enforce_deadlines`, `recover_expired`, `dead_letter_unsatisfiable`, `run_pass`
- everybody: `get`, `list_for`, `read_grant`; `read_clock`, `verify`
"""

from workloads.authority.admission import admit, admit_many
from workloads.authority.bulk import begin_bulk, confirm_bulk, continue_bulk, select_bulk, stop_bulk
from workloads.authority.claims import claim, claim_next, claim_next_with_context, claim_with_context
from workloads.authority.clock import read_clock
from workloads.authority.explain import explain
from workloads.authority.grants import issue_grant, read_grant
from workloads.authority.interventions import cancel, get, list_for, rearm, time_out
from workloads.authority.leases import checkpoint, confirm_cancel, context, heartbeat, heartbeat_many, release, start
from workloads.authority.recovery import dead_letter_unsatisfiable, enforce_deadlines, recover_expired, run_pass
from workloads.authority.registry import note_worker
from workloads.authority.reports import complete, complete_many, fail
from workloads.authority.verification import verify

__all__ = [
    "admit",
    "admit_many",
    "begin_bulk",
    "cancel",
    "checkpoint",
    "claim",
    "claim_next",
    "claim_next_with_context",
    "claim_with_context",
    "complete",
    "complete_many",
    "confirm_bulk",
    "confirm_cancel",
    "context",
    "continue_bulk",
    "dead_letter_unsatisfiable",
    "enforce_deadlines",
    "explain",
    "fail",
    "get",
    "heartbeat",
    "heartbeat_many",
    "issue_grant",
    "list_for",
    "note_worker",
    "read_clock",
    "read_grant",
    "rearm",
    "recover_expired",
    "release",
    "run_pass",
    "select_bulk",
    "start",
    "stop_bulk",
    "time_out",
    "verify",
]
