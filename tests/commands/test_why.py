"""`manage.py workloads_why`: every reason, for people and for programs."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.worker.tools import admit
from workloads import authority
from workloads.contract import Dependency

pytestmark = pytest.mark.django_db(transaction=True)


def why(*arguments):
    out = StringIO()
    call_command("workloads_why", *arguments, stdout=out)
    return out.getvalue()


def test_it_says_why_work_waits():
    parent = admit()
    child = admit(dependencies=[Dependency(workload_id=parent)])
    said = why(child)
    assert said.startswith(f"{child}: READY\n  dependencies_unmet: ")
    assert parent in said
    answer = json.loads(why(child, "--json"))
    assert (answer["workload_id"], answer["state"]) == (child, "READY")
    assert answer["blockers"][0]["code"] == "dependencies_unmet"
    assert answer["blockers"][0]["details"]["dependencies"] == [parent]


def test_it_says_when_nothing_holds_work_back():
    workload_id = admit()
    assert why(workload_id) == f"{workload_id}: READY\n  nothing holds it back\n"
    authority.cancel(workload_id, actor="op")
    assert json.loads(why(workload_id, "--json")) == {
        "workload_id": workload_id,
        "state": "CANCELLED",
        "blockers": [],
    }


@pytest.mark.parametrize("workload_id", ["workload_none", "", "\0", "é" * 300])
def test_work_that_there_is_not_exits_2(workload_id):
    with pytest.raises(CommandError, match="WORKLOAD_NOT_FOUND") as caught:
        why(workload_id)
    assert caught.value.returncode == 2
