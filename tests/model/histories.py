"""The state machine that lives random histories in the authority and in the model, compared after each step."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any, ClassVar

from django.db import connection, transaction
from django.test import override_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model.compare import Pairs
from tests.model.drawing import CAPABILITIES, IDS, MAX_LEASE_MS, WORKERS, first_requests, step
from tests.model.model import Model
from tests.model.records import CANCELLED, CLAIMED, FINAL, HELD, IN_WORK, PARKED, READY, REQUESTED, Opaque, Record, ms
from tests.model.site import ModelRefusal
from tests.support import T0
from workloads import authority, models
from workloads.contract import AdmissionRequest, CompletionReport, Effect, Fence
from workloads.errors import WorkloadError

SEEDS = st.integers(0, 2**64 - 1)
# Where the contract leaves the authority a choice, the model is told what was chosen.
CHOOSING = {"enforce_deadlines", "recover_expired", "dead_letter_unsatisfiable", "run_pass"}
# What a repeated call may say otherwise, word by word.
OTHERWISE: dict[str, list[tuple[str, list[Any]]]] = {
    "fail": [("effect", [None, Effect.NONE, Effect.UNKNOWN]), ("kind", ["timeout"]), ("error", ["it broke", ""])],
    "complete": [("output", [{"rows": 1}, None]), ("schema_version", [1, 2]), ("artifacts", [("a",), ()])],
    "checkpoint": [("key", ["a", "b"])],
    "claim": [("request_id", ["r", "R"]), ("lease_ms", [40])],
    "claim_next": [("request_id", ["r", "R"]), ("limit", [3]), ("start", [True])],
    "cancel": [("force", [True, False])],
    "rearm": [("restart_overall", [True, False]), ("reason", ["once more"])],
}
STARTED = {"RUNNING", "CHECKPOINTED"}


class Histories(RuleBasedStateMachine):
    """Each step is one call to both, at the same instant, with the same arguments.

    One rule draws them all: with a rule for each, most examples would be without some verb that the others need.
    """

    examples: ClassVar[int] = 0
    calls: ClassVar[int] = 0
    # How often each verb was answered, or refused with which code: what never came about was not compared.
    answers: ClassVar[dict[tuple[str, str], int]] = {}

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.now = self.latest = T0
        self.pairs = Pairs()
        self.said: list[tuple[str, tuple[Any, ...], dict[str, Any], dt.datetime]] = []
        self.drawn: Counter[int] = Counter()
        self.broken = False
        self.site = override_settings()
        self.site.enable()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def teardown(self) -> None:
        """Ask `verify` for its opinion, and leave nothing behind."""
        try:
            if not self.broken:
                assert list(authority.verify(now=self.latest)) == []
        finally:
            self.site.disable()
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    @initialize(seed=SEEDS, max_releases=st.sampled_from([1, 0, 2]), accept_late=st.booleans())
    def begin(self, seed: int, max_releases: int, accept_late: bool) -> None:
        self.model = Model(
            max_releases=max_releases, accept_late=accept_late, max_checkpoints=3, max_lease_ms=MAX_LEASE_MS
        )
        self.limit_site()
        self.seed = seed
        self.say("admit_many", first_requests(Random(seed)))

    @rule(seed=SEEDS)
    def live(self, seed: int) -> None:
        # Hypothesis likes to draw the same number again: that is to be another step each time.
        self.drawn[seed] += 1
        count, name, given = step(Random(f"{self.seed} {seed} {self.drawn[seed]}"))
        self.wait(count)
        getattr(self, name)(**given)

    # How both are asked.

    def say(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Make one call to the authority and to the model, and hold the answers and the records against each other."""
        type(self).calls += 1
        self.latest = max(self.latest, self.now)
        self.said.append((verb, args, kwargs, self.now))
        self.broken = True
        theirs = {name: self.pairs.translate(value) for name, value in kwargs.items()} | {"now": self.now}
        real = outcome(getattr(authority, verb), *map(self.pairs.translate, args), **theirs)
        chosen = {"picked": picked(real)} if verb in CHOOSING else {}
        mine = outcome(getattr(self.model, verb), *args, **kwargs, **chosen, now=self.now)
        found = [*self.pairs.differences(mine, shown(real), verb), *self.pairs.record_differences(self.model.records)]
        assert not found, "\n".join([*found, "after", *map(str, self.said)])
        self.broken = False
        self.count(verb, mine)
        return mine

    def count(self, verb: str, mine: Any) -> None:
        for one in mine if verb.endswith("_many") else [mine]:
            key = verb, "nothing" if one == [] else getattr(one, "code", "answered")
            self.answers[key] = self.answers.get(key, 0) + 1

    def limit_site(self) -> None:
        """Give the site the limits that the model has."""
        self.site.disable()
        limits = {
            "MAX_RELEASES": self.model.max_releases,
            "ACCEPT_LATE_REPORTS": self.model.accept_late,
            "MAX_CHECKPOINTS": self.model.max_checkpoints,
            "MAX_LEASE_MS": self.model.max_lease_ms,
        }
        self.site = override_settings(WORKLOADS=limits)
        self.site.enable()

    # How what a step names is found: mostly among what the call is meant for.

    def fence(self, given: tuple[str, int], fit: Collection[str] = HELD) -> Fence:
        """Return a fence that was handed out, mostly that of work in a fitting state, or one that never was."""
        way, number = given
        if way == "fit":
            self.bring_about(fit, number)
        known = [
            (record, attempt, fence_of(record, attempt))
            for record in self.model.records.values()
            for attempt in record.attempts
        ]
        past = [fence for _, _, fence in known]
        held = [fence for record, attempt, fence in known if attempt.claim_id == record.claim_id]
        fitting = [
            fence for record, attempt, fence in known if attempt.claim_id == record.claim_id and record.state in fit
        ]
        among = {"past": past, "held": held}.get(way, fitting) or held or past
        if not among or way == "none":
            never = list(self.model.records)[number % len(self.model.records)] if self.model.records else IDS[0]
            return Fence(workload_id=never, claim_id=Opaque("no-claim"), worker_id="w", fencing_token=1)
        fence = among[number % len(among)]
        if way in {"token+1", "token-1"}:
            return dataclasses.replace(fence, fencing_token=fence.fencing_token + int(way[5:]))
        if way == "worker":
            return dataclasses.replace(fence, worker_id=WORKERS[number % 3])
        if way == "claim":
            return dataclasses.replace(fence, claim_id=past[number % len(past)].claim_id)
        if way == "workload":
            return dataclasses.replace(fence, workload_id=[*IDS, "nothing"][number % 7])
        return fence

    def bring_about(self, fit: Collection[str], number: int) -> None:
        """Let there be work in one of these states, where one more call is enough for it."""
        records = self.model.records.values()
        held = [record for record in records if record.claim_id is not None]
        if any(record.state in fit for record in held):
            return
        if not held:
            self.find_work()
            self.say(
                "claim_next",
                worker_id=WORKERS[number % 3],
                capabilities=CAPABILITIES[2],
                lease_ms=[60, 200, MAX_LEASE_MS][number % 3],
                limit=1 + number % 2,
                tenant_id=None,
                application_id=None,
                definitions=None,
                start=fit != {CLAIMED},
                request_id=None,
            )
        elif CLAIMED in {record.state for record in held} and fit == STARTED:
            record = next(record for record in held if record.state == CLAIMED)
            self.say("start", fence_of(record, record.attempt))
        if held and fit == {REQUESTED}:
            record = held[number % len(held)]
            version = record.version if number % 2 else None
            self.say("cancel", record.workload_id, actor="olga", reason="", expected_version=version, force=False)

    def find_work(self) -> None:
        """Let there be work to claim, where waiting or one re-armed workload is enough for it."""
        open_ = [record for record in self.model.records.values() if not self.model.unmet(record)]
        ready = [record.next_attempt_at for record in open_ if record.state == READY]
        parked = [record for record in open_ if record.state in PARKED]
        if ready:
            self.now = max(self.now, min(ready))
        elif parked:
            self.say(
                "rearm",
                parked[0].workload_id,
                actor="olga",
                reason="again",
                expected_version=None,
                restart_overall=True,
            )

    def named(self, given: tuple[str, int], fit: Collection[str]) -> str:
        """Return a workload's id, mostly of one in a fitting state."""
        way, number = given
        known = list(self.model.records)
        fitting = [name for name, record in self.model.records.items() if record.state in fit]
        among = ["nothing"] if way == "nothing" else fitting if way == "fit" and fitting else known or IDS
        return among[number % len(among)]

    def version(self, name: str, way: str) -> int | None:
        if way == "none" or name not in self.model.records:
            return None
        return self.model.records[name].version - (way == "old")

    # Admission.

    def admit(self, request: AdmissionRequest, is_old: bool) -> None:
        admission = self.say("admit", request)
        if is_old and not isinstance(admission, ModelRefusal) and admission[1]:
            self.age(admission[0])

    def age(self, record: Record) -> None:
        """Make a workload just admitted one of contract version 1, as if it came from an older site."""
        record.contract_version = 1
        table, standing = "workloads_admitted", "workloads_workload"
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET contract_version = 1 WHERE workload_id = %s", [record.workload_id])
            # No deadline runs for it: unless it waits for what may never come, the clock has nothing to look for.
            if not self.model.unmeetable(record) and not self.model.missing(record):
                cursor.execute(
                    f"UPDATE {standing} SET due_at = NULL WHERE admitted_id ="
                    f" (SELECT id FROM {table} WHERE workload_id = %s)",
                    [record.workload_id],
                )

    def admit_many(self, given: list[AdmissionRequest]) -> None:
        self.say("admit_many", given)

    # Workers.

    def claim(self, name: tuple[str, int], **asked: Any) -> None:
        self.say("claim", self.named(name, {READY}), **asked)

    def claim_next(self, **asked: Any) -> None:
        self.say("claim_next", **asked)

    def start(self, given: tuple[str, int]) -> None:
        self.say("start", self.fence(given, {CLAIMED}))

    def heartbeat(self, given: list[Any], alone: bool) -> None:
        items = [(self.fence(one), extend_ms) for one, extend_ms in given]
        if alone:
            self.say("heartbeat", items[0][0], extend_ms=items[0][1])
        else:
            self.say("heartbeat_many", items)

    def context(self, given: tuple[str, int], secret_references: tuple[str, ...]) -> None:
        self.say("context", self.fence(given), secret_references=secret_references)

    def checkpoint(self, given: tuple[str, int], state: Any, key: str | None) -> None:
        self.say("checkpoint", self.fence(given, STARTED), state, key=key)

    def release(self, given: tuple[str, int], reason: str) -> None:
        self.say("release", self.fence(given, IN_WORK), reason=reason)

    def confirm_cancel(self, given: tuple[str, int]) -> None:
        self.say("confirm_cancel", self.fence(given, {REQUESTED}))

    def complete(self, given: list[Any], version: int, alone: bool) -> None:
        reports = [
            CompletionReport(
                fence=self.fence(one, STARTED),
                result_id=name,
                output=output,
                artifacts=artifacts,
                schema_version=version,
            )
            for one, name, output, artifacts in given
        ]
        if not alone:
            self.say("complete_many", reports)
            return
        names = ("result_id", "output", "artifacts", "schema_version")
        self.say("complete", reports[0].fence, **{name: getattr(reports[0], name) for name in names})

    def fail(self, given: tuple[str, int], **report: Any) -> None:
        self.say("fail", self.fence(given, IN_WORK), **report)

    def say_it_again(self, back: int, changes: bool, number: int) -> None:
        """Repeat one of the last calls word for word, or with one word changed."""
        said = [call for call in self.said if not changes or call[0] in OTHERWISE] or self.said
        verb, args, kwargs, _ = said[-min(back, len(said))]
        if changes and verb in OTHERWISE:
            word, values = OTHERWISE[verb][number % len(OTHERWISE[verb])]
            kwargs = kwargs | {word: values[number % len(values)]}
        self.say(verb, *args, **kwargs)

    # Operators.

    def cancel(self, name: tuple[str, int], version: str, **asked: Any) -> None:
        workload_id = self.named(name, HELD)
        self.say("cancel", workload_id, actor="olga", expected_version=self.version(workload_id, version), **asked)

    def rearm(self, name: tuple[str, int], version: str, is_late: bool, **asked: Any) -> None:
        """Re-arm, at the very instant of the overall deadline if `is_late`."""
        workload_id = self.named(name, PARKED)
        record = self.model.records.get(workload_id)
        if is_late and record and record.timeouts.overall_ms:
            self.now = max(self.now, record.overall_from + ms(record.timeouts.overall_ms))
        self.say("rearm", workload_id, actor="olga", expected_version=self.version(workload_id, version), **asked)

    def time_out(self, name: tuple[str, int], version: str, **asked: Any) -> None:
        workload_id = self.named(name, IN_WORK)
        self.say("time_out", workload_id, actor="olga", expected_version=self.version(workload_id, version), **asked)

    # The clock.

    def look(self, verb: str, limit: int | None, is_due: bool) -> None:
        if is_due:
            self.let_be_due(verb)
        self.say(verb, limit=limit)

    def let_be_due(self, verb: str) -> None:
        """Let there be something for a pass to decide, where waiting or one call is enough for it."""
        records = self.model.records.values()
        ends = [record.expires_at for record in records if record.expires_at]
        deadlines = [deadline_at for record in records for _, deadline_at in record.deadlines()]
        awaited = [
            name
            for record in records
            for name, needed in record.dependencies
            if record.state == READY and needed != CANCELLED and self.model.unmet(record) and self.is_open(name)
        ]
        if verb == "dead_letter_unsatisfiable" and awaited:
            self.say("cancel", awaited[0], actor="olga", reason="", expected_version=None, force=True)
        elif verb == "recover_expired" and ends:
            self.now = max(self.now, min(ends))
        elif verb != "recover_expired" and deadlines:
            self.now = max(self.now, min(deadlines))

    def is_open(self, name: str) -> bool:
        return name in self.model.records and self.model.records[name].state not in FINAL

    def wait_for(self, number: int, nudge: int) -> None:
        """Go to an instant at which something changes, or `nudge` microseconds before or after it."""
        instants: set[dt.datetime] = set()
        for record in self.model.records.values():
            instants |= {deadline_at for _, deadline_at in record.deadlines()}
            instants |= {record.expires_at} if record.expires_at else set()
            instants |= {record.next_attempt_at} if record.state == READY else set()
        if ahead := sorted(instant for instant in instants if instant > self.now):
            aim = ahead[min(number % 4, len(ahead) - 1)] + dt.timedelta(microseconds=nudge)
            self.now = max(self.now, aim)

    def wait(self, count: int) -> None:
        """Let time pass, or the clock be set back."""
        self.now += ms(count)

    # The site.

    def decide(self, accept_late: bool, max_releases: int) -> None:
        self.model.accept_late, self.model.max_releases = accept_late, max_releases
        self.limit_site()

    def amend(self, number: int) -> None:
        """Let a READY workload's policy allow no more attempts than it had, as a record from elsewhere may say."""
        used = {
            record.workload_id: counted
            for record in self.model.records.values()
            if record.state == READY
            and (counted := record.attempt_count - record.uncounted_releases - record.operator_retries) >= 1
        }
        if not used:
            return
        name = list(used)[number % len(used)]
        record = self.model.records[name]
        record.retry_policy = dataclasses.replace(record.retry_policy, max_attempts=used[name])
        text = models.Admitted._meta.get_field("retry_policy").get_prep_value(record.retry_policy)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE workloads_admitted SET retry_policy = %s WHERE workload_id = %s", [text, name])


def fence_of(record: Record, attempt: Any) -> Fence:
    return Fence(
        workload_id=record.workload_id,
        claim_id=attempt.claim_id,
        worker_id=attempt.worker_id,
        fencing_token=attempt.fencing_token,
    )


def outcome(verb: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return verb(*args, **kwargs)
    except (WorkloadError, ModelRefusal) as refusal:
        return refusal


def picked(real: Any) -> Any:
    """Return which workloads the authority chose, nothing if it refused."""
    if isinstance(real, list):
        return real
    return {name: getattr(real, name, []) for name in ("timed_out", "recovered", "unsatisfiable")}


def shown(real: Any) -> Any:
    """Return an answer as the model gives it: an admission is a pair."""
    if isinstance(real, list):
        return [shown(one) for one in real]
    return (real.workload, real.created) if hasattr(real, "created") else real
