"""The shapes of answers, for the OpenAPI schema. `answers` makes them; tests hold the two together."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from workloads.api.answer_fields import (
    CodeName,
    Details,
    Digest,
    Evidence,
    FromStateName,
    Id,
    Instant,
    Integer,
    Link,
    Name,
    OutcomeStateName,
    PriorityNumber,
    StateName,
    StatusName,
    StatusNumber,
    Strings,
)
from workloads.api.bodies import BackoffName, EffectName
from workloads.api.shapes import AnyJSON, Boolean, Number, Text
from workloads.contract import WorkloadState


class Answer(serializers.Serializer[Any]):
    """An object of which every field is there that is not said to be left out."""

    says_besides: ClassVar[dict[str, Any]] = {}
    """What the schema says of the object besides its fields."""


class DependencyAnswer(Answer):
    """What a workload waits for. The id is as it was given: it may name nothing yet."""

    workload_id = Name()
    required_state = StateName()


class RetryPolicyAnswer(Answer):
    """When a failed attempt is followed by another."""

    max_attempts = Integer()
    backoff = BackoffName()
    initial_delay_ms = Integer()
    max_delay_ms = Integer()
    jitter = Number()
    retry_on = Strings()


class TimeoutsAnswer(Answer):
    """Deadlines in milliseconds, null for none."""

    overall_ms = Integer(allow_null=True)
    queue_ms = Integer(allow_null=True)
    claim_ms = Integer(allow_null=True)
    execution_ms = Integer(allow_null=True)
    heartbeat_ms = Integer(allow_null=True)


class WorkloadRecord(Answer):
    """A workload as it stands. The input is left out for callers who may not read payloads, and in lists."""

    workload_id = Id()
    tenant_id = Name()
    application_id = Name()
    requested_by = Name()
    idempotency_key = Name()
    contract_version = Integer()
    version = Integer()
    definition_id = Name()
    definition_revision = Name()
    environment = Name()
    input = AnyJSON(required=False)
    input_hash = Digest()
    trigger = Text()
    session_id = Name(allow_null=True)
    capability_snapshot = Strings()
    connection_scopes = Strings()
    grant = Text(allow_null=True)
    priority = PriorityNumber()
    retry_policy = RetryPolicyAnswer()
    timeouts = TimeoutsAnswer()
    dependencies = DependencyAnswer(many=True)
    not_before = Instant(allow_null=True)
    state = StateName()
    next_attempt_at = Instant(allow_null=True)
    attempt_count = Integer()
    retry_count = Integer()
    release_count = Integer()
    uncounted_releases = Integer()
    operator_retries = Integer()
    fencing_token = Integer()
    last_failure = Text(allow_null=True)
    created_at = Instant()
    updated_at = Instant()
    finished_at = Instant(allow_null=True)
    overall_from = Instant()
    claim_id = Id(allow_null=True)
    worker_id = Name(allow_null=True)
    claimed_at = Instant(allow_null=True)
    last_heartbeat = Instant(allow_null=True)
    expires_at = Instant(allow_null=True)


class Claim(Answer):
    """A lease on one workload."""

    workload_id = Id()
    attempt_id = Id()
    attempt_number = Integer()
    claim_id = Id()
    worker_id = Name()
    fencing_token = Integer()
    claimed_at = Instant()
    last_heartbeat = Instant()
    expires_at = Instant()
    lease_left_ms = Integer(help_text="By the authority's clock, so that a worker need not trust its own.")
    cancellation_requested = Boolean()
    definition_id = Name()
    definition_revision = Name()


class Checkpoint(Answer):
    """What an attempt saved. The state is left out for callers who may not read payloads."""

    sequence = Integer()
    checkpoint_id = Id()
    attempt_id = Id()
    key = Name(allow_null=True)
    state = AnyJSON(required=False)
    at = Instant()


class ExecutionContext(Claim):
    """A claim, with all that its holder needs to run the work."""

    tenant_id = Name()
    application_id = Name()
    environment = Name()
    input = AnyJSON()
    checkpoints = Checkpoint(many=True)
    capability_snapshot = Strings()
    connection_scopes = Strings()
    secret_references = Strings()


class Provenance(Answer):
    """The claim that produced a result."""

    claim_id = Id()
    fencing_token = Integer()


class Result(Answer):
    """The one result of a workload. Output and artifacts are left out for callers who may not read payloads."""

    result_id = Name()
    attempt_id = Id()
    produced_by = Name()
    output = AnyJSON(required=False)
    output_hash = Digest()
    artifacts = AnyJSON(required=False)
    schema_version = Integer()
    provenance = Provenance()
    at = Instant()


class FailureOutcome(Answer):
    """What the authority decided after a failure."""

    state = OutcomeStateName()
    decision = Text()
    next_attempt_at = Instant(allow_null=True)


class Event(Answer):
    """One step of a workload."""

    sequence = Integer()
    from_state = FromStateName()
    to_state = StateName()
    at = Instant()
    actor = Name()
    evidence = Evidence()


class Attempt(Answer):
    """One attempt."""

    number = Integer()
    attempt_id = Id()
    claim_id = Id()
    worker_id = Name()
    fencing_token = Integer()
    status = StatusName()
    claimed_at = Instant()
    started_at = Instant(allow_null=True)
    ended_at = Instant(allow_null=True)
    error = Text(allow_null=True)
    failure_kind = Name(allow_null=True)
    effect = EffectName(allow_null=True)
    outcome_state = OutcomeStateName(allow_null=True)
    outcome_decision = Text(allow_null=True)
    outcome_next_attempt_at = Instant(allow_null=True)


class Blocker(Answer):
    """One reason why a workload is not running now."""

    code = Text()
    message = Text()
    details = Details()


class Blockers(Answer):
    """Every reason why a workload is not running now."""

    blockers = Blocker(many=True)


class Claimed(ExecutionContext):
    """A claim that was just made."""

    heartbeat_ms = Integer(
        allow_null=True, help_text="The work's own heartbeat deadline in milliseconds, which may be below the lease."
    )


class Claims(Answer):
    """The claims that were got; empty if there was no work."""

    claims = Claimed(many=True)


class Page(Answer):
    """A page, and the addresses of those beside it."""

    next = Link(allow_null=True)
    previous = Link(allow_null=True)


class WorkloadPage(Page):
    """Workloads."""

    results = WorkloadRecord(many=True)


class EventPage(Page):
    """Events in order."""

    results = Event(many=True)


class AttemptPage(Page):
    """Attempts in order."""

    results = Attempt(many=True)


class CheckpointPage(Page):
    """Checkpoints in order."""

    results = Checkpoint(many=True)


class ResultPage(Page):
    """The result, or none."""

    results = Result(many=True)


class Error(Answer):
    """A refusal, or what went wrong."""

    code = CodeName()
    message = Text(help_text="For people; it may change.")
    details = Details(allow_null=True)


class Outcome(Answer):
    """What came of one item of a batch: its answer, or `error`."""

    # The status, and one thing more.
    says_besides: ClassVar[dict[str, Any]] = {"minProperties": 2, "maxProperties": 2}

    status = StatusNumber()
    error = Error(required=False)


class AdmissionOutcome(Outcome):
    """What came of one admission of a batch: `workload`, or `error`."""

    workload = WorkloadRecord(required=False)


class AdmissionOutcomes(Answer):
    """What came of each, in order."""

    outcomes = AdmissionOutcome(many=True)


class ClaimOutcome(Outcome):
    """What came of one heartbeat of a batch: `claim`, or `error`."""

    claim = Claim(required=False)


class ClaimOutcomes(Answer):
    """What came of each, in order."""

    outcomes = ClaimOutcome(many=True)


class ResultOutcome(Outcome):
    """What came of one completion of a batch: `result`, or `error`."""

    result = Result(required=False)


class ResultOutcomes(Answer):
    """What came of each, in order."""

    outcomes = ResultOutcome(many=True)


class Count(Answer):
    """A count up to 10,000; `more` says that there are more."""

    count = Integer()
    more = Boolean()


class Rates(Answer):
    """What happened in a span of time."""

    claims = Count()
    completions = Count()
    failures = Count()


class Spans(Answer):
    """The last minute and the last hour."""

    minute = Rates()
    hour = Rates()


CountsByState = type(
    "CountsByState",
    (Answer,),
    {"__doc__": "How many stand in each state.", **{state.value: Count() for state in WorkloadState}},
)


class Stats(Answer):
    """Counts and rates."""

    at = Instant()
    counts = CountsByState()
    oldest_claimable_ms = Integer(allow_null=True)
    last = Spans()


class DatabaseHealth(Answer):
    """Whether the database answers."""

    ok = Boolean()


class MigrationsHealth(Answer):
    """Whether the app's migrations are applied, and how many are missing."""

    ok = Boolean()
    missing = Integer()


class PassHealth(Answer):
    """Whether a pass has run lately, and how many milliseconds ago."""

    ok = Boolean()
    age_ms = Integer(allow_null=True)


class HealthDetails(Answer):
    """What was looked at. `pass` is left out where migrations are missing."""

    database = DatabaseHealth()
    migrations = MigrationsHealth()

    def get_fields(self) -> dict[str, Any]:
        # A word that Python keeps to itself.
        return {**super().get_fields(), "pass": PassHealth(required=False)}


class Health(Answer):
    """Whether all is well; details for those who have access."""

    ok = Boolean()
    details = HealthDetails(required=False)
