"""A site may let PostgreSQL keep statements (`server_side_binding`, `prepare_threshold`): all goes on as before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tests.authority.builders import id_of, refused, request
from tests.support import at
from workloads import authority
from workloads.contract import Admission, CompletionReport, Dependency, ResultRecord

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="The others keep none."),
]

ROUNDS = 6
"""The second time a statement is kept; the sixth, PostgreSQL plans it once for all values."""
MANY = 12


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Let the connection keep what is repeated."""
    settings = connection.settings_dict
    connection.close()
    connection.settings_dict = settings | {
        "OPTIONS": settings["OPTIONS"] | {"server_side_binding": True, "prepare_threshold": 1}
    }
    yield
    connection.close()
    connection.settings_dict = settings


def how_many_are_kept() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        return int(cursor.fetchone()[0])


def test_lives_one_by_one() -> None:
    for n in range(ROUNDS):
        authority.admit(request(f"{n}", input={"n": [n, None, "é'\"\\{}%s"]}))
        authority.admit(request(f"next {n}", dependencies=[Dependency(workload_id=id_of(f"{n}"))]))
        (given,) = authority.claim_next_with_context(
            worker_id="w", capabilities=(), lease_ms=60_000, limit=1, request_id=f"r{n}"
        )
        assert (given.workload_id, given.input["n"][0]) == (id_of(f"{n}"), n)
        again = authority.claim_next_with_context(
            worker_id="w", capabilities=(), lease_ms=60_000, limit=1, request_id=f"r{n}"
        )
        assert [claim.claim_id for claim in again] == [given.claim_id]
        authority.start(given.fence)
        authority.heartbeat(given.fence, extend_ms=60_000)
        authority.checkpoint(given.fence, {"half": n}, key="k")
        assert authority.context(given.fence).checkpoints[0].state == {"half": n}
        first = authority.complete(given.fence, result_id=f"result {n}", output={"n": n})
        assert authority.complete(given.fence, result_id=f"result {n}", output={"n": n}) == first
        (other,) = authority.claim_next(worker_id="w", capabilities=(), lease_ms=60_000, start=True)
        assert other.workload_id == id_of(f"next {n}")
        with refused("WORKLOAD_RESULT_DUPLICATE"):
            authority.complete(other.fence, result_id=f"result {n}", output={"n": n})
        failed = authority.fail(other.fence, kind="broken", error="it broke")
        assert failed.state == "DEAD_LETTER"
        authority.cancel(other.workload_id, actor="o", reason="r")
    assert how_many_are_kept() > 10
    assert list(authority.verify()) == []


def test_lives_in_batches() -> None:
    for n in range(ROUNDS):
        answers = authority.admit_many([request(f"{n} {m}", priority=m, input=m) for m in range(MANY)])
        assert all(isinstance(a, Admission) and a.created for a in answers)
        claims = authority.claim_next(worker_id="w", capabilities=(), lease_ms=60_000, limit=MANY, start=True)
        assert len(claims) == MANY
        assert len(authority.heartbeat_many([(claim.fence, 70_000) for claim in claims])) == MANY
        reports = [CompletionReport(fence=c.fence, result_id=c.attempt_id, output=None) for c in claims]
        assert all(isinstance(o, ResultRecord) for o in authority.complete_many(reports))
    assert how_many_are_kept() > 5
    assert list(authority.verify()) == []


def test_passes() -> None:
    for n in range(ROUNDS):
        authority.admit_many([request(f"{n} {m}") for m in range(MANY)], now=at(n))
        claims = authority.claim_next(
            worker_id="w", capabilities=(), lease_ms=1, limit=100, start=True, now=at(10_000_000 * (n + 1))
        )
        assert len(claims) == MANY
        report = authority.run_pass(now=at(10_000_000 * (n + 1) + 5))
        assert len(report.recovered) == MANY and not report.failed
        for m in range(MANY):
            authority.cancel(id_of(f"{n} {m}"), actor="o", reason="r")
    assert list(authority.verify(now=at(10**9))) == []
