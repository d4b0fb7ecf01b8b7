import django.db.models.deletion
import workloads.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Admitted",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("workload_id", models.CharField(max_length=64, verbose_name="workload id")),
                ("tenant_id", models.CharField(max_length=200, verbose_name="tenant")),
                ("application_id", models.CharField(max_length=200, verbose_name="application")),
                ("requested_by", models.CharField(max_length=200, verbose_name="requested by")),
                ("idempotency_key", models.CharField(max_length=200, verbose_name="idempotency key")),
                ("contract_version", models.PositiveIntegerField(verbose_name="contract version")),
                ("definition_id", models.CharField(max_length=200, verbose_name="definition")),
                ("definition_revision", models.CharField(max_length=200, verbose_name="revision")),
                ("environment", models.CharField(max_length=200, verbose_name="environment")),
                ("input", workloads.fields.JSONTextField(verbose_name="input")),
                ("input_hash", models.CharField(max_length=64, verbose_name="input hash")),
                ("trigger", models.CharField(blank=True, max_length=200, verbose_name="trigger")),
                ("session_id", models.CharField(blank=True, max_length=200, null=True, verbose_name="session")),
                ("capability_snapshot", workloads.fields.StringSetField(verbose_name="capabilities")),
                ("connection_scopes", workloads.fields.StringSetField(verbose_name="connection scopes")),
                ("grant", models.TextField(blank=True, null=True, verbose_name="grant")),
                ("retry_policy", workloads.fields.RetryPolicyField(verbose_name="retry policy")),
                ("timeouts", workloads.fields.TimeoutsField(verbose_name="timeouts")),
                ("not_before", models.DateTimeField(blank=True, null=True, verbose_name="not before")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                (
                    "ancestry_is_closed",
                    models.BooleanField(
                        help_text="Everything it depends on, directly or not, existed when it was admitted: no cycle can reach it.",
                        verbose_name="ancestry is closed",
                    ),
                ),
            ],
            options={
                "verbose_name": "admitted work",
                "verbose_name_plural": "admitted work",
            },
        ),
        migrations.CreateModel(
            name="ApplicationLock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "lock_key",
                    models.UUIDField(
                        help_text="A digest of tenant and application.", unique=True, verbose_name="lock key"
                    ),
                ),
            ],
            options={
                "verbose_name": "application lock",
                "verbose_name_plural": "application locks",
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField(verbose_name="number")),
                ("attempt_id", models.CharField(max_length=64, verbose_name="attempt id")),
                ("claim_id", models.CharField(max_length=64, verbose_name="claim")),
                ("worker_id", models.CharField(max_length=200, verbose_name="worker")),
                ("fencing_token", models.PositiveBigIntegerField(verbose_name="fencing token")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("CLAIMED", "CLAIMED"),
                            ("RUNNING", "RUNNING"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("TIMED_OUT", "TIMED_OUT"),
                            ("WORKER_LOST", "WORKER_LOST"),
                            ("CANCELLED", "CANCELLED"),
                            ("RELEASED", "RELEASED"),
                        ],
                        max_length=12,
                        verbose_name="status",
                    ),
                ),
                ("claimed_at", models.DateTimeField(verbose_name="claimed")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "ended_by",
                    models.CharField(
                        blank=True,
                        help_text="The voice that ended it: worker, operator or clock.",
                        max_length=8,
                        verbose_name="ended by",
                    ),
                ),
                ("error", models.TextField(blank=True, null=True, verbose_name="error")),
                ("failure_kind", models.CharField(blank=True, max_length=200, null=True, verbose_name="failure kind")),
                ("effect", models.CharField(blank=True, max_length=8, null=True, verbose_name="effect")),
                ("outcome_state", models.CharField(blank=True, max_length=24, null=True, verbose_name="outcome")),
                ("outcome_decision", models.CharField(blank=True, max_length=40, null=True, verbose_name="decision")),
                ("outcome_next_attempt_at", models.DateTimeField(blank=True, null=True, verbose_name="next attempt")),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "ordering": ["record", "number"],
            },
        ),
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("sequence", models.PositiveIntegerField(verbose_name="sequence")),
                ("checkpoint_id", models.CharField(max_length=64, verbose_name="checkpoint id")),
                ("attempt_id", models.CharField(max_length=64, verbose_name="attempt id")),
                ("key", models.CharField(blank=True, max_length=200, null=True, verbose_name="key")),
                ("state", workloads.fields.JSONTextField(verbose_name="state")),
                ("at", models.DateTimeField(verbose_name="at")),
            ],
            options={
                "verbose_name": "checkpoint",
                "verbose_name_plural": "checkpoints",
                "ordering": ["record", "sequence"],
            },
        ),
        migrations.CreateModel(
            name="ClaimRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "request_key",
                    models.UUIDField(
                        help_text="A digest of worker and request id.", unique=True, verbose_name="request key"
                    ),
                ),
                ("worker_id", models.CharField(max_length=200, verbose_name="worker")),
                ("request_id", models.CharField(max_length=200, verbose_name="request id")),
                ("verb", models.CharField(max_length=12, verbose_name="verb")),
                ("workload_id", models.CharField(blank=True, max_length=200, verbose_name="workload id")),
                (
                    "granted",
                    workloads.fields.JSONTextField(
                        help_text="The claims handed out: pairs of workload key and claim id.", verbose_name="granted"
                    ),
                ),
            ],
            options={
                "verbose_name": "claim request",
                "verbose_name_plural": "claim requests",
            },
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("depends_on", models.CharField(max_length=200, verbose_name="depends on")),
                (
                    "required_state",
                    models.CharField(
                        choices=[
                            ("CREATED", "CREATED"),
                            ("READY", "READY"),
                            ("CLAIMED", "CLAIMED"),
                            ("RUNNING", "RUNNING"),
                            ("CHECKPOINTED", "CHECKPOINTED"),
                            ("RECOVERING", "RECOVERING"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("TIMED_OUT", "TIMED_OUT"),
                            ("DEAD_LETTER", "DEAD_LETTER"),
                            ("CANCELLATION_REQUESTED", "CANCELLATION_REQUESTED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        max_length=24,
                        verbose_name="required state",
                    ),
                ),
                ("standing", models.CharField(max_length=10, verbose_name="standing")),
            ],
            options={
                "verbose_name": "dependency",
                "verbose_name_plural": "dependencies",
                "ordering": ["dependent", "depends_on"],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("sequence", models.PositiveIntegerField(verbose_name="sequence")),
                ("from_state", models.CharField(blank=True, max_length=24, verbose_name="from")),
                (
                    "to_state",
                    models.CharField(
                        choices=[
                            ("CREATED", "CREATED"),
                            ("READY", "READY"),
                            ("CLAIMED", "CLAIMED"),
                            ("RUNNING", "RUNNING"),
                            ("CHECKPOINTED", "CHECKPOINTED"),
                            ("RECOVERING", "RECOVERING"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("TIMED_OUT", "TIMED_OUT"),
                            ("DEAD_LETTER", "DEAD_LETTER"),
                            ("CANCELLATION_REQUESTED", "CANCELLATION_REQUESTED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        max_length=24,
                        verbose_name="to",
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("actor", models.CharField(max_length=200, verbose_name="actor")),
                ("evidence", workloads.fields.JSONTextField(verbose_name="evidence")),
            ],
            options={
                "verbose_name": "event",
                "verbose_name_plural": "events",
                "ordering": ["record", "sequence"],
            },
        ),
        migrations.CreateModel(
            name="Lane",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "lane_key",
                    models.UUIDField(help_text="A digest of the other columns.", unique=True, verbose_name="lane key"),
                ),
                ("tenant_id", models.CharField(max_length=200, verbose_name="tenant")),
                ("application_id", models.CharField(max_length=200, verbose_name="application")),
                ("definition_id", models.CharField(max_length=200, verbose_name="definition")),
                ("definition_revision", models.CharField(max_length=200, verbose_name="revision")),
                ("capabilities", workloads.fields.StringSetField(verbose_name="capabilities")),
            ],
            options={
                "verbose_name": "lane",
                "verbose_name_plural": "lanes",
            },
        ),
        migrations.CreateModel(
            name="PassRun",
            fields=[
                ("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("ran_at", models.DateTimeField(verbose_name="ran")),
            ],
            options={
                "verbose_name": "pass",
                "verbose_name_plural": "passes",
            },
        ),
        migrations.CreateModel(
            name="Workload",
            fields=[
                (
                    "admitted",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        related_name="standing",
                        serialize=False,
                        to="workloads.admitted",
                    ),
                ),
                ("version", models.PositiveBigIntegerField(verbose_name="version")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("CREATED", "CREATED"),
                            ("READY", "READY"),
                            ("CLAIMED", "CLAIMED"),
                            ("RUNNING", "RUNNING"),
                            ("CHECKPOINTED", "CHECKPOINTED"),
                            ("RECOVERING", "RECOVERING"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("TIMED_OUT", "TIMED_OUT"),
                            ("DEAD_LETTER", "DEAD_LETTER"),
                            ("CANCELLATION_REQUESTED", "CANCELLATION_REQUESTED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        max_length=24,
                        verbose_name="state",
                    ),
                ),
                ("priority", models.IntegerField(verbose_name="priority")),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True, verbose_name="next attempt")),
                ("attempt_count", models.PositiveIntegerField(default=0, verbose_name="attempts")),
                ("retry_count", models.PositiveIntegerField(default=0, verbose_name="retries")),
                ("release_count", models.PositiveIntegerField(default=0, verbose_name="releases")),
                ("uncounted_releases", models.PositiveIntegerField(default=0, verbose_name="uncounted releases")),
                ("operator_retries", models.PositiveIntegerField(default=0, verbose_name="operator retries")),
                ("fencing_token", models.PositiveBigIntegerField(default=0, verbose_name="fencing token")),
                ("last_failure", models.TextField(blank=True, null=True, verbose_name="last failure")),
                ("updated_at", models.DateTimeField(verbose_name="updated")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
                ("overall_from", models.DateTimeField(verbose_name="overall deadline runs from")),
                ("claim_id", models.CharField(blank=True, max_length=64, null=True, verbose_name="claim")),
                ("worker_id", models.CharField(blank=True, max_length=200, null=True, verbose_name="worker")),
                ("claimed_at", models.DateTimeField(blank=True, null=True, verbose_name="claimed")),
                ("last_heartbeat", models.DateTimeField(blank=True, null=True, verbose_name="last heartbeat")),
                ("expires_at", models.DateTimeField(blank=True, null=True, verbose_name="lease ends")),
                ("attempt_id", models.CharField(blank=True, max_length=64, null=True, verbose_name="attempt")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("event_count", models.PositiveIntegerField(default=0, verbose_name="events")),
                ("checkpoint_count", models.PositiveIntegerField(default=0, verbose_name="checkpoints")),
                ("dependency_standing", models.CharField(default="met", max_length=10, verbose_name="dependencies")),
                ("due_at", models.DateTimeField(blank=True, null=True, verbose_name="clock is due")),
                ("queued_lane_id", models.BigIntegerField(blank=True, null=True, verbose_name="queued in lane")),
                ("waiting_lane_id", models.BigIntegerField(blank=True, null=True, verbose_name="waiting in lane")),
            ],
            options={
                "verbose_name": "workload",
                "verbose_name_plural": "workloads",
                "permissions": [("rearm_workload", "Can re-arm a workload")],
            },
            bases=("workloads.admitted",),
        ),
        migrations.AddField(
            model_name="admitted",
            name="lane",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="workloads.lane",
            ),
        ),
        migrations.CreateModel(
            name="Tombstone",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("workload_id", models.CharField(max_length=64, verbose_name="workload id")),
                ("tenant_id", models.CharField(max_length=200, verbose_name="tenant")),
                ("application_id", models.CharField(max_length=200, verbose_name="application")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("CREATED", "CREATED"),
                            ("READY", "READY"),
                            ("CLAIMED", "CLAIMED"),
                            ("RUNNING", "RUNNING"),
                            ("CHECKPOINTED", "CHECKPOINTED"),
                            ("RECOVERING", "RECOVERING"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("TIMED_OUT", "TIMED_OUT"),
                            ("DEAD_LETTER", "DEAD_LETTER"),
                            ("CANCELLATION_REQUESTED", "CANCELLATION_REQUESTED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        max_length=24,
                        verbose_name="state",
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                ("result_key", models.UUIDField(null=True, unique=True, verbose_name="result key")),
                ("pruned_at", models.DateTimeField(verbose_name="pruned")),
            ],
            options={
                "verbose_name": "tombstone",
                "verbose_name_plural": "tombstones",
                "constraints": [models.UniqueConstraint(fields=("workload_id",), name="workloads_tombstone_identity")],
            },
        ),
        migrations.CreateModel(
            name="Result",
            fields=[
                (
                    "record",
                    models.OneToOneField(
                        db_column="record",
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="result",
                        serialize=False,
                        to="workloads.workload",
                        verbose_name="workload",
                    ),
                ),
                (
                    "result_key",
                    models.UUIDField(
                        help_text="A digest of tenant and result id.", unique=True, verbose_name="result key"
                    ),
                ),
                ("result_id", models.CharField(max_length=200, verbose_name="result id")),
                ("attempt_id", models.CharField(max_length=64, verbose_name="attempt id")),
                ("produced_by", models.CharField(max_length=200, verbose_name="produced by")),
                ("output", workloads.fields.JSONTextField(verbose_name="output")),
                ("output_hash", models.CharField(max_length=64, verbose_name="output hash")),
                ("artifacts", workloads.fields.JSONTextField(verbose_name="artifacts")),
                ("schema_version", models.PositiveIntegerField(verbose_name="schema version")),
                ("claim_id", models.CharField(max_length=64, verbose_name="claim")),
                ("fencing_token", models.PositiveBigIntegerField(verbose_name="fencing token")),
                ("at", models.DateTimeField(verbose_name="at")),
            ],
            options={
                "verbose_name": "result",
                "verbose_name_plural": "results",
            },
        ),
        migrations.AddIndex(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("queued_lane_id__isnull", False)),
                fields=["queued_lane_id", "-priority", "next_attempt_at", "admitted"],
                name="workloads_queued",
            ),
        ),
        migrations.AddIndex(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("waiting_lane_id__isnull", False)),
                fields=["waiting_lane_id", "next_attempt_at"],
                name="workloads_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("due_at__isnull", False)), fields=["due_at", "admitted"], name="workloads_due"
            ),
        ),
        migrations.AddField(
            model_name="event",
            name="record",
            field=models.ForeignKey(
                db_column="record",
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="events",
                to="workloads.workload",
                verbose_name="workload",
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="dependent",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="dependencies",
                to="workloads.workload",
                verbose_name="dependent",
            ),
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="record",
            field=models.ForeignKey(
                db_column="record",
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="checkpoints",
                to="workloads.workload",
                verbose_name="workload",
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="record",
            field=models.ForeignKey(
                db_column="record",
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="attempts",
                to="workloads.workload",
                verbose_name="workload",
            ),
        ),
        migrations.AddIndex(
            model_name="admitted",
            index=models.Index(fields=["tenant_id", "application_id", "created_at", "id"], name="workloads_newest"),
        ),
        migrations.AddConstraint(
            model_name="admitted",
            constraint=models.UniqueConstraint(fields=("workload_id",), name="workloads_identity"),
        ),
        migrations.AddConstraint(
            model_name="event",
            constraint=models.UniqueConstraint(fields=("record", "sequence"), name="workloads_event_sequence"),
        ),
        migrations.AddIndex(
            model_name="dependency",
            index=models.Index(fields=["depends_on"], name="workloads_dependents"),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.UniqueConstraint(fields=("dependent", "depends_on"), name="workloads_dependency_once"),
        ),
        migrations.AddConstraint(
            model_name="checkpoint",
            constraint=models.UniqueConstraint(fields=("record", "sequence"), name="workloads_checkpoint_sequence"),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.UniqueConstraint(fields=("record", "number"), name="workloads_attempt_number"),
        ),
    ]
