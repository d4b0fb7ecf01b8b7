"""What an admission finds out about the work that it depends on. Section 4, "Dependencies"."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workloads.authority.records import ROWS_A_STATEMENT, Transaction
from workloads.authority.statements import insert, parts
from workloads.authority.writes import refresh, write_standings
from workloads.contract import AdmissionRequest, Dependency
from workloads.lifecycle.admission import cyclic, find_cycle
from workloads.lifecycle.dependencies import standing_of
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.models import Admitted, ApplicationLock, Dependency as DependencyRow, Tombstone, Workload

_IN_TIME: Final = re.compile("[0-9a-f]{12}7[0-9a-f]{19}")


def key_of(*names: str) -> uuid.UUID:
    """Return a digest of names, for a unique column: an index over long names would be refused or fail."""
    text = json.dumps(names, separators=(",", ":"), ensure_ascii=False)
    # MariaDB refuses some values that bear no version.
    return uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=5)


def result_key_of(tenant_id: str, result_id: str) -> uuid.UUID:
    """Return what a result id may be used for once in a tenant: a digest of both.

    Where the id begins with an instant, as the authority's attempts' and UUIDs of version 7 without hyphens do, so does
    the key, in the place of a third of the digest. What is reported within an hour stands side by side in the index
    then; at random places of a large one, each result would read a page and have it written whole to the log.
    """
    key = key_of(tenant_id, result_id)
    if _IN_TIME.fullmatch(result_id) is None:
        return key
    return uuid.UUID(f"{result_id[:12]}7{key.hex[13:]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A workload that is depended on, as it stands; it stays so until the admission is committed."""

    state: str
    is_pruned: bool
    ancestry_is_closed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Ancestry:
    """How each dependency of a new workload stands, by id, and whether no cycle can ever reach it."""

    standings: Mapping[str, Standing]
    is_closed: bool


def _find(tx: Transaction, request: AdmissionRequest, ids: Collection[str]) -> dict[str, Found]:
    """Return those of `ids` that exist in the request's tenant and application, share-locked, or were pruned."""
    found: dict[str, Found] = {}
    share = {"postgresql": " FOR SHARE OF w", "mysql": " LOCK IN SHARE MODE"}.get(tx.connection.vendor, "")
    for part in parts(sorted(ids), ROWS_A_STATEMENT):
        marks = ", ".join(["%s"] * len(part))
        rows = tx.execute(
            f"SELECT a.workload_id, w.state, a.ancestry_is_closed FROM {Workload._meta.db_table} w "
            f"JOIN {Admitted._meta.db_table} a ON a.id = w.admitted_id WHERE a.workload_id IN ({marks}) "
            f"AND a.tenant_id = %s AND a.application_id = %s ORDER BY w.admitted_id{share}",
            [*part, request.tenant_id, request.application_id],
        )
        for workload_id, state, closed in rows:
            found[workload_id] = Found(state=state, is_pruned=False, ancestry_is_closed=bool(closed))
        missing = [workload_id for workload_id in part if workload_id not in found]
        pruned = Tombstone.objects.using(tx.alias).filter(
            workload_id__in=missing, tenant_id=request.tenant_id, application_id=request.application_id
        )
        for workload_id, state in pruned.values_list("workload_id", "state"):
            found[workload_id] = Found(state=state, is_pruned=True, ancestry_is_closed=True)
    return found


def judge(
    tx: Transaction, request: AdmissionRequest, workload_id: str, beside: Mapping[str, Collection[str]]
) -> Ancestry:
    """Find how the dependencies of a new workload stand; refuse those that would close a cycle.

    `beside` says what work of its application depends on that is to be stored together with it.

    Only an admission that reaches an id not yet committed can race with another that closes a cycle: it alone takes a
    lock, one for each application, and looks again once it has it.
    """
    dependencies: Sequence[Dependency] = tuple(request.dependencies)
    if not dependencies:
        return Ancestry(standings={}, is_closed=True)
    is_locked = False
    while True:
        found = _find(tx, request, [d.workload_id for d in dependencies])
        closed = all(d.workload_id in found and found[d.workload_id].ancestry_is_closed for d in dependencies)
        if not closed:
            dependencies_of = _dependencies_of(tx, request, beside)
            cycle = find_cycle(workload_id, dependencies, dependencies_of)
            if cycle is not None:
                raise cyclic(cycle)
            if not is_locked and dependencies_of.met_what_does_not_exist:
                _lock_application(tx, request)
                is_locked = True
                continue
        standings = {}
        for d in dependencies:
            target = found.get(d.workload_id)
            standings[d.workload_id] = (
                Standing.MISSING
                if target is None
                else standing_of(target.state, d.required_state, pruned=target.is_pruned)
            )
        return Ancestry(standings=standings, is_closed=closed)


class _dependencies_of:
    """Answer, for ids, what those of the request's application depend on whose ancestry is open.

    Whether all of them exist is asked first: one that is committed in between is then seen with what it depends on.
    """

    def __init__(self, tx: Transaction, request: AdmissionRequest, beside: Mapping[str, Collection[str]]) -> None:
        self.tx = tx
        self.beside = beside
        self.met_what_does_not_exist = False
        self.rows = DependencyRow.objects.using(tx.alias).filter(
            dependent__tenant_id=request.tenant_id,
            dependent__application_id=request.application_id,
            dependent__ancestry_is_closed=False,
        )

    def __call__(self, ids: Collection[str]) -> dict[str, list[str]]:
        self.met_what_does_not_exist = self.met_what_does_not_exist or _some_do_not_exist(self.tx, ids)
        answer = {workload_id: list(self.beside[workload_id]) for workload_id in ids if workload_id in self.beside}
        for part in parts(sorted(ids), ROWS_A_STATEMENT):
            rows = self.rows.filter(dependent__workload_id__in=part).order_by("dependent__workload_id", "depends_on")
            for source, target in rows.values_list("dependent__workload_id", "depends_on"):
                answer.setdefault(source, []).append(target)
        return answer


def _some_do_not_exist(tx: Transaction, ids: Collection[str]) -> bool:
    existing = 0
    for part in parts(sorted(ids), ROWS_A_STATEMENT):
        existing += Admitted.objects.using(tx.alias).filter(workload_id__in=part).count()
    return existing < len(ids)


def _lock_application(tx: Transaction, request: AdmissionRequest) -> None:
    key = key_of(request.tenant_id, request.application_id)
    insert(tx, ApplicationLock, [{"lock_key": key}], unless="lock_key")
    # Evaluated for its lock.
    list(ApplicationLock.objects.using(tx.alias).select_for_update().filter(lock_key=key))


def look_again(tx: Transaction, locked: Sequence[Snapshot]) -> None:
    """Find anew how the dependencies of locked workloads stand that nobody had admitted when they were asked for."""
    by_pk = {snapshot.pk: snapshot for snapshot in locked}
    rows = DependencyRow.objects.using(tx.alias).filter(dependent__in=by_pk, standing=str(Standing.MISSING))
    standings: dict[int, str] = {}
    for part in parts(rows, ROWS_A_STATEMENT):
        found = _states(tx, {row.depends_on for row in part})
        for row in part:
            dependent = by_pk[row.dependent_id]
            state, is_pruned = found.get((dependent.tenant_id, dependent.application_id, row.depends_on), (None, False))
            standing = standing_of(state, row.required_state, pruned=is_pruned)
            if standing is not Standing.MISSING:
                standings[row.pk] = str(standing)
    write_standings(tx, standings)
    refresh(tx, locked, tx.now)


def _states(tx: Transaction, ids: Collection[str]) -> dict[tuple[str, str, str], tuple[str, bool]]:
    """Return by tenant, application and id the states of workloads, pruned ones too, and whether they were."""
    names = ("tenant_id", "application_id", "workload_id", "state")
    found: dict[tuple[str, str, str], tuple[str, bool]] = {}
    # What is alive comes last, and wins over its tombstone.
    for model, is_pruned in ((Tombstone, True), (Workload, False)):
        for *key, state in model._default_manager.using(tx.alias).filter(workload_id__in=ids).values_list(*names):
            found[(key[0], key[1], key[2])] = (state, is_pruned)
    return found
