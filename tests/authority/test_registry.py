"""The registry of workers: written rarely, never in the way of work, and read by nothing that decides."""

from __future__ import annotations

import ast
import datetime as dt
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from tests.authority.builders import WORKER_CALLS, admit, bring, refused, take
from tests.authority.connections import Undone, other_connection, without_registry
from tests.races.processes import race
from tests.support import T0, at
from workloads import authority
from workloads.authority import registry
from workloads.authority.registry import Memory
from workloads.models import SeenWorker

pytestmark = pytest.mark.django_db

NOW = at(5_000)
AUTHORITY = Path(registry.__file__).parent


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    registry.memory.clear()
    registry.news.__init__()
    yield
    registry.memory.clear()


def note(worker_id: str = "w", *, now: Any = T0, **fields: Any) -> bool:
    """Note that a worker asks for work."""
    return authority.note_worker(worker_id, now=now, **{"capabilities": ("a",)} | fields)


def beat(worker_id: str = "w", **fields: Any) -> bool:
    """Note that a worker keeps a lease, as one does that knows no more of it."""
    return authority.note_worker(worker_id, **{"now": T0, "is_heartbeat": True} | fields)


def statements(call: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured]


# What is written


def test_the_first_sign_makes_a_row_that_says_what_the_worker_offers() -> None:
    assert note(
        definitions=["d", "e@2"],
        tenant_id="t",
        application_id="app",
        incarnation="host-1",
        is_remote=True,
        capabilities=["b", "a"],
    )
    row = SeenWorker.objects.get()
    assert (row.worker_id, row.tenant_id, row.application_id) == ("w", "t", "app")
    assert (row.incarnation, row.is_remote) == ("host-1", True)
    assert (row.capabilities, row.definitions) == (frozenset("ab"), frozenset({"d", "e@2"}))
    assert row.first_seen_at == row.seen_at == row.asked_at == T0
    assert row.claimed_at is None and row.heartbeat_at is None


def test_a_worker_that_takes_whatever_there_is_has_no_definitions_and_one_that_takes_none_an_empty_set() -> None:
    note("any")
    note("none", definitions=[])
    assert dict(SeenWorker.objects.values_list("worker_id", "definitions")) == {"any": None, "none": frozenset()}


def test_a_row_is_written_at_most_once_in_ten_seconds() -> None:
    assert note()
    assert not note(now=at(9_999), has_claimed=True)
    row = SeenWorker.objects.get()
    assert (row.seen_at, row.claimed_at) == (T0, None)
    assert note(now=at(10_000), has_claimed=True)
    row = SeenWorker.objects.get()
    assert (row.first_seen_at, row.seen_at, row.asked_at, row.claimed_at) == (T0, at(10_000), at(10_000), at(10_000))


def test_what_a_worker_offers_now_takes_the_place_of_what_it_offered() -> None:
    note(definitions=["old"], incarnation="one")
    note(now=at(10_000), definitions=["new"], incarnation="two", capabilities=["c"], is_remote=True)
    row = SeenWorker.objects.get()
    assert (row.definitions, row.incarnation, row.capabilities) == (frozenset({"new"}), "two", frozenset("c"))
    assert row.is_remote


def test_one_name_in_two_places_is_two_workers() -> None:
    for place in ({}, {"tenant_id": "t"}, {"tenant_id": "u"}, {"tenant_id": "t", "application_id": "app"}):
        assert note(**place)
    assert note("W")
    assert SeenWorker.objects.count() == 5


def test_a_heartbeat_leaves_what_the_worker_asked_for() -> None:
    note(has_claimed=True, definitions=["d"])
    assert beat(now=at(20_000), capabilities=["a"], definitions=["d"])
    row = SeenWorker.objects.get()
    assert (row.seen_at, row.heartbeat_at) == (at(20_000), at(20_000))
    assert (row.asked_at, row.claimed_at) == (T0, T0)


def test_a_sign_without_an_offer_refreshes_the_rows_that_cover_it_and_makes_none() -> None:
    assert not beat(tenant_id="t", application_id="app")
    assert not SeenWorker.objects.exists()
    note("w", tenant_id="t", application_id="app", definitions=["d"])
    note("w", tenant_id="t")
    note("w", tenant_id="t", application_id="other")
    note("w", tenant_id="u", application_id="app")
    note("w")
    assert beat(tenant_id="t", application_id="app", now=at(10_000))
    seen = SeenWorker.objects.filter(heartbeat_at=at(10_000), seen_at=at(10_000))
    assert set(seen.values_list("tenant_id", "application_id")) == {("t", "app"), ("t", None)}
    assert SeenWorker.objects.get(tenant_id="t", application_id="app").definitions == frozenset("d")


def test_a_later_instant_that_another_server_wrote_stays() -> None:
    note(has_claimed=True)
    SeenWorker.objects.update(claimed_at=at(60_000))
    note(now=at(30_000), has_claimed=True)
    assert SeenWorker.objects.get().claimed_at == at(60_000)


def test_rows_unseen_for_seven_days_go_when_another_is_made() -> None:
    week = 7 * 24 * 3_600_000
    note("old")
    note("younger", now=at(1))
    note("younger", now=at(20_000))
    assert SeenWorker.objects.count() == 2
    note("new", now=at(week + 1))
    assert set(SeenWorker.objects.values_list("worker_id", flat=True)) == {"younger", "new"}


def test_whoever_takes_a_new_name_for_each_call_does_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_KEPT", 3)
    for number in range(6):
        note(str(number), now=at(number))
    assert set(SeenWorker.objects.values_list("worker_id", flat=True)) == {"2", "3", "4", "5"}
    monkeypatch.setattr(registry, "MOST_FORGOTTEN", 1)
    monkeypatch.setattr(registry, "MOST_KEPT", 1)
    note("6", now=at(6))
    assert set(SeenWorker.objects.values_list("worker_id", flat=True)) == {"3", "4", "5", "6"}


def test_without_now_it_is_the_databases_clock() -> None:
    before = authority.read_clock()
    assert authority.note_worker("w", capabilities=())
    assert before <= SeenWorker.objects.get().seen_at <= authority.read_clock()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", ""),
        ("tenant_id", " t"),
        ("application_id", 5),
        ("incarnation", "\n"),
        ("is_remote", None),
        ("has_claimed", 1),
        ("is_heartbeat", "yes"),
        ("capabilities", "abc"),
        ("definitions", ["a@"]),
        ("now", T0.replace(tzinfo=None)),
    ],
)
def test_bad_arguments_are_refused_and_nothing_touched(field: str, value: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), refused("WORKLOAD_INVALID", {"field": field}):
        authority.note_worker(**{"worker_id": "w", "capabilities": (), field: value})


# This process's memory


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_most_signs_cost_no_question(django_assert_num_queries: Any) -> None:
    assert authority.note_worker("w", capabilities=())
    with django_assert_num_queries(0):
        for _ in range(100):
            assert not authority.note_worker("w", capabilities=(), has_claimed=True)


def test_what_another_server_has_written_of_late_is_left_alone() -> None:
    authority.note_worker("w", capabilities=())
    registry.memory.clear()
    asked = statements(lambda: authority.note_worker("w", capabilities=("b",)))
    assert not [sql for sql in asked if sql.startswith("INSERT")]
    assert SeenWorker.objects.get().capabilities == frozenset()


def test_what_was_seen_in_between_is_written_with_the_next_sign() -> None:
    authority.note_worker("w", capabilities=())
    authority.note_worker("w", capabilities=(), has_claimed=True)
    assert SeenWorker.objects.get().claimed_at is None
    # As if it had all been ten seconds ago.
    ten = dt.timedelta(seconds=10)
    SeenWorker.objects.update(seen_at=F("seen_at") - ten, asked_at=F("asked_at") - ten)
    (signs,) = registry.memory._workers.values()
    signs.due_at -= 10
    signs.seen["claimed_at"] -= 10
    assert authority.note_worker("w", capabilities=())
    row = SeenWorker.objects.get()
    assert row.claimed_at is not None
    assert 9 < (row.seen_at - row.claimed_at).total_seconds() < 20
    assert row.asked_at > row.claimed_at


def test_one_thread_in_ten_seconds_is_told_to_write() -> None:
    clock = Clock()
    memory = Memory(clock)
    first = memory.add("w", ["asked_at"])
    assert first is not None and first.ages == {"asked_at": 0.0}
    clock.now += 4
    assert memory.add("w", ["claimed_at"]) is None
    assert memory.add("v", ["asked_at"]) is not None
    memory.forget(first)
    clock.now += 6
    due = memory.add("w", ["heartbeat_at"])
    assert due is not None and due.ages == {"claimed_at": 6.0, "heartbeat_at": 0.0}


def test_a_sign_seen_while_an_older_one_is_written_is_not_forgotten() -> None:
    clock = Clock()
    memory = Memory(clock)
    due = memory.add("w", ["asked_at", "claimed_at"])
    clock.now += 1
    memory.add("w", ["claimed_at"])
    assert due is not None
    memory.forget(due)
    clock.now += 9
    again = memory.add("w", [])
    assert again is not None and again.ages == {"claimed_at": 9.0}


def test_after_another_servers_write_it_waits_for_what_is_left_of_ten_seconds() -> None:
    clock = Clock()
    memory = Memory(clock)
    due = memory.add("w", ["asked_at"])
    assert due is not None
    memory.wait(due, 3.0)
    clock.now += 2.9
    assert memory.add("w", ["asked_at"]) is None
    clock.now += 0.1
    assert memory.add("w", ["asked_at"]) is not None


def test_the_memory_is_bounded_and_lets_go_of_what_was_longest_silent() -> None:
    clock = Clock()
    memory = Memory(clock, most=3)
    for name in "abc":
        memory.add(name, ["asked_at"])
    clock.now += 10
    memory.add("a", ["asked_at"])
    memory.add("d", ["asked_at"])
    assert len(memory) == 3
    assert memory.add("a", ["asked_at"]) is None
    assert memory.add("b", ["asked_at"]) is not None


# In nobody's way


@pytest.mark.django_db(transaction=True)
def test_a_registry_that_cant_be_written_is_told_once_and_hurts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with without_registry():
        assert [note(str(n), now=None) for n in range(3)] == [False] * 3
        assert [note(str(n)) for n in range(3)] == [False] * 3
        assert authority.read_clock() is not None
    assert [record.name for record in caplog.records] == ["workloads.authority"]
    assert "can't be written down" in caplog.text
    assert note("4") and note("5")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "again" in caplog.records[-1].message
    assert SeenWorker.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_within_a_callers_transaction_a_failure_undoes_itself_alone() -> None:
    if connection.vendor == "mysql":
        pytest.skip("There a table can't be renamed within a transaction.")
    with transaction.atomic():
        workload_id = admit()
        with without_registry():
            assert not note(now=None)
        assert take() == [workload_id]
    assert authority.get(workload_id).state == "CLAIMED"
    assert not SeenWorker.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_ends_the_callers_transaction_is_raised() -> None:
    def broken() -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            note(now=None)

    with pytest.raises(transaction.TransactionManagementError):
        broken()


@pytest.mark.django_db(transaction=True)
def test_a_sign_of_a_transaction_that_is_rolled_back_is_gone_with_it() -> None:
    def undone() -> None:
        with transaction.atomic():
            assert note()
            raise Undone

    with pytest.raises(Undone):
        undone()
    assert not SeenWorker.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_who_holds_up_the_registry_holds_up_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("It has one writer, and no locks of tables or rows.")
    note()

    def hold() -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE workloads_seenworker IN ACCESS EXCLUSIVE MODE")
        else:
            list(SeenWorker.objects.select_for_update())

    with other_connection(hold, seconds=6) as box:
        assert not note(now=at(10_000))
        assert "released_at" not in box
    assert "can't be written down" in caplog.text
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)
    assert note(now=at(10_000))


@pytest.mark.django_db(transaction=True)
def test_of_processes_that_note_a_new_worker_at_once_one_makes_its_row() -> None:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("A database in memory has one process: the races run on a file.")
    answers = race([("tests.races.calls.note_worker", "w")] * 4)
    # Another that read the very same microsecond on the database's clock may say that it wrote it, and it may as well.
    assert True in answers and False in answers
    row = SeenWorker.objects.get()
    assert row.first_seen_at == row.seen_at == row.claimed_at


# Read by nothing that decides


def test_no_claim_no_deadline_and_no_recovery_names_the_table() -> None:
    note("w")
    admit("next")
    states = dict.fromkeys(WORKER_CALLS, "RUNNING") | {"confirm_cancel": "CANCELLATION_REQUESTED"}
    fences = {name: bring(state, name)[1] for name, state in states.items()}
    calls: dict[str, Callable[[], Any]] = {
        name: partial(call, fences[name], at(5_000)) for name, call in WORKER_CALLS.items()
    }
    calls |= {
        "claim_next": lambda: take(limit=1),
        "claim": lambda: authority.claim(admit("one"), worker_id="w", capabilities=(), lease_ms=1, now=at(5_000)),
        "run_pass": lambda: authority.run_pass(now=at(10**9)),
        "verify": lambda: list(authority.verify()),
    }
    for name, call in calls.items():
        asked = statements(call)
        assert asked, name
        assert not [sql for sql in asked if "seenworker" in sql], name


def test_two_files_alone_know_of_the_table() -> None:
    knowing = {
        path.name
        for path in AUTHORITY.glob("*.py")
        if any(isinstance(node, ast.Name) and node.id == "SeenWorker" for node in ast.walk(ast.parse(path.read_text())))
    }
    assert knowing == {"registry.py", "explain.py"}


def test_it_refers_to_nothing_and_nothing_refers_to_it() -> None:
    fields = SeenWorker._meta.get_fields(include_hidden=True)
    assert [field.name for field in fields if field.is_relation] == []


# `explain`: no_capable_worker_seen


def why(workload_id: str, *, now: Any = NOW) -> dict[str, dict[str, Any]]:
    return {blocker.code: dict(blocker.details) for blocker in authority.explain(workload_id, now=now)}


def said(workload_id: str, *, now: Any = NOW) -> str:
    (blocker,) = authority.explain(workload_id, now=now)
    assert blocker.code == "no_capable_worker_seen"
    return blocker.message


def test_an_empty_registry_says_nothing() -> None:
    assert why(admit()) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"capabilities": ["a", "b"]},
        {"definitions": ["d"]},
        {"definitions": ["x", "d@1"]},
        {"tenant_id": "t"},
        {"tenant_id": "t", "application_id": "app"},
    ],
)
def test_work_that_a_worker_seen_of_late_could_take_is_not_held_back_by_it(fields: Any) -> None:
    workload_id = admit(capability_snapshot={"a"})
    note("another", capabilities=(), now=at(4_000))
    note(**fields)
    assert why(workload_id) == {}
    assert why(workload_id, now=at(299_999)) == {}


@pytest.mark.parametrize(
    ("fields", "missing", "words"),
    [
        ({"capabilities": ["b"]}, ["a"], "has all the capabilities"),
        ({"definitions": ["d@2"]}, None, "asks for its definition"),
        ({"definitions": []}, None, "asks for its definition"),
        ({"tenant_id": "u"}, ["a"], "of its tenant and application"),
        ({"tenant_id": "t", "application_id": "other"}, ["a"], "of its tenant and application"),
    ],
)
def test_work_that_no_worker_seen_of_late_could_take(fields: Any, missing: Any, words: str) -> None:
    workload_id = admit(capability_snapshot={"a"})
    note(**fields)
    assert why(workload_id) == {"no_capable_worker_seen": {"missing": missing} if missing else {}}
    assert words in said(workload_id)


def test_missing_is_what_none_of_them_has() -> None:
    workload_id = admit(capability_snapshot={"a", "b", "c"})
    note("1", capabilities=["a"])
    note("2", capabilities=["b"], now=at(1))
    assert why(workload_id) == {"no_capable_worker_seen": {"missing": ["c"]}}
    note("3", capabilities=["c"], now=at(2))
    assert why(workload_id) == {"no_capable_worker_seen": {}}
    assert "has all the capabilities" in said(workload_id)


def test_a_worker_is_of_late_for_five_minutes_and_then_it_is_said_since_when() -> None:
    workload_id = admit(capability_snapshot={"a"})
    note("before")
    note("last", now=at(1_000))
    assert why(workload_id, now=at(300_999)) == {}
    since = {"since": "2041-05-06T07:08:10.123456Z"}
    assert why(workload_id, now=at(301_000)) == {"no_capable_worker_seen": {"missing": ["a"], **since}}
    note("another", now=at(301_000), definitions=["x"])
    assert why(workload_id, now=at(301_000)) == {"no_capable_worker_seen": since}


def test_of_those_that_are_gone_it_is_the_last_that_could_take_it() -> None:
    workload_id = admit(capability_snapshot={"a"})
    note("before")
    note("able", now=at(1_000))
    note("unable", now=at(2_000), capabilities=["b"])
    since = "2041-05-06T07:08:10.123456Z"
    assert why(workload_id, now=at(400_000)) == {"no_capable_worker_seen": {"missing": ["a"], "since": since}}
    assert "of its tenant and application" in said(workload_id, now=at(400_000))


def test_it_stands_where_a_claim_would_judge_and_only_for_work_that_waits() -> None:
    note(definitions=["x"])
    admit("first", priority=1)
    waiting = admit("waiting", not_before=at(9_000))
    assert list(why(waiting)) == ["not_due", "no_capable_worker_seen", "behind_others"]
    for state in ("CLAIMED", "DEAD_LETTER", "SUCCEEDED"):
        assert "no_capable_worker_seen" not in why(bring(state, state)[0])


def test_a_row_that_cant_be_read_offers_nothing_and_hides_no_other() -> None:
    workload_id = admit()
    note("spoilt", now=at(1))
    note("bad", now=at(2))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workloads_seenworker SET capabilities = '[{' WHERE worker_id = 'spoilt'")
        cursor.execute("UPDATE workloads_seenworker SET definitions = '5' WHERE worker_id = 'bad'")
    assert list(why(workload_id)) == ["no_capable_worker_seen"]
    note("fine")
    assert why(workload_id) == {}


def test_with_many_workers_it_asks_once_or_twice_and_finds_the_one() -> None:
    workload_id = admit()
    note("able")
    template = {"first_seen_at": T0, "seen_at": at(1), "capabilities": (), "definitions": ["x"]}
    SeenWorker.objects.bulk_create(
        SeenWorker(worker_id=f"w{n}", worker_key=registry._key(None, None, f"w{n}"), **template) for n in range(300)
    )
    asked = [sql for sql in statements(lambda: why(workload_id)) if "seenworker" in sql]
    assert len(asked) == 2
    assert why(workload_id) == {}
    SeenWorker.objects.filter(worker_id="able").update(seen_at=at(2))
    asked = [sql for sql in statements(lambda: why(workload_id)) if "seenworker" in sql]
    assert len(asked) == 1
