"""`manage.py workloads_admit`: work from one object, a list, or JSON Lines, each item judged alone."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from workloads import authority
from workloads.contract import Backoff, RetryPolicy, Timeouts, WorkloadState
from workloads.models import Workload

pytestmark = pytest.mark.django_db(transaction=True)

ONE = {"tenant_id": "t", "application_id": "a", "requested_by": "u", "idempotency_key": "k", "definition_id": "d"}


def admit(text, *arguments, tmp_path):
    path = tmp_path / "work.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = StringIO()
    code = 0
    try:
        call_command("workloads_admit", str(path), *arguments, stdout=out)
    except SystemExit as end:
        code = end.code
    return code, out.getvalue()


def keyed(*keys):
    return [ONE | {"idempotency_key": key} for key in keys]


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda items: json.dumps(items, indent=2),
        lambda items: "\n".join(map(json.dumps, items)),
        lambda items: "\r\n\r\n".join(json.dumps(item, indent=1) for item in items) + "\n",
        lambda items: "\ufeff" + json.dumps(items),
    ],
)
def test_a_list_and_lines_admit_the_same(write, tmp_path):
    code, said = admit(write(keyed("1", "2", "3")), tmp_path=tmp_path)
    assert code == 0
    ids = [line.removeprefix("created ") for line in said.splitlines()]
    assert [authority.get(i).idempotency_key for i in ids] == ["1", "2", "3"]


def test_one_object_is_created_and_then_replayed(tmp_path):
    code, said = admit(json.dumps(ONE), tmp_path=tmp_path)
    assert (code, said.split()[0]) == (0, "created")
    assert admit(json.dumps(ONE), tmp_path=tmp_path) == (0, said.replace("created", "replayed"))


def test_every_field_is_read(tmp_path):
    parent = authority.admit(_request()).workload.workload_id
    item = ONE | {
        "idempotency_key": "all",
        "definition_revision": "7",
        "environment": "staging",
        "input": {"a": [1, 2.5, None]},
        "capability_snapshot": ["c1", "c2"],
        "connection_scopes": ["s"],
        "priority": -3,
        "retry_policy": {"max_attempts": 5, "backoff": "FIXED", "jitter": 0.5, "retry_on": ["x"]},
        "timeouts": {"overall_ms": 1000000, "heartbeat_ms": None},
        "dependencies": [{"workload_id": parent, "required_state": "CANCELLED"}],
        "not_before": "2040-01-02T03:04:05Z",
        "trigger": "cron",
        "session_id": "se",
    }
    code, said = admit(json.dumps(item), "--json", tmp_path=tmp_path)
    (told,) = json.loads(said)
    assert (code, told["item"], told["outcome"]) == (0, 1, "created")
    workload = authority.get(told["workload_id"])
    assert (workload.definition_revision, workload.environment, workload.input) == (
        "7",
        "staging",
        {"a": [1, 2.5, None]},
    )
    assert (workload.capability_snapshot, workload.connection_scopes) == ({"c1", "c2"}, {"s"})
    assert (workload.priority, workload.trigger, workload.session_id) == (-3, "cron", "se")
    assert workload.retry_policy == RetryPolicy(
        max_attempts=5, backoff=Backoff.FIXED, jitter=0.5, retry_on=frozenset("x")
    )
    assert workload.timeouts == Timeouts(overall_ms=1_000_000)
    assert workload.not_before == dt.datetime(2040, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    (dependency,) = workload.dependencies.all()
    assert (dependency.depends_on, dependency.required_state) == (parent, WorkloadState.CANCELLED)


def _request():
    from workloads.contract import AdmissionRequest

    return AdmissionRequest(**ONE)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"colour": "red"}, "WORKLOAD_INVALID", "colour"),
        ({"retry_policy": {"attempts": 3}}, "WORKLOAD_INVALID", "retry_policy.attempts"),
        ({"retry_policy": {"max_attempts": 0}}, "WORKLOAD_INVALID", "retry_policy.max_attempts"),
        ({"retry_policy": 3}, "WORKLOAD_INVALID", "retry_policy"),
        ({"timeouts": {"queue": 3}}, "WORKLOAD_INVALID", "timeouts.queue"),
        ({"timeouts": None}, "WORKLOAD_INVALID", "timeouts"),
        ({"dependencies": ["x"]}, "WORKLOAD_INVALID", "dependencies"),
        ({"dependencies": "x"}, "WORKLOAD_INVALID", "dependencies"),
        ({"dependencies": [{"id": "x"}]}, "WORKLOAD_INVALID", "dependencies.id"),
        ({"dependencies": [{}]}, "WORKLOAD_INVALID", "dependencies.workload_id"),
        ({"capability_snapshot": "abc"}, "WORKLOAD_INVALID", "capability_snapshot"),
        ({"not_before": "tomorrow"}, "WORKLOAD_INVALID", "not_before"),
        ({"not_before": "2040-01-02T03:04:05"}, "WORKLOAD_INVALID", "not_before"),
        ({"not_before": 7}, "WORKLOAD_INVALID", "not_before"),
        ({"tenant_id": ""}, "WORKLOAD_INVALID", "tenant_id"),
        ({"input": "x" * 300_000}, "WORKLOAD_TOO_LARGE", "input"),
    ],
)
def test_a_bad_item_is_refused_by_itself_and_the_exit_tells(change, code, field, tmp_path):
    good, other = keyed("good", "other")
    exit_code, said = admit(json.dumps([good, ONE | change, other]), "--json", tmp_path=tmp_path)
    told = json.loads(said)
    assert exit_code == 1
    assert [one["outcome"] for one in told] == ["created", "refused", "created"]
    assert (told[1]["item"], told[1]["code"], told[1]["details"]["field"]) == (2, code, field)
    _, plain = admit(json.dumps([ONE | change]), tmp_path=tmp_path)
    assert plain.startswith(f"refused item 1: {code}: ")


def test_missing_fields_and_what_is_no_object_are_refused(tmp_path):
    _, said = admit('[{"tenant_id": "t"}, 3, null, []]', "--json", tmp_path=tmp_path)
    assert [one["details"]["field"] for one in json.loads(said)] == ["application_id", "item", "item", "item"]


def test_numbers_that_are_not_json_are_refused(tmp_path):
    lines = [json.dumps(ONE)[:-1] + f', "input": {value}}}' for value in ("NaN", "Infinity", "1e400")]
    _, said = admit("\n".join(lines), "--json", tmp_path=tmp_path)
    assert [one["code"] for one in json.loads(said)] == ["WORKLOAD_INVALID"] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"tenant_id": "t"', "line 1"),
        (json.dumps(ONE) + "\n{]", "line 2"),
        (json.dumps(ONE) + '\n{"a": {"b": 1, "b": 2}}', "line 2.*'b' stands twice"),
        ('{"input": ' + "9" * 5000 + "}", "line 1"),
        ("[" * 100_000, "line 1"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_json_is_refused_whole(text, message, tmp_path):
    with pytest.raises(CommandError, match=message) as caught:
        admit(text, tmp_path=tmp_path)
    assert caught.value.returncode == 2
    assert not Workload.objects.exists()


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CommandError) as caught:
        call_command("workloads_admit", str(tmp_path / "nowhere"))
    assert caught.value.returncode == 2


def test_an_empty_file_admits_nothing(tmp_path):
    assert admit("", tmp_path=tmp_path) == (0, "")
    assert admit("[]", "--json", tmp_path=tmp_path) == (0, "[]\n")


def test_the_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(ONE).encode())))
    out = StringIO()
    call_command("workloads_admit", "-", stdout=out)
    assert out.getvalue().startswith("created workload_")


def test_many_are_admitted_in_batches(tmp_path):
    code, said = admit("\n".join(map(json.dumps, keyed(*map(str, range(1_203))))), tmp_path=tmp_path)
    assert (code, len(said.splitlines()), Workload.objects.count()) == (0, 1_203, 1_203)
