"""`manage.py workloads_worker`: what its arguments ask for, and what it refuses."""

from __future__ import annotations

import gc

import pytest
from django.core.management import CommandError, call_command

from tests.worker.tools import admit, state
from workloads.worker import Summary, program

pytestmark = pytest.mark.django_db(transaction=True)

HANDLERS = ("--handlers", "tests.worker.handlers", "--drain", "--poll-ms", "30")


def test_it_runs_what_it_has_handlers_for():
    echo, able = admit("test.echo"), admit("test.able", capability_snapshot={"files:read"})
    unknown = admit("test.able", definition_revision="2", capability_snapshot={"files:read"})
    call_command("workloads_worker", *HANDLERS, "--concurrency", "2")
    assert [state(echo), state(able), state(unknown)] == ["SUCCEEDED", "SUCCEEDED", "READY"]


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (("--definition", "test.echo"), [True, False, True]),
        (("--definition", "test.able", "--definition", "test.echo@1"), [True, True, True]),
        (("--definition", "test.able@1"), [False, True, False]),
        (("--capability", "other"), [True, False, True]),
        (("--capability", "files:read", "--capability", "other"), [True, True, True]),
        (("--tenant", "t"), [True, True, False]),
        (("--application", "elsewhere"), [False, False, True]),
    ],
)
def test_it_runs_only_what_it_is_asked_to(arguments, runs):
    ids = [
        admit("test.echo"),
        admit("test.able", capability_snapshot={"files:read"}),
        admit("test.echo", tenant_id="t2", application_id="elsewhere"),
    ]
    call_command("workloads_worker", *HANDLERS, *arguments)
    assert [state(i) == "SUCCEEDED" for i in ids] == runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--definition", "nowhere"), "no handler is registered for nowhere"),
        (("--definition", "test.able@2"), "no handler is registered for test.able@2"),
        (("--concurrency", "0"), "concurrency"),
        (("--lease-ms", "2"), "--lease-ms"),
        (("--lease-ms", str(10**9)), "--lease-ms"),
        (("--grace", "-1"), "grace"),
        (("--worker-id", " w"), "--worker-id"),
        (("--tenant", ""), "--tenant"),
        (("--handlers", "tests.worker.nowhere"), "nowhere"),
    ],
)
def test_it_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(CommandError, match=message):
        call_command("workloads_worker", *HANDLERS, *arguments)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    """While the worker runs it looks less often, unless the site has turned it off; then it does as it did before."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    seen = []
    gc.set_threshold(before[0] if enabled else 0, *before[1:])

    class Watching:
        is_stopping = False

        def run(self) -> Summary:
            seen.append((gc.get_threshold()[0], gc.get_freeze_count() > frozen))
            return Summary()

    try:
        program.run(Watching())
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert seen == [(program.COLLECTED_AT if enabled else 0, True)]
    assert after == (before if enabled else (0, *before[1:]))
