"""The demonstration's scenes: one of everything that may become of work, beside the files, for the admin to show.

Each is admitted, run, refused, called off or re-armed as it would be in earnest; nothing is written by hand.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.utils import timezone

from project.demo.children import Broken
from project.demo.handlers import take_inventory
from workloads import authority
from workloads.contract import AdmissionRequest, Dependency, RetryPolicy, Timeouts
from workloads.models import Workload

OPERATOR: Final = "operator"
DEFINITIONS: Final = ("folder.inventory", "folder.watch", "feed.fetch", "feed.parse", "notice.publish")
STALLED_S: Final = 60.0
WATCH_S: Final = 8 * 3600
FEEDS: Final = 3
AT_ONCE: Final = RetryPolicy(max_attempts=2, initial_delay_ms=200)
IN_AN_HOUR: Final = RetryPolicy(initial_delay_ms=3_600_000, max_delay_ms=3_600_000)
NEVER: Final = RetryPolicy(retry_on=frozenset())


@dataclass(frozen=True)
class Scene:
    """A piece of work, what it shows, and how one knows that it does."""

    workload_id: str
    shows: str
    is_there: Callable[[Workload], bool]


class Scenes:
    """All of the scenes, by name."""

    def __init__(self, folder: Path, scratch: Path, closed_port: int) -> None:
        self._folder = folder
        self._scratch = scratch
        self._notice = scratch / "notice.txt"
        self._port = closed_port
        self._scenes: dict[str, Scene] = {}
        self._feeds_are_rearmed = False
        self._missing: list[str] = []
        self._moved_at = time.monotonic()

    def admit(self) -> None:
        """Admit everything; call off and time out what needs no worker."""
        folder, reads = str(self._folder), {"capability_snapshot": frozenset({"files:read"})}
        inventory = {"folder": folder, "table": str(self._scratch / "inventory.csv")}
        port, tomorrow = {"port": self._port}, timezone.now() + dt.timedelta(days=1)

        add = self._add
        add(
            "result",
            "done, with a result and an artifact",
            "reports",
            "folder.inventory",
            inventory,
            _is("SUCCEEDED"),
            **reads,
        )
        watching = {"folder": folder, "for_s": WATCH_S}
        add("running", "an attempt in progress", "reports", "folder.watch", watching, _is_saved, **reads)
        add(
            "retrying",
            "failed once, to be tried again in an hour",
            "feeds",
            "feed.fetch",
            port,
            _is_retrying,
            retry_policy=IN_AN_HOUR,
        )
        for number in range(1, FEEDS + 1):
            add(
                f"exhausted-{number}",
                "given up, re-armed with others, and given up again",
                "feeds",
                "feed.fetch",
                port,
                _is_dead("transient_connection", rearmed=1),
                retry_policy=AT_ONCE,
            )
        add(
            "faulty",
            "given up: the handler is at fault",
            "feeds",
            "feed.parse",
            {"text": "[1, 2"},
            _is_dead("exception"),
        )
        add(
            "slow",
            "given up: it took too long",
            "reports",
            "folder.watch",
            watching,
            _is_dead("timeout"),
            retry_policy=NEVER,
            timeouts=Timeouts(execution_ms=500),
            **reads,
        )
        add(
            "published",
            "re-armed with a reason, and done",
            "reports",
            "notice.publish",
            {"path": str(self._notice)},
            _is_rearmed,
            **reads,
        )
        add(
            "scheduled",
            "scheduled for tomorrow",
            "reports",
            "folder.inventory",
            inventory,
            _is("READY"),
            not_before=tomorrow,
            **reads,
        )
        add(
            "blocked",
            "waits for other work",
            "reports",
            "notice.publish",
            {"path": str(self._notice)},
            _is("READY"),
            dependencies=self._on("scheduled"),
            **reads,
        )
        add("cancelled", "called off", "feeds", "mail.digest", None, _is("CANCELLED"), priority=-1)
        add(
            "orphaned",
            "given up: what it depends on was called off",
            "feeds",
            "feed.parse",
            {"text": "[]"},
            _is("DEAD_LETTER"),
            dependencies=self._on("cancelled"),
        )
        add("stopped", "timed out by hand", "feeds", "mail.digest", None, _is("TIMED_OUT"), priority=-1)
        mail = frozenset({"mail:send"})
        add("unserved", "no worker can do it", "feeds", "mail.digest", None, _is("READY"), capability_snapshot=mail)
        for name, verb, reason in (
            ("cancelled", authority.cancel, "The digest goes out by post this time."),
            ("stopped", authority.time_out, "Nobody needs it any more today."),
        ):
            verb(self._scenes[name].workload_id, actor=OPERATOR, reason=reason)
        self._take_inventory("result")

    def _add(
        self,
        name: str,
        shows: str,
        application: str,
        definition: str,
        given: Any,
        is_there: Callable[[Workload], bool],
        **more: Any,
    ) -> None:
        request = AdmissionRequest(
            tenant_id="demo",
            application_id=application,
            requested_by="demo",
            idempotency_key=name,
            definition_id=definition,
            input=given,
            **more,
        )
        self._scenes[name] = Scene(authority.admit(request).workload.workload_id, shows, is_there)

    def _take_inventory(self, name: str) -> None:
        """Do one piece of work by the authority's verbs alone: what a handler returns has no artifacts."""
        workload = authority.get(self._scenes[name].workload_id)
        claim = authority.claim(
            workload.workload_id, worker_id="by-hand", capabilities=workload.capability_snapshot, lease_ms=60_000
        )
        fence = claim.fence
        authority.start(fence)
        table = Path(workload.input["table"])
        output = take_inventory(self._folder, table, lambda state: authority.checkpoint(fence, state))
        content = table.read_bytes()
        artifact = {
            "name": table.name,
            "media_type": "text/csv",
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        authority.complete(fence, result_id=claim.attempt_id, output=output, artifacts=[artifact])

    def _on(self, name: str) -> list[Dependency]:
        return [Dependency(workload_id=self._scenes[name].workload_id)]

    def look(self) -> bool:
        """Do what an operator would do now; return whether all is as it is to be shown. Broken if nothing moves."""
        rows = self.rows()
        if rows["published"].state == "DEAD_LETTER" and not self._notice.exists():
            self._notice.write_text("The shop is closed on Sunday.\n")
            reason = "The notice has been put in its place."
            authority.rearm(rows["published"].workload_id, actor=OPERATOR, reason=reason)
        feeds = [rows[f"exhausted-{number}"] for number in range(1, FEEDS + 1)]
        if not self._feeds_are_rearmed and all(row.state == "DEAD_LETTER" for row in feeds):
            self._feeds_are_rearmed = True
            self._rearm_all()
        missing = [name for name, scene in self._scenes.items() if not scene.is_there(rows[name])]
        if missing != self._missing:
            self._missing, self._moved_at = missing, time.monotonic()
        if missing and time.monotonic() - self._moved_at > STALLED_S:
            said = "; ".join(f"{self._scenes[name].shows}: it is in {rows[name].state}" for name in missing)
            raise Broken(f"what was to be shown is not there: {said}")
        return not missing

    def _rearm_all(self) -> None:
        """Re-arm the feeds' dead letters as the admin does for all that match a filter."""
        criteria = "state=DEAD_LETTER&application=feeds&definition=feed.fetch"
        rows = Workload.objects.filter(state="DEAD_LETTER", application_id="feeds", definition_id="feed.fetch")
        action = authority.begin_bulk("rearm", actor=OPERATOR, criteria=criteria)
        while action.stage == "selecting":
            action = authority.select_bulk(action.pk, rows)
        action = authority.confirm_bulk(action.pk, actor=OPERATOR, reason="The supplier says that the feed is back.")
        while action.stage == "running":
            action = authority.continue_bulk(action.pk, actor=OPERATOR)

    def rows(self) -> dict[str, Workload]:
        """Return the workloads, by the scenes' names."""
        ids = [scene.workload_id for scene in self._scenes.values()]
        found = {row.workload_id: row for row in Workload.objects.filter(workload_id__in=ids)}
        return {name: found[scene.workload_id] for name, scene in self._scenes.items()}


def _is(state: str) -> Callable[[Workload], bool]:
    return lambda row: row.state == state


def _is_dead(kind: str, rearmed: int = 0) -> Callable[[Workload], bool]:
    return lambda row: (
        row.state == "DEAD_LETTER" and (row.last_failure or "").startswith(kind) and row.operator_retries == rearmed
    )


def _is_retrying(row: Workload) -> bool:
    return row.state == "READY" and row.retry_count == 1


def _is_rearmed(row: Workload) -> bool:
    return row.state == "SUCCEEDED" and row.operator_retries == 1


def _is_saved(row: Workload) -> bool:
    return row.state == "CHECKPOINTED"
