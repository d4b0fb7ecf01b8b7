"""Who is working: each worker's last signs of life. No claim, deadline or recovery reads them; `explain` does."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, F, Min, Value
from django.db.models.functions import Coalesce, Greatest

from workloads.authority import clock
from workloads.authority.dependencies import key_of
from workloads.authority.records import Transaction, alias
from workloads.authority.statements import insert
from workloads.lifecycle import arguments
from workloads.models import SeenWorker

logger = logging.getLogger("workloads.authority")

EVERY: Final = dt.timedelta(seconds=10)
KEPT: Final = dt.timedelta(days=7)
MOST_KEPT: Final = 10_000
MOST_REMEMBERED: Final = 10_000
MOST_FORGOTTEN: Final = 1_000
LOCK_MS: Final = 500
TOLD_EVERY_S: Final = 600.0


def note_worker(
    worker_id: str,
    *,
    capabilities: Iterable[str] | None = None,
    definitions: Iterable[str] | None = None,
    tenant_id: str | None = None,
    application_id: str | None = None,
    incarnation: str = "",
    is_remote: bool = False,
    has_claimed: bool = False,
    is_heartbeat: bool = False,
    now: dt.datetime | None = None,
) -> bool:
    """Note a sign of life of a worker, for people and for `explain`; return whether it was written down now.

    With `capabilities` it is one that offers itself: for work of this tenant and application (None is all) and of these
    `definitions` (None is any, an empty list none); what it last offered there stands in its row. Without them only
    rows are refreshed that are there: those under its name for this tenant, and for this application or all of them.
    `is_heartbeat`: it has kept a lease; otherwise it has asked for work, and with `has_claimed` was given some.

    The adapters say this for every worker that claims or beats through them; who calls the verbs directly may say it
    too, outside of the transaction of its work. A row is written at most once in ten seconds, whatever the number of
    threads and of servers, and what was seen in between is written with the next sign. Rows unseen for seven days, and
    those beyond the newest 10,000, go when another is made.

    Refused are bad arguments alone (WORKLOAD_INVALID). A registry that can't be written is logged once and hurts
    nothing: the answer is False. Only an error that has ended the caller's own transaction is raised. With `now`, this
    process's memory of what it has written of late is not asked, the database alone is.
    """
    given = arguments.now(now)
    arguments.identifier(worker_id, "worker_id")
    arguments.optional_identifier(tenant_id, "tenant_id")
    arguments.optional_identifier(application_id, "application_id")
    if incarnation:
        arguments.identifier(incarnation, "incarnation")
    for name, value in (("is_remote", is_remote), ("has_claimed", has_claimed), ("is_heartbeat", is_heartbeat)):
        arguments.boolean(value, name)
    able = None if capabilities is None else arguments.identifiers(capabilities, "capabilities")
    wanted = arguments.definitions(definitions)

    signs = ["heartbeat_at"] if is_heartbeat else ["asked_at"]
    if has_claimed:
        signs.append("claimed_at")
    place = (tenant_id, application_id, worker_id)
    offer: dict[str, Any] | None = None
    keys = {_key(*place)}
    if able is None:
        keys.add(_key(tenant_id, None, worker_id))
    else:
        offer = {
            "incarnation": incarnation,
            "is_remote": is_remote,
            "capabilities": able,
            "definitions": wanted,
        }
    if given is not None:
        ages = dict.fromkeys(signs, 0.0)
        return _try(lambda using: _write(using, place, keys, offer, ages, given)[0])
    remembered = (able is None, *place)
    due = memory.add(remembered, signs)
    if due is None:
        return False

    def write(using: str) -> bool:
        is_written, left_s = _write(using, place, keys, offer, due.ages, None)
        if is_written:
            memory.forget(due)
        else:
            memory.wait(due, left_s)
        return is_written

    return _try(write)


def _key(tenant_id: str | None, application_id: str | None, worker_id: str) -> Any:
    # No identifier is empty.
    return key_of(tenant_id or "", application_id or "", worker_id)


@dataclass(slots=True)
class Signs:
    """What this process has seen of a worker and not written, by its own clock, and when it may write again."""

    due_at: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be written now: each sign with the instant at which it was seen, and its age in seconds."""

    signs: Signs
    seen: Mapping[str, float]
    ages: Mapping[str, float]


class Memory:
    """What this process has written of late, so that most signs cost no question to the database. Bounded in size."""

    def __init__(self, read: Callable[[], float] = time.monotonic, most: int = MOST_REMEMBERED) -> None:
        self._read = read
        self._most = most
        self.clear()

    def __len__(self) -> int:
        return len(self._workers)

    def clear(self) -> None:
        """Remember nothing."""
        self._guard = threading.Lock()
        self._workers: OrderedDict[Hashable, Signs] = OrderedDict()

    def add(self, who: Hashable, names: Collection[str]) -> Due | None:
        """Remember signs; return what is to be written, to one thread in ten seconds, and None to all others."""
        with self._guard:
            now = self._read()
            signs = self._workers.setdefault(who, Signs())
            signs.seen.update(dict.fromkeys(names, now))
            if signs.due_at > now:
                return None
            signs.due_at = now + EVERY.total_seconds()
            self._workers.move_to_end(who)
            if len(self._workers) > self._most:
                self._workers.popitem(last=False)
            return Due(signs, dict(signs.seen), {name: now - at for name, at in signs.seen.items()})

    def forget(self, due: Due) -> None:
        """Let go of what was written; what has been seen since stays."""
        with self._guard:
            for name, at in due.seen.items():
                if due.signs.seen.get(name) == at:
                    del due.signs.seen[name]

    def wait(self, due: Due, left_s: float) -> None:
        """Try again once what another has written is ten seconds old."""
        with self._guard:
            due.signs.due_at = self._read() + left_s


memory: Final = Memory()
# A child process may have been forked while a thread that it does not have held the lock.
os.register_at_fork(after_in_child=memory.clear)


def _write(
    using: str,
    place: tuple[str | None, str | None, str],
    keys: Collection[Any],
    offer: Mapping[str, Any] | None,
    ages: Mapping[str, float],
    given: dt.datetime | None,
) -> tuple[bool, float]:
    """Write a worker's rows that are old enough; return whether there were any, and else how many seconds are left."""
    connection = connections[using]
    is_joined = connection.in_atomic_block
    with transaction.atomic(using=using), _briefly(connection, is_joined):
        now = clock.read(connection) if given is None else given
        signs = {name: now - dt.timedelta(seconds=age) for name, age in ages.items()}
        rows = SeenWorker.objects.using(using).filter(worker_key__in=keys)
        latest = {name: _latest(name, at) for name, at in signs.items()}
        if rows.filter(seen_at__lte=now - EVERY).update(seen_at=now, **latest, **(offer or {})):
            return True, 0.0
        seen_at = rows.aggregate(seen_at=Min("seen_at"))["seen_at"]
        if seen_at is not None or offer is None:
            left = EVERY if seen_at is None else seen_at + EVERY - now
            return False, min(left, EVERY).total_seconds()
        (key,) = keys
        tenant_id, application_id, worker_id = place
        row: dict[str, Any] = {
            **dict.fromkeys(("asked_at", "claimed_at", "heartbeat_at")),
            **signs,
            **offer,
            "worker_key": key,
            "worker_id": worker_id,
            "tenant_id": tenant_id,
            "application_id": application_id,
            "first_seen_at": now,
            "seen_at": now,
        }
        insert(Transaction(connection, now), SeenWorker, [row], unless="worker_key")
        # Another server may have been first.
        is_mine = rows.filter(seen_at=now).exists()
    _drop_old(connection, now)
    return is_mine, EVERY.total_seconds()


def _latest(name: str, at: dt.datetime) -> Any:
    """Return the later of what stands there and this instant: another server may have written a later one."""
    mine = Value(at, output_field=DateTimeField())
    return Greatest(Coalesce(F(name), mine), mine)


def _drop_old(connection: BaseDatabaseWrapper, now: dt.datetime) -> None:
    """Delete rows of workers that were not seen for long, and those beyond the newest 10,000, some at a time.

    Whoever takes a new name for each call must not fill the table. What somebody else deletes now is left to them.
    """
    is_joined = connection.in_atomic_block
    with transaction.atomic(using=connection.alias), _briefly(connection, is_joined):
        rows = SeenWorker.objects.using(connection.alias)
        beyond = rows.order_by("-seen_at").values_list("seen_at", flat=True)[MOST_KEPT : MOST_KEPT + 1]
        old = rows.filter(seen_at__lt=max([now - KEPT, *beyond])).order_by("pk")
        if connection.features.has_select_for_update_skip_locked:
            old = old.select_for_update(skip_locked=True)
        keys = list(old.values_list("pk", flat=True)[:MOST_FORGOTTEN])
        if keys:
            rows.filter(pk__in=keys).delete()


@contextmanager
def _briefly(connection: BaseDatabaseWrapper, is_joined: bool) -> Iterator[None]:
    """Let no statement of the block wait long for a lock: whoever holds up this table must hold up no worker.

    On PostgreSQL in a transaction of our own alone, since the bound would last until the end of the caller's.
    """
    if connection.vendor == "mysql":
        with connection.execute_wrapper(_hurried):
            yield
        return
    if connection.vendor == "postgresql" and not is_joined:
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_MS}ms'")
    yield


def _hurried(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    seconds = max(1, LOCK_MS // 1000)
    bound = f"SET STATEMENT lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds} FOR "
    return execute(bound + sql, params, many, context)


@dataclass(slots=True)
class News:
    """Whether the registry can be written, as this process last said in its log, and when it said so."""

    is_bad: bool = False
    told_at: float = float("-inf")

    def tell(self, error: Exception) -> None:
        """Log a failure, if the last was long ago: work goes on, and so would the lines."""
        now = time.monotonic()
        if now - self.told_at >= TOLD_EVERY_S:
            self.is_bad, self.told_at = True, now
            said = " ".join(str(error).split()) or type(error).__name__
            logger.warning("Who is working can't be written down (%s). Work goes on without.", said)

    def is_good(self) -> None:
        """Log the first success after a failure that was logged."""
        if self.is_bad:
            self.is_bad = False
            logger.warning("Who is working is written down again.")


news: Final = News()


def _try(write: Callable[[str], bool]) -> bool:
    """Write, and never raise, unless the caller's own transaction has been ended."""
    using = alias()
    try:
        is_written = write(using)
    except Exception as error:
        if connections[using].in_atomic_block and connections[using].needs_rollback:
            raise
        news.tell(error)
        return False
    news.is_good()
    return is_written
