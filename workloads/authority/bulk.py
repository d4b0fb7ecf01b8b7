"""An operator's decision on all that match a filter: what was selected at which version, and how far it has come.

Every batch is one transaction that holds both the decisions and what became of the items, under the lock of the
action's row. So whatever ends it, nothing is lost and nothing is done twice; and two who carry on with the same action
take turns. What was admitted after the action had begun is not drawn in.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from django.core.exceptions import EmptyResultSet
from django.db import InterfaceError, OperationalError, connections
from django.db.models import Count, F, QuerySet

from workloads.authority.interventions import check
from workloads.authority.records import Transaction, alias, lock_workloads, transact
from workloads.authority.statements import execute_many
from workloads.authority.writes import write
from workloads.errors import WORKLOAD_NOT_FOUND, WORKLOAD_TRANSITION_DENIED, WorkloadError, invalid
from workloads.lifecycle import arguments, interventions as rules
from workloads.lifecycle.decision import Decision
from workloads.lifecycle.interventions import Verb
from workloads.models import BulkAction, BulkItem, Workload

SELECTED_AT_ONCE: Final = 20_000
DECIDED_AT_ONCE: Final = 250
DROPPED_AT_ONCE: Final = 10_000
KEPT: Final = dt.timedelta(days=30)
MOST_CRITERIA_CHARS: Final = 8_000
MOST_MESSAGE_CHARS: Final = 300

Outcome = tuple[str, str]

GONE: Final[Outcome] = (WORKLOAD_NOT_FOUND, "There is no such workload.")
UNREADABLE: Final[Outcome] = ("UNREADABLE", "The record can't be read.")
NOT_WRITTEN: Final[Outcome] = ("NOT_WRITTEN", "The database did not take the decision.")

_LARGEST_KEY: Final = 2**63 - 1

logger = logging.getLogger("workloads.authority")


def begin_bulk(verb: str, *, actor: str, criteria: str = "", now: dt.datetime | None = None) -> BulkAction:
    """Begin to select work for `verb`: rearm, cancel, force_cancel or time_out. Nothing is decided yet.

    `criteria` says how the work is found, in words of the caller's own, for whoever carries on. The items of an action
    that nobody has gone on with for 30 days are dropped on this occasion; what was done stands in the events.
    """
    given = arguments.now(now)
    if not isinstance(verb, str) or verb not in set(Verb):
        raise invalid("verb", f"must be one of {', '.join(Verb)}")
    arguments.identifier(actor, "actor")
    if len(arguments.string(criteria, "criteria")) > MOST_CRITERIA_CHARS or "\0" in criteria:
        raise invalid("criteria", f"must have at most {MOST_CRITERIA_CHARS} characters, and no NUL")

    def work(tx: Transaction) -> BulkAction:
        _tidy(tx)
        newest = Workload.objects.using(tx.alias).order_by("-pk").values_list("pk", flat=True)[:1]
        return BulkAction.objects.using(tx.alias).create(
            verb=verb,
            stage="selecting",
            actor=actor,
            criteria=criteria,
            upto=next(iter(newest), 0),
            created_at=tx.now,
            updated_at=tx.now,
        )

    return transact(work, now=given)


def select_bulk(
    action_id: int, rows: QuerySet[Workload], *, width: int = SELECTED_AT_ONCE, now: dt.datetime | None = None
) -> BulkAction:
    """Select those of the next `width` workloads, by their keys, that are among `rows`, at the versions they have.

    `rows` is the same QuerySet at each call, unordered and unsliced. Once all are selected the action is to be
    confirmed; then, and later, nothing changes. Refused: arguments; WORKLOAD_NOT_FOUND.
    """
    given = arguments.now(now)
    arguments.limit(width, "width")

    def work(tx: Transaction) -> BulkAction:
        action = _lock_action(tx, action_id)
        if action.stage != "selecting":
            return action
        start = action.selected_upto
        keys = Workload.objects.using(tx.alias).filter(pk__gt=start, pk__lt=action.upto).order_by("pk")
        # Bounded by what is read, not by what is found: a filter that finds little must not read everything at once.
        end = next(iter(keys.values_list("pk", flat=True)[width - 1 : width]), action.upto)
        _select(tx, action, rows.using(tx.alias).filter(pk__gt=start, pk__lte=end))
        items = BulkItem.objects.using(tx.alias).filter(action_id=action.pk, record__gt=start, record__lte=end)
        found = dict(items.values_list("state").annotate(count=Count("pk")))
        states = Counter(action.states) + Counter(found)
        return _step(
            tx,
            action,
            stage="asking" if end == action.upto else "selecting",
            selected_upto=end,
            selected_count=states.total(),
            states=dict(states),
        )

    return transact(work, now=given)


def _select(tx: Transaction, action: BulkAction, rows: QuerySet[Workload]) -> None:
    named = rows.order_by().annotate(bulk_record=F("pk"), bulk_version=F("version"), bulk_state=F("state"))
    chosen = named.values_list("bulk_record", "bulk_version", "bulk_state").distinct()
    try:
        sql, params = chosen.query.get_compiler(tx.alias).as_sql()
    except EmptyResultSet:
        return
    table = BulkItem._meta.db_table
    tx.run(
        f"INSERT INTO {table} (action_id, record, version, state, message) "
        f"SELECT {int(action.pk)}, bulk_record, bulk_version, bulk_state, '' FROM ({sql}) chosen ORDER BY bulk_record",
        params,
    )


def confirm_bulk(
    action_id: int, *, actor: str, reason: str, restart_overall: bool = False, now: dt.datetime | None = None
) -> BulkAction:
    """Let the action begin with what was selected. `reason` will stand in each event. Confirmed already: no change.

    Refused: arguments, a blank reason among them; WORKLOAD_NOT_FOUND; an action that still selects
    (WORKLOAD_TRANSITION_DENIED).
    """
    given = arguments.now(now)
    check(actor, reason)
    if not reason.strip():
        raise invalid("reason", "must not be blank")
    arguments.boolean(restart_overall, "restart_overall")

    def work(tx: Transaction) -> BulkAction:
        action = _lock_action(tx, action_id)
        if action.stage == "selecting":
            raise _denied(action)
        if action.stage != "asking":
            return action
        return _step(tx, action, stage="running", confirmed_by=actor, reason=reason, restart_overall=restart_overall)

    return transact(work, now=given)


def continue_bulk(
    action_id: int, *, actor: str, limit: int = DECIDED_AT_ONCE, now: dt.datetime | None = None
) -> BulkAction:
    """Decide on the next `limit` of the selected, each as the verb for one would, at the version that was selected.

    `actor` is who carries on now. What is refused is kept with its code. A row that can't be read, or whose decision
    the database does not take, is refused alone. Ended already: no change. Refused: arguments; WORKLOAD_NOT_FOUND; an
    action that is not confirmed (WORKLOAD_TRANSITION_DENIED).
    """
    given = arguments.now(now)
    arguments.identifier(actor, "actor")
    arguments.limit(limit)
    # Where the database refuses a batch, fewer at a time, until the one that it does not take is alone.
    for size in _smaller_and_smaller(limit):
        batch = partial(_batch, action_id=action_id, actor=actor, limit=size)
        try:
            return transact(partial(batch, decide=_decide), now=given)
        except (WorkloadError, OperationalError, InterfaceError):
            # Not the rows' fault: the whole batch may be tried again.
            raise
        except Exception:
            if connections[alias()].in_atomic_block:
                raise
            logger.exception("A batch of %d of bulk action %d could not be decided.", size, action_id)
    return transact(partial(batch, decide=_give_up), now=given)


def _smaller_and_smaller(limit: int) -> Iterator[int]:
    while limit > 1:
        yield limit
        limit //= 4
    yield 1


Batch = Callable[[Transaction, BulkAction, str, Sequence[BulkItem]], dict[int, Outcome]]


def _batch(tx: Transaction, *, action_id: int, actor: str, limit: int, decide: Batch) -> BulkAction:
    """Decide on the next items and note what became of them; return the action after it."""
    action = _lock_action(tx, action_id)
    if action.stage in {"selecting", "asking"}:
        raise _denied(action)
    if action.stage != "running":
        return action
    untried = BulkItem.objects.using(tx.alias).filter(action_id=action.pk, record__gt=action.done_upto)
    items = list(untried.order_by("record")[:limit])
    refused = decide(tx, action, actor, items)
    kept = [(*refused[item.record], item.pk) for item in items if item.record in refused]
    execute_many(tx, BulkItem, ("code", "message"), ("id",), kept)
    refusals = Counter(action.refusals) + Counter(code for code, _message, _pk in kept)
    done_upto = items[-1].record if items else action.done_upto
    # What was done stands in the events.
    untried.filter(record__lte=done_upto, code=None).delete()
    return _step(
        tx,
        action,
        stage="running" if len(items) == limit else "done",
        done_upto=done_upto,
        done_count=action.done_count + len(items) - len(kept),
        refused_count=action.refused_count + len(kept),
        refusals=dict(refusals),
    )


def _decide(tx: Transaction, action: BulkAction, actor: str, items: Sequence[BulkItem]) -> dict[int, Outcome]:
    spoilt: list[int] = []
    locked = {s.pk: s for s in lock_workloads(tx, pks=[item.record for item in items], spoilt=spoilt)}
    refused: dict[int, Outcome] = {}
    decisions: list[Decision] = []
    for item in items:
        if item.record not in locked:
            refused[item.record] = UNREADABLE if item.record in spoilt else GONE
            continue
        try:
            decision = rules.decide(
                Verb(action.verb),
                locked[item.record],
                tx.now,
                actor=actor,
                reason=action.reason,
                expected_version=item.version,
                restart_overall=action.restart_overall,
            )
        except WorkloadError as refusal:
            refused[item.record] = (refusal.code, refusal.message[:MOST_MESSAGE_CHARS])
        else:
            decisions += [decision] if decision is not None else []
    write(tx, decisions)
    return refused


def _give_up(tx: Transaction, action: BulkAction, actor: str, items: Sequence[BulkItem]) -> dict[int, Outcome]:
    return {item.record: NOT_WRITTEN for item in items}


def stop_bulk(action_id: int, *, actor: str, now: dt.datetime | None = None) -> BulkAction:
    """End the action where it is: what was not tried is left alone for good. Ended already: no change.

    Refused: arguments; WORKLOAD_NOT_FOUND.
    """
    given = arguments.now(now)
    arguments.identifier(actor, "actor")

    def work(tx: Transaction) -> BulkAction:
        action = _lock_action(tx, action_id)
        if action.stage in {"done", "stopped"}:
            return action
        return _step(tx, action, stage="stopped", stopped_by=actor)

    return transact(work, now=given)


def _lock_action(tx: Transaction, action_id: int) -> BulkAction:
    is_key = isinstance(action_id, int) and not isinstance(action_id, bool) and 0 < action_id <= _LARGEST_KEY
    rows = BulkAction.objects.using(tx.alias).select_for_update().filter(pk=action_id) if is_key else ()
    for action in rows:
        return action
    raise WorkloadError(WORKLOAD_NOT_FOUND, "There is no such bulk action.")


def _step(tx: Transaction, action: BulkAction, **changes: Any) -> BulkAction:
    """Write the changes to the locked row, and return it as it is now."""
    for name, value in (changes | {"updated_at": tx.now}).items():
        setattr(action, name, value)
    action.save(using=tx.alias, update_fields=[*changes, "updated_at"])
    return action


def _denied(action: BulkAction) -> WorkloadError:
    return WorkloadError(
        WORKLOAD_TRANSITION_DENIED, "The bulk action is not ready for this yet.", {"stage": action.stage}
    )


def _tidy(tx: Transaction) -> None:
    """Drop some of the items of the action that was left alone the longest, if that is long enough."""
    old = BulkAction.objects.using(tx.alias).filter(items_are_kept=True, updated_at__lt=tx.now - KEPT)
    skips = tx.connection.features.has_select_for_update_skip_locked
    for action in old.order_by("updated_at").select_for_update(skip_locked=skips)[:1]:
        items = BulkItem.objects.using(tx.alias).filter(action_id=action.pk)
        last = items.order_by("record").values_list("record", flat=True)[DROPPED_AT_ONCE - 1 : DROPPED_AT_ONCE]
        for record in last:
            items.filter(record__lte=record).delete()
            return
        items.delete()
        # Without a step of `updated_at`: nobody has gone on with it.
        action.items_are_kept = False
        action.stage = "done" if action.stage == "done" else "stopped"
        action.save(using=tx.alias, update_fields=["items_are_kept", "stage"])
