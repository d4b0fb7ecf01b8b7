"""A week of a shop: what workloads look like where people work with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.browser.story import HOUR_MS, MINUTE_MS, Story


@dataclass(frozen=True)
class Tale:
    """A story that is still to be told: when it begins, and how it goes from there."""

    title: str
    minutes_ago: float
    tell: Callable[[dt.datetime, dict[str, str]], Story]


def everyday(now: dt.datetime) -> Iterator[tuple[str, Story]]:
    """Tell a week of a shop, oldest first: mails, invoices, reports, and what went wrong with them."""
    ids: dict[str, str] = {}
    for tale in sorted(_tales(now), key=lambda tale: -tale.minutes_ago):
        story = tale.tell(now - dt.timedelta(minutes=tale.minutes_ago), ids)
        ids[tale.title] = story.workload_id
        yield tale.title, story


def _tales(now: dt.datetime) -> Iterator[Tale]:
    # Denser towards the present: some in the last hour, more in the last day, the rest in the week.
    for number in range(90):
        minutes = 2 + (number % 30) * 1.9 if number < 30 else (number - 29) * (35 if number < 60 else 160)
        yield Tale(f"mail {number}", minutes, partial(_mail, number))
    for number, minutes in enumerate((4, 9, 17, 28, 41, 52, 130, 300, 700, 1_500, 3_000, 6_100)):
        yield Tale(f"dead {number}" if number else "dead", minutes + 1, partial(_invoice, number))
    for number, minutes in enumerate((22, 95, 2_000)):
        yield Tale(f"exhausted {number}", minutes + 5, partial(_chart, number))
    yield Tale("recovered", 190, _recovered)
    yield Tale("running", 14, _running)
    yield Tale("claimed", 1, _claimed)
    yield Tale("retrying", 45, _retrying)
    yield Tale("fresh", 0.4, lambda begun, ids: Story(begun, "welcome-1049", input={"to": "customer:1049"}))
    yield Tale("blocked", 12, _blocked)
    yield Tale("unable", 55, _unable)
    tomorrow = now + dt.timedelta(hours=20)
    yield Tale("scheduled", 90, lambda begun, ids: Story(begun, "digest", input={"list": "staff"}, not_before=tomorrow))
    yield Tale("overdue", 180, _overdue)
    yield Tale("timed out", 240, _timed_out)
    yield Tale("cancelled", 70, _cancelled)
    yield Tale("cancelling", 6, _cancelling)
    yield Tale("re-armed", 26 * 60, _rearmed)
    yield Tale("granted", 33, _granted)


REPORT: Final[dict[str, Any]] = {"definition_id": "reports.yearly", "application_id": "reports"}


def _mail(number: int, begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Sent; each ninth at the second attempt."""
    story = Story(begun, f"mail-{number}", input={"to": f"customer:{number}"})
    story.then(s=1 + number % 7).claim(f"mail-{1 + number % 2}")
    if number % 9 == 4:
        story.then(s=2).fail("transient_connection", "Connection reset by peer.").then(s=3).claim("mail-2")
    return story.then(s=1 + number % 4).succeed({"message": f"m-{number}"})


def _invoice(number: int, begun: dt.datetime, ids: dict[str, str]) -> Story:
    """A dead letter: it failed in a way that is not retried."""
    dead = Story(begun, f"invoice-{7_100 + number}", definition_id="invoice.send", input={"invoice": 7_100 + number})
    error = f"The customer {4_000 + number} has no e-mail address.\nTraceback (most recent call last):\n  …"
    return dead.then(s=5).claim("invoice-1").then(s=4).fail("bad_address", error)


def _chart(number: int, begun: dt.datetime, ids: dict[str, str]) -> Story:
    """A dead letter: its attempts are used up."""
    from workloads.contract import RetryPolicy

    policy = RetryPolicy(max_attempts=2, initial_delay_ms=1_000, retry_on={"out_of_memory"})
    ended = Story(
        begun, f"chart-{number}", definition_id="reports.chart", application_id="reports", retry_policy=policy
    )
    for worker in ("reports-1", "reports-2"):
        ended.then(s=30).claim(worker).then(s=20).fail("out_of_memory", "Killed at 2,048 MiB.")
    return ended


def _recovered(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Done by a second worker, which went on where the first was lost."""
    report = Story(begun, "report-2025", input={"year": 2025, "format": "pdf"}, priority=5, **REPORT)
    report.then(s=12).claim("reports-1", lease_ms=2 * MINUTE_MS)
    for month in range(1, 8):
        report.then(s=50).save({"month": month, "rows": month * 41_337}, key=f"month-{month}").beat(2 * MINUTE_MS)
    report.then(minutes=2.5).lose().then(s=9).claim("reports-2", lease_ms=2 * MINUTE_MS)
    for month in range(8, 13):
        report.then(s=45).save({"month": month, "rows": month * 41_337}, key=f"month-{month}").beat(2 * MINUTE_MS)
    result = {"pages": 412, "total": 1234567.891, "rows": 496_044}
    return report.then(s=20).succeed(result, ["s3://reports/2025.pdf"])


def _running(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Under way, with every deadline that there is."""
    from workloads.contract import Timeouts

    limits = Timeouts(overall_ms=2 * HOUR_MS, execution_ms=HOUR_MS, heartbeat_ms=HOUR_MS)
    report = Story(begun, "report-2026", input={"year": 2026, "format": "pdf"}, timeouts=limits, **REPORT)
    report.then(s=4).claim("reports-2", lease_ms=45 * MINUTE_MS)
    for month in range(1, 6):
        report.then(minutes=2).save({"month": month, "rows": month * 40_112}, key=f"month-{month}")
    return report


def _claimed(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Taken, and not begun."""
    story = Story(begun, "welcome-1048", input={"to": "customer:1048"})
    return story.then(s=20).claim("mail-2", lease_ms=5 * HOUR_MS, start=False)


def _retrying(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """To be tried a third time, later."""
    from workloads.contract import Backoff, RetryPolicy

    patient = RetryPolicy(
        max_attempts=5,
        backoff=Backoff.EXPONENTIAL,
        initial_delay_ms=20 * MINUTE_MS,
        max_delay_ms=HOUR_MS,
        retry_on={"smtp_unavailable", "timeout", "worker_failure"},
    )
    story = Story(begun, "newsletter-48", input={"list": "customers"}, retry_policy=patient)
    story.then(s=3).claim().then(s=5).fail("smtp_unavailable", "421 4.3.2 The server is shutting down; try later.")
    return story.then(minutes=20).claim("mail-2").then(s=5).fail("smtp_unavailable", "421 4.3.2 Still shutting down.")


def _blocked(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Waiting for what is done and for what is not."""
    from workloads.contract import Dependency

    needed = [Dependency(workload_id=ids[title]) for title in ("recovered", "running")]
    publish = {**REPORT, "definition_id": "reports.publish", "input": {"to": "board"}}
    return Story(begun, "publish-2026", dependencies=needed, **publish)


def _unable(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Waiting for a worker that can do it, of which there is none."""
    from workloads.contract import Timeouts

    return Story(
        begun,
        "video-7",
        definition_id="video.render",
        capability_snapshot={"gpu", "codec:av1"},
        timeouts=Timeouts(queue_ms=24 * HOUR_MS),
        input={"frames": 48_000},
    )


def _overdue(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """A dead letter: its overall deadline passed."""
    from workloads.contract import Timeouts

    limits = Timeouts(overall_ms=30 * MINUTE_MS)
    slow = Story(begun, "stock-sync", definition_id="stock.sync", timeouts=limits, input={"warehouse": "north"})
    return slow.then(s=2).claim("stock-1", lease_ms=2 * HOUR_MS).then(minutes=31).overrun()


def _timed_out(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Ended by a person."""
    stuck = Story(begun, "stock-count", definition_id="stock.sync", input={"warehouse": "south"})
    stuck.then(s=2).claim("stock-1", lease_ms=2 * HOUR_MS).then(minutes=50)
    return stuck.time_out("olga", "It hangs at the same shelf: ticket 4699.")


def _cancelled(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Not wanted any longer."""
    unwanted = Story(begun, "sale-mail", input={"list": "customers", "sale": "winter"})
    return unwanted.then(minutes=3).cancel("olga", "The sale was called off: ticket 4711.")


def _cancelling(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Not wanted, and its worker has not heard of it."""
    stopping = Story(begun, "export-all", definition_id="export.rows", input={"table": "orders"})
    stopping.then(s=2).claim("reports-1", lease_ms=5 * HOUR_MS).then(minutes=2).save({"row": 180_000})
    return stopping.then(minutes=1).cancel("olga", "The wrong table.")


def _rearmed(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Dead once, re-armed by a person, and done."""
    mended = Story(begun, "invoice-7000", definition_id="invoice.send", input={"invoice": 7_000})
    mended.then(s=2).claim("invoice-1").then(s=3).fail("bad_address", "The customer has no e-mail address.")
    mended.then(minutes=55).rearm("olga", "The address was added: ticket 4702.")
    return mended.then(s=3).claim("invoice-1").then(s=2).succeed({"sent": True})


def _granted(begun: dt.datetime, ids: dict[str, str]) -> Story:
    """Asked for under a grant, and done."""
    from workloads import authority

    grant = authority.issue_grant(
        subject="partner",
        tenant_id="acme",
        application_id="shop",
        capabilities={"payments:refund"},
        issued_at=begun - dt.timedelta(hours=9),
        expires_at=begun + dt.timedelta(days=30),
    )
    story = Story(
        begun,
        "refund-88",
        requested_by="partner",
        definition_id="payments.refund",
        capability_snapshot={"payments:refund"},
        connection_scopes={"secret://payments/refunds"},
        grant=grant,
        trigger="webhook",
        session_id="session-88",
        input={"order": 88, "amount": 19.9, "exact": 12345678901234567890},
    )
    return story.then(s=2).claim("payments-1").then(s=6).succeed({"refund": "r-88"})
