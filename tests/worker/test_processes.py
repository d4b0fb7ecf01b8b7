"""Worker processes: stopped, stopped again, and killed."""

from __future__ import annotations

import pytest

from tests.worker.tools import AT_ONCE, Command, admit, attempts, eventually, get, is_in_memory, state, worker_command
from workloads import authority
from workloads.contract import RetryPolicy

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _on_a_database_that_processes_share():
    if is_in_memory():
        pytest.skip("A database in memory has one process.")


def test_a_worker_drains_and_ends():
    ids = [admit("test.echo", input=n) for n in range(5)]
    unknown = admit("test.unknown")
    with worker_command("--drain", "--concurrency", "2") as worker:
        assert worker.end() == 0, worker.output
    assert [get(i).result.output for i in ids] == list(range(5))
    assert state(unknown) == "READY"


def test_three_stops_in_a_deploy_spend_no_attempt(tmp_path):
    until = tmp_path / "go"
    workload_id = admit("test.until", input=str(until), retry_policy=AT_ONCE)
    for turn in (1, 2, 3):
        with worker_command("--grace", "0.1") as worker:
            eventually(lambda: state(workload_id) == "RUNNING")
            worker.terminate()
            assert worker.end() == 0, worker.output
        workload = get(workload_id)
        assert (workload.state, workload.release_count, workload.uncounted_releases) == ("READY", turn, turn)
    until.touch()
    with worker_command("--drain") as worker:
        assert worker.end() == 0, worker.output
    assert [row.status for row in attempts(workload_id)] == ["RELEASED"] * 3 + ["SUCCEEDED"]


def test_a_stopped_worker_waits_for_the_grace_period(tmp_path):
    until = tmp_path / "go"
    workload_id = admit("test.until", input=str(until))
    with worker_command("--grace", "30") as worker:
        eventually(lambda: state(workload_id) == "RUNNING")
        worker.terminate()
        until.touch()
        assert worker.end() == 0, worker.output
    assert state(workload_id) == "SUCCEEDED"


@pytest.mark.parametrize("definition", ["test.until", "test.deaf"])
def test_a_second_stop_releases_at_once(definition, tmp_path):
    workload_id = admit(definition, input=str(tmp_path / "never"))
    with worker_command("--grace", "3600") as worker:
        eventually(lambda: state(workload_id) == "RUNNING")
        worker.terminate()

        def again():
            # Two signals that meet are one to the system.
            worker.terminate()
            return state(workload_id) == "READY"

        eventually(again)
        assert worker.end() == 0, worker.output
    assert [row.status for row in attempts(workload_id)] == ["RELEASED"]
    assert state(workload_id) == "READY"


def test_a_deaf_handler_is_released_and_left_behind():
    workload_id = admit("test.deaf")
    with worker_command("--grace", "0.1") as worker:
        eventually(lambda: state(workload_id) == "RUNNING")
        worker.terminate()
        assert worker.end() == 0, worker.output
    assert "left running: 1" in worker.output
    assert [row.status for row in attempts(workload_id)] == ["RELEASED"]


def test_work_that_kills_its_worker_each_time_is_dead_lettered():
    workload_id = admit("test.suicide", retry_policy=RetryPolicy(max_attempts=3, initial_delay_ms=0, max_delay_ms=0))
    for turn in (1, 2, 3):
        with worker_command("--lease-ms", "1500") as worker:
            assert worker.end() == -9, worker.output
        assert len(attempts(workload_id)) == turn

        def recovered():
            with Command("workloads_pass", "--once") as command:
                assert command.end() == 0, command.output
            return state(workload_id) in {"READY", "DEAD_LETTER"}

        eventually(recovered)
    workload = get(workload_id)
    assert workload.state == "DEAD_LETTER"
    assert workload.events.last().evidence["decision"] == "attempt_budget_exhausted"
    assert [row.status for row in attempts(workload_id)] == ["WORKER_LOST"] * 3
    assert [c.state for c in workload.checkpoints.all()] == [{"attempt": n} for n in (1, 2, 3)]
    with worker_command("--drain") as worker:
        assert worker.end() == 0, worker.output
    assert authority.get(workload_id).attempt_count == 3


def test_workers_share_the_work_without_doubling_it():
    ids = [admit("test.echo", input=n) for n in range(40)]
    workers = [worker_command("--drain", "--concurrency", "4") for _ in range(2)]
    for worker in workers:
        with worker:
            assert worker.end() == 0, worker.output
    assert [len(attempts(i)) for i in ids] == [1] * 40
    assert {state(i) for i in ids} == {"SUCCEEDED"}
