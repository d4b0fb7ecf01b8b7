"""What the processes of these tests do, besides what `tests.races.calls` has: answers in JSON, errors by their name."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable
from typing import Any

from tests.races.calls import outcome, request
from workloads import authority
from workloads.contract import Fence, RetryPolicy, Timeouts
from workloads.lifecycle.canonical import workload_id as id_of
from workloads.models import Workload

MOST_ROUNDS = 1_000


def an_id(key: str) -> str:
    return id_of("t", "race", "u", key)


def _surfaced(rounds: int, turn: Callable[[], int]) -> dict[str, Any]:
    """Take turns; return how much was done, and the errors that came out of the authority."""
    done, errors = 0, []
    for _ in range(rounds):
        try:
            done += turn()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return {"done": done, "errors": errors}


def sweep_often(rounds: int) -> dict[str, Any]:
    """Run passes, one after the other."""

    def turn() -> int:
        report = authority.run_pass()
        if report.failed:
            raise RuntimeError(str(report.failed))
        time.sleep(0.01)
        return len(report.timed_out) + len(report.recovered) + len(report.unsatisfiable)

    return _surfaced(rounds, turn)


def work_often(worker_id: str, rounds: int) -> dict[str, Any]:
    """Claim, and end what was claimed in one way or another; leave some of it to the pass."""
    chance = random.Random(worker_id)
    until = time.monotonic() + 20
    while not Workload.objects.exists() and time.monotonic() < until:
        time.sleep(0.01)

    def turn() -> int:
        claims = authority.claim_next(worker_id=worker_id, capabilities=(), lease_ms=30, limit=5, start=True)
        for claim in chance.sample(claims, len(claims)):
            fence = claim.fence
            match chance.randrange(5):
                case 0 | 1:
                    outcome(lambda f=fence: authority.complete(f, result_id=f.claim_id, output=1).result_id)
                case 2:
                    outcome(lambda f=fence: authority.fail(f, kind="timeout", error="").decision)
                case 3:
                    outcome(lambda f=fence: authority.cancel(f.workload_id, actor="op", force=True).state)
                case _:
                    pass
        time.sleep(0.005)
        return len(claims)

    return _surfaced(rounds, turn)


def admit_in_bulk(seed: int, total: int, batch: int) -> dict[str, Any]:
    """Admit works that depend on each other, the later on the earlier, in an order drawn by `seed`."""
    chance = random.Random(seed)
    # The same graph for every seed: two batches then meet in opposite orders.
    graph = random.Random(7)
    wanted = {n: graph.sample(range(n), min(n, graph.randrange(4))) for n in range(total)}
    order = chance.sample(range(total), total)
    parts = [order[start : start + batch] for start in range(0, total, batch)]

    def turn() -> int:
        asked = [
            request(
                f"k{n}",
                definition_id=f"d{n % 3}",
                dependencies=[an_id(f"k{d}") for d in wanted[n]],
                retry_policy=RetryPolicy(max_attempts=2, initial_delay_ms=0),
                timeouts=Timeouts(queue_ms=60_000),
            )
            for n in parts.pop()
        ]
        answers = authority.admit_many(asked)
        refused = [str(a) for a in answers if isinstance(a, Exception)]
        if refused:
            raise RuntimeError(refused[0])
        return sum(a.created for a in answers)  # type: ignore[union-attr]

    return _surfaced(len(parts), turn)


# A process whose clock is wrong.


def skew(hours: float) -> None:
    """Let this process's clock be wrong by so many hours, wherever Python reads it."""
    off = hours * 3_600
    true_time, true_datetime = time.time, datetime.datetime

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, true_datetime)

    class Skewed(true_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return true_datetime.fromtimestamp(true_time() + off, tz)

        @classmethod
        def utcnow(cls) -> datetime.datetime:
            return true_datetime.fromtimestamp(true_time() + off, datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> datetime.datetime:
            return true_datetime.fromtimestamp(true_time() + off)

    time.time = lambda: true_time() + off
    time.time_ns = lambda: int((true_time() + off) * 1_000_000_000)
    datetime.datetime = Skewed  # type: ignore[misc]
    assert abs(datetime.datetime.now(datetime.UTC).timestamp() - true_time() - off) < 5


def with_clock(hours: float, calls: list[list[Any]]) -> list[Any]:
    """Make calls on the authority, by name, in a process whose clock is wrong; return what each said, in plain words.

    A string `"<n>.<name>"` among the arguments stands for an attribute of the n-th answer. With `until_found`, a claim
    is repeated until it gets something: a row that another has locked for an instant is passed over (on MariaDB its
    neighbours in the index, too), and a worker simply asks again.
    """
    skew(hours)
    answers: list[Any] = []
    said: list[Any] = []
    for verb, options in calls:
        given = {name: _filled(value, answers) for name, value in options.items()}
        answer = outcome(lambda verb=verb, given=given: _call(verb, given))
        answers.append(answer)
        said.append(_said(answer))
    return said


def _call(verb: str, given: dict[str, Any]) -> Any:
    if verb == "admit":
        return authority.admit(request(**given)).workload
    if isinstance(given.get("fence"), dict):
        given["fence"] = Fence(**given["fence"])
    call = getattr(authority, verb)
    if not given.pop("until_found", False):
        return call(**given)
    return next((found for _ in range(MOST_ROUNDS) if (found := call(**given))), [])


def _filled(value: Any, answers: list[Any]) -> Any:
    if isinstance(value, dict) and "timeouts" in value:
        return Timeouts(**value["timeouts"])
    if isinstance(value, str) and value[:1].isdigit() and "." in value:
        place, _, name = value.partition(".")
        answer = answers[int(place)]
        answer = answer[0] if isinstance(answer, list) else answer
        return getattr(answer, name)
    return value


def _said(answer: Any) -> Any:
    """Say an answer without ids; instants by their distance from the database's clock, in whole minutes."""
    from django.db import connection

    from workloads.authority import clock

    if isinstance(answer, list):
        return [_said(item) for item in answer]
    if answer is None or isinstance(answer, (str, int)):
        return answer
    if isinstance(answer, dict):
        return sorted(answer)
    now = clock.read(connection)
    names = (
        "state decision attempt_number fencing_token code created_at updated_at next_attempt_at finished_at expires_at "
        "claimed_at last_heartbeat at timed_out recovered unsatisfiable failed"
    )
    told: dict[str, Any] = {}
    for name in names.split():
        value = getattr(answer, name, None)
        if isinstance(value, datetime.datetime):
            value = round((value - now).total_seconds() / 60)
        if value is not None:
            told[name] = value
    if (left := getattr(answer, "lease_left_ms", None)) is not None:
        told["lease_left"] = round(left / 60_000)
    return told
