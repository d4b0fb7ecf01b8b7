"""New work as rows: what an admission stores of a request that has been checked."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

from django.db.models.base import ModelState
from django.db.models.signals import post_init, pre_init

from workloads.authority.dependencies import Ancestry, key_of
from workloads.authority.records import Transaction
from workloads.authority.snapshots import COLD
from workloads.contract import CONTRACT_VERSION, AdmissionRequest, WorkloadState
from workloads.fields import CanonicalText
from workloads.lifecycle import canonical
from workloads.lifecycle.admission import Terms
from workloads.lifecycle.dependencies import worst
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Workload

_NEW: Final = {
    "version": 0,
    "state": WorkloadState.CREATED,
    "next_attempt_at": None,
    "attempt_count": 0,
    "retry_count": 0,
    "release_count": 0,
    "uncounted_releases": 0,
    "operator_retries": 0,
    "fencing_token": 0,
    "last_failure": None,
    "finished_at": None,
    "event_count": 0,
    "checkpoint_count": 0,
    "claim": None,
}
"""How every workload stands before its first event."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request whose arguments have been checked: normalised, with its identity and its input as canonical text."""

    request: AdmissionRequest
    workload_id: str
    input_text: str
    terms: Terms


def lane_row(item: Prepared) -> dict[str, Any]:
    """Return the row of the lane that the work belongs in; `lane_key` names it."""
    r = item.request
    capabilities = sorted(r.capability_snapshot)
    return {
        "lane_key": key_of(r.tenant_id, r.application_id, r.definition_id, r.definition_revision, *capabilities),
        "tenant_id": r.tenant_id,
        "application_id": r.application_id,
        "definition_id": r.definition_id,
        "definition_revision": r.definition_revision,
        "capabilities": capabilities,
    }


def admitted_row(item: Prepared, lane_id: int, ancestry: Ancestry, now: dt.datetime) -> dict[str, Any]:
    """Return the row of what was admitted, by attribute name."""
    r = item.request
    return {
        "workload_id": item.workload_id,
        "tenant_id": r.tenant_id,
        "application_id": r.application_id,
        "requested_by": r.requested_by,
        "idempotency_key": r.idempotency_key,
        "contract_version": CONTRACT_VERSION,
        "definition_id": r.definition_id,
        "definition_revision": r.definition_revision,
        "environment": r.environment,
        "input": CanonicalText(item.input_text),
        "input_hash": item.terms.input,
        "trigger": r.trigger,
        "session_id": r.session_id,
        "capability_snapshot": frozenset(r.capability_snapshot),
        "connection_scopes": frozenset(r.connection_scopes),
        "grant": r.grant,
        "retry_policy": r.retry_policy,
        "timeouts": r.timeouts,
        "not_before": r.not_before,
        "created_at": now,
        "lane_id": lane_id,
        "ancestry_is_closed": ancestry.is_closed,
    }


def created_snapshot(pk: int, item: Prepared, values: dict[str, Any], ancestry: Ancestry) -> Snapshot:
    """Return the workload as it is before its first event: CREATED, version 0."""
    now = values["created_at"]
    return Snapshot.of(
        {name: values[name] for name in COLD}
        | _NEW
        | {
            "pk": pk,
            "priority": item.request.priority,
            "updated_at": now,
            "overall_from": now,
            "dependency_standing": worst(ancestry.standings.values()),
        }
    )


def made_instance(
    tx: Transaction, pk: int, item: Prepared, values: dict[str, Any], standing: dict[str, Any]
) -> Workload:
    """Return the new workload as a model instance, as a query would, without asking the database for what is known."""
    given = {"id": pk, "admitted_id": pk} | values | standing | {"input": canonical.parse(item.input_text)}
    if pre_init.has_listeners(Workload) or post_init.has_listeners(Workload):
        workload = Workload(**given)
    else:
        # What Model.__init__ would make of it, which takes a third of the time of an admission in a batch.
        workload = Workload.__new__(Workload)
        workload.__dict__.update(given, _state=ModelState())
    workload._state.adding = False
    workload._state.db = tx.alias
    return workload
