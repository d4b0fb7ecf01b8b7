"""Workloads that try a page: markup in every text, the largest that there may be, and rows that are spoilt."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from tests.browser.story import HOUR_MS, Story

# Each closes what may be open around it, and begins what a careless page would run.
SCRIPT: Final = "<script>window.owned=1</script>"
MARKUP: Final = f"\"'></textarea></title></style>{SCRIPT}<img src=x onerror=window.owned=1>{{{{ 7*7 }}}}"


def hostile(now: dt.datetime) -> Iterator[tuple[str, Story]]:
    """Tell of workloads whose every text is markup, and of the largest that there may be."""
    from workloads.contract import RetryPolicy, Timeouts

    def ago(minutes: float) -> dt.datetime:
        return now - dt.timedelta(minutes=minutes)

    texts: dict[str, Any] = {
        "tenant_id": f"t{MARKUP}",
        "application_id": f"a{MARKUP}",
        "requested_by": f"r{MARKUP}",
        "definition_id": f"d{MARKUP}",
        "definition_revision": f"v{MARKUP}",
        "environment": f"e{MARKUP}",
        "capability_snapshot": {f"c{MARKUP}"},
        "connection_scopes": {f"s{MARKUP}"},
        "trigger": f"t{MARKUP}",
        "session_id": f"s{MARKUP}",
        "input": {MARKUP: [MARKUP, {"deep": MARKUP}]},
    }
    worker = f"w{MARKUP}"
    done = Story(ago(30), f"done {MARKUP}", **texts)
    done.then(s=2).claim(worker).then(s=1).save({MARKUP: MARKUP}, key=f"k{MARKUP}").then(s=1)
    yield "hostile done", done.succeed({MARKUP: MARKUP}, [MARKUP])
    dead = Story(ago(20), f"dead {MARKUP}", **texts)
    dead.then(s=2).claim(worker).then(s=1).fail(f"f{MARKUP}", f"{MARKUP}\n{MARKUP * 20}")
    yield "hostile dead", dead
    gone = Story(ago(10), f"gone {MARKUP}", **texts)
    yield "hostile cancelled", gone.then(s=2).cancel(f"o{MARKUP}", f"{MARKUP}\n{MARKUP}")
    yield "hostile waiting", Story(ago(9), f"waiting {MARKUP}", **texts)
    held = Story(ago(8), f"held {MARKUP}", **texts)
    yield "hostile running", held.then(s=2).claim(worker, lease_ms=5 * HOUR_MS)

    named = {"password": "vault:site/database", "nested": [{"api_key": "${API_KEY}"}], "author": {"token_count": 3}}
    secretive = Story(ago(7), "secretive", input=named)
    yield "secretive", secretive.then(s=1).claim().then(s=1).save(named).succeed(named)
    largest = Story(ago(6), "largest", input={"text": "x" * (256 * 1024 - 20)})
    yield "largest", largest
    saving = Story(ago(5), "saving", definition_id="import.rows")
    saving.then(s=1).claim("import-1", lease_ms=5 * HOUR_MS)
    for number in range(1_000):
        saving.then(ms=200).save({"row": number}, key=f"row-{number}")
    yield "saving", saving

    long = "x" * 200
    wide = Story(
        ago(4),
        long,
        definition_id=long,
        tenant_id=long,
        application_id=long,
        requested_by=long,
        timeouts=Timeouts(overall_ms=1_000),
    )
    yield "wide", wide.then(s=0.2).claim(long, lease_ms=HOUR_MS).then(s=1).overrun()
    stubborn = Story(
        ago(3.5 * 60),
        "stubborn",
        definition_id="import.rows",
        retry_policy=RetryPolicy(max_attempts=40, initial_delay_ms=1_000, max_delay_ms=1_000, retry_on={"flaky"}),
    )
    for number in range(40):
        stubborn.then(s=200).claim(f"import-{number % 3}").then(s=30).fail("flaky", f"No. {number}: the line is bad.")
    yield "stubborn", stubborn
    for spoilt in ("state", "policy", "attempt"):
        story = Story(ago(3), f"spoilt {spoilt}", definition_id="spoilt.row")
        yield f"spoilt {spoilt}", story.then(s=1).claim("spoiler").then(s=1).fail("broken", "It was broken before.")


def spoil(ids: dict[str, str]) -> None:
    """Write rows as no verb would: a state of a later version, JSON that nobody can read, an attempt that is gone."""
    from django.db import connection

    keys = "(SELECT id FROM workloads_admitted WHERE workload_id = %s)"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        for statement, story in (
            (f"UPDATE workloads_workload SET state = 'PAUSED_BY_V9' WHERE admitted_id = {keys}", "spoilt state"),
            ("UPDATE workloads_admitted SET retry_policy = '{', input = '[1,' WHERE workload_id = %s", "spoilt policy"),
            (f"DELETE FROM workloads_attempt WHERE record = {keys}", "spoilt attempt"),
        ):
            cursor.execute(statement, [ids[story]])
            assert cursor.rowcount == 1, story
