"""The clock's voice: the pass that enforces deadlines, takes back lost work, and gives up on what can't be. Section 8.

The index on `due_at` says which rows may be due; the rules say, on each locked row, whether they are. Work is done in
small committed batches; a batch that fails is done again row by row, so that one bad row is named and stops no other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import Error, connections, transaction

from workloads.authority import clock
from workloads.authority.dependencies import look_again
from workloads.authority.records import Transaction, alias, draw, lock_workloads, transact
from workloads.authority.statements import insert
from workloads.authority.writes import write, write_derived
from workloads.contract import PassReport, Timeouts
from workloads.lifecycle import arguments, deadlines, recovery as rules
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.snapshot import Snapshot, Standing
from workloads.models import Admitted, Dependency, PassRun, Workload

BATCH: Final = 100

Judge = Callable[[Transaction, Snapshot], Decision | None]


@dataclass(slots=True)
class Sweep:
    """One run over what is due: the ids that were decided, and the rows whose decision failed.

    With `has_timeouts`, over what has any: all that is due of the rest is leases, which another run is for.
    """

    judge: Judge
    given: dt.datetime | None
    limit: int | None
    before: Callable[[Transaction, list[Snapshot]], list[Snapshot]] | None = None
    has_timeouts: bool = False
    decided: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Decide all that is due now, batch by batch, each workload at most once."""
        for pks in self._pages():
            while pks and not self._is_done:
                room = len(pks) if self.limit is None else self.limit - len(self.decided)
                batch, pks = pks[:room], pks[room:]
                self._decide(batch)
            if self._is_done:
                return

    @property
    def _is_done(self) -> bool:
        return self.limit is not None and len(self.decided) >= self.limit

    def _pages(self) -> Iterator[list[int]]:
        """Yield keys of what may be due, paging by key: what stays due is seen once, and hides nothing behind it."""
        using = alias()
        now = self.given if self.given is not None else clock.read(connections[using])
        after: tuple[dt.datetime, int] | None = None
        while True:
            rows = Workload.objects.using(using).filter(due_at__lte=now)
            if self.has_timeouts:
                rows = rows.exclude(timeouts=Timeouts())
            if after is not None:
                # Spelt out twice: the first bounds the index range, which the second alone would not on MariaDB.
                rows = rows.filter(due_at__gte=after[0]).exclude(due_at=after[0], admitted_id__lte=after[1])
            page = list(rows.order_by("due_at", "admitted_id").values_list("due_at", "admitted_id")[:BATCH])
            if page:
                yield [pk for _, pk in page]
                due_at, pk = page[-1]
                assert due_at is not None
                after = (due_at, pk)
            if len(page) < BATCH:
                return

    def _decide(self, pks: Sequence[int]) -> None:
        session = connections[alias()].connection
        try:
            self.decided += self._commit(pks)
        except Exception as error:
            if isinstance(error, Error) and not _is_usable(session):
                raise
            if len(pks) == 1:
                self.failed[_name(pks[0])] = f"{type(error).__name__}: {error}"
                return
            for pk in pks:
                self._decide([pk])

    def _commit(self, pks: Sequence[int]) -> list[str]:
        def work(tx: Transaction) -> list[str]:
            locked = lock_workloads(tx, pks=sorted(pks), wait=False)
            if self.before is not None:
                locked = self.before(tx, locked)
            decisions = []
            early = []
            for snapshot in locked:
                decision = self.judge(tx, snapshot)
                if decision is not None:
                    decisions.append(decision)
                elif snapshot.dependency_standing in (Standing.MET, Standing.WAITING):
                    due_at = rules.derive(snapshot, tx.now).due_at
                    if due_at is None or due_at > tx.now:
                        early.append(snapshot)
            # First: what follows from the decisions may change how the dependencies of these stand.
            write_derived(tx, early, tx.now)
            write(tx, decisions)
            return [d.after.workload_id for d in decisions]

        # Within a caller's transaction a failing batch must undo itself alone.
        if connections[alias()].in_atomic_block:
            with transaction.atomic(using=alias()):
                return transact(work, now=self.given)
        return transact(work, now=self.given)


def _is_usable(session: object) -> bool:
    """Tell whether the connection is the one that it was, and answers: then the rows are at fault, not the database.

    Django may have connected anew since; whether the batch was committed before, nobody knows then, and the next run
    starts from the data.
    """
    connection = connections[alias()]
    if connection.connection is not session:
        return False
    return not connection.needs_rollback if connection.in_atomic_block else connection.is_usable()


def _name(pk: int) -> str:
    return Admitted.objects.using(alias()).filter(pk=pk).values_list("workload_id", flat=True).first() or str(pk)


def _enforce(tx: Transaction, snapshot: Snapshot) -> Decision | None:
    return deadlines.enforce(snapshot, tx.now, draw=draw())


def _recover(tx: Transaction, snapshot: Snapshot) -> Decision | None:
    return rules.recover(snapshot, tx.now, draw=draw())


def _give_up(tx: Transaction, snapshot: Snapshot) -> Decision | None:
    if snapshot.dependency_standing is not Standing.UNMEETABLE:
        return None
    unmeetable = Dependency.objects.using(tx.alias).filter(dependent=snapshot.pk, standing=str(Standing.UNMEETABLE))
    first = unmeetable.order_by("depends_on").values_list("depends_on", flat=True)[0]
    return rules.give_up_on_dependency(snapshot, tx.now, dependency=first)


def _look_again(tx: Transaction, locked: list[Snapshot]) -> list[Snapshot]:
    missing = [s for s in locked if s.dependency_standing is Standing.MISSING]
    if not missing:
        return locked
    look_again(tx, missing)
    return lock_workloads(tx, pks=[s.pk for s in locked])


def _sweep(
    judge: Judge,
    now: dt.datetime | None,
    limit: int | None,
    before: Callable[[Transaction, list[Snapshot]], list[Snapshot]] | None = None,
    has_timeouts: bool = False,
) -> Sweep:
    given = arguments.now(now)
    sweep = Sweep(judge, given, arguments.optional_limit(limit), before, has_timeouts)
    sweep.run()
    return sweep


def _answer(sweep: Sweep) -> list[str]:
    if sweep.failed:
        named = "; ".join(f"{workload_id}: {message}" for workload_id, message in sweep.failed.items())
        raise RuntimeError(f"Decided {len(sweep.decided)}; these could not be decided: {named}")
    return sweep.decided


def enforce_deadlines(*, now: dt.datetime | None = None, limit: int | None = None) -> list[str]:
    """Time out every workload whose deadline has passed, at most `limit`; return their ids. Section 8.

    A row locked by someone else is left to the next pass. If rows could not be decided, the others are, and then a
    RuntimeError names them; `run_pass` reports them instead.
    """
    return _answer(_sweep(_enforce, now, limit, has_timeouts=True))


def recover_expired(*, now: dt.datetime | None = None, limit: int | None = None) -> list[str]:
    """Take back every held workload whose lease is over, at most `limit`; return their ids. Section 8.

    Rows that are locked or can't be decided: as `enforce_deadlines`.
    """
    return _answer(_sweep(_recover, now, limit))


def dead_letter_unsatisfiable(*, now: dt.datetime | None = None, limit: int | None = None) -> list[str]:
    """Park READY work whose dependency can't come into its required state, at most `limit`; return their ids.

    Rows that are locked or can't be decided: as `enforce_deadlines`. Section 4.
    """
    return _answer(_sweep(_give_up, now, limit, _look_again))


def run_pass(*, now: dt.datetime | None = None, limit: int | None = None) -> PassReport:
    """Do deadlines, then recovery, then unsatisfiable dependencies; `limit` is for each. Section 8.

    Any number of passes may run at once, on any number of nodes: each workload is decided exactly once, on its locked
    row. `failed` maps the id of each row that could not be decided to the reason.
    """
    timed_out = _sweep(_enforce, now, limit, has_timeouts=True)
    recovered = _sweep(_recover, now, limit)
    unsatisfiable = _sweep(_give_up, now, limit, _look_again)
    _note(arguments.now(now))
    return PassReport(
        timed_out=timed_out.decided,
        recovered=recovered.decided,
        unsatisfiable=unsatisfiable.decided,
        failed=timed_out.failed | recovered.failed | unsatisfiable.failed,
    )


def _note(now: dt.datetime | None) -> None:
    """Note that a pass has run; `explain` reads it. Two that end at once need not wait for each other's note."""

    def work(tx: Transaction) -> None:
        rows = PassRun.objects.using(tx.alias).filter(id=1)
        if not rows.update(ran_at=tx.now):
            insert(tx, PassRun, [{"id": 1, "ran_at": tx.now}], unless="id")

    transact(work, now=now)
