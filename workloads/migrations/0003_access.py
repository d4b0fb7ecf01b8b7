"""Who may do what over HTTP, and the indexes that lists and figures read.

On PostgreSQL the indexes are built while others write; a build that was broken off is begun anew.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import workloads.fields


class AddIndexOnline(migrations.AddIndex):
    """Adds an index, on PostgreSQL without holding up writers."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        # What a build that was broken off has left is not valid.
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        schema_editor.add_index(model, self.index, concurrently=True)


def compare_byte_for_byte(apps, schema_editor):
    if schema_editor.connection.vendor == "mysql":
        schema_editor.execute(
            "ALTER TABLE workloads_access CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
        )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("workloads", "0002_database"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Access",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_id", models.CharField(max_length=200, verbose_name="tenant")),
                (
                    "application_id",
                    models.CharField(
                        blank=True,
                        help_text="Empty: all applications of the tenant, those to come included.",
                        max_length=200,
                        verbose_name="application",
                    ),
                ),
                (
                    "is_requester",
                    models.BooleanField(
                        default=False,
                        help_text="May admit work, and read and cancel what it admitted.",
                        verbose_name="requester",
                    ),
                ),
                (
                    "is_worker",
                    models.BooleanField(
                        default=False,
                        help_text="May claim work, and make every call with a fence.",
                        verbose_name="worker",
                    ),
                ),
                (
                    "is_operator",
                    models.BooleanField(
                        default=False,
                        help_text="May read, explain, cancel, re-arm and time out all work.",
                        verbose_name="operator",
                    ),
                ),
                (
                    "is_viewer",
                    models.BooleanField(
                        default=False, help_text="May read and explain all work.", verbose_name="viewer"
                    ),
                ),
                (
                    "reads_payloads",
                    models.BooleanField(
                        default=False,
                        help_text=(
                            "A viewer sees inputs, outputs, artifacts and checkpoints too. The other roles do anyway."
                        ),
                        verbose_name="reads payloads",
                    ),
                ),
                (
                    "capabilities",
                    workloads.fields.StringSetField(
                        blank=True,
                        default=frozenset,
                        help_text="The most that a worker may present, and that a requester may ask for.",
                        verbose_name="capabilities",
                    ),
                ),
                (
                    "worker_prefix",
                    models.CharField(
                        blank=True,
                        help_text="What every worker id of this user must begin with.",
                        max_length=200,
                        verbose_name="worker prefix",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workload_access",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "access",
                "verbose_name_plural": "access",
                "ordering": ["user", "tenant_id", "application_id"],
            },
        ),
        migrations.AddConstraint(
            model_name="access",
            constraint=models.UniqueConstraint(
                fields=("user", "tenant_id", "application_id"), name="workloads_access_once"
            ),
        ),
        migrations.RunPython(compare_byte_for_byte, migrations.RunPython.noop),
        AddIndexOnline(
            model_name="admitted",
            index=models.Index(fields=["tenant_id", "created_at", "id"], name="workloads_newest_of_tenant"),
        ),
        AddIndexOnline(
            model_name="admitted",
            index=models.Index(
                fields=["tenant_id", "application_id", "requested_by", "created_at", "id"],
                name="workloads_newest_of_user",
            ),
        ),
        AddIndexOnline(
            model_name="admitted",
            index=models.Index(
                fields=["tenant_id", "application_id", "definition_id", "created_at", "id"],
                name="workloads_newest_of_kind",
            ),
        ),
        AddIndexOnline(model_name="admitted", index=models.Index(fields=["idempotency_key"], name="workloads_key")),
        AddIndexOnline(
            model_name="workload", index=models.Index(fields=["priority", "admitted"], name="workloads_priority")
        ),
        AddIndexOnline(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("next_attempt_at__isnull", False)),
                fields=["next_attempt_at", "admitted"],
                name="workloads_next",
            ),
        ),
        AddIndexOnline(
            model_name="event",
            index=models.Index(
                condition=models.Q(("to_state__in", ["CLAIMED", "FAILED", "TIMED_OUT", "RECOVERING"])),
                fields=["at"],
                name="workloads_event_recent",
            ),
        ),
        AddIndexOnline(
            model_name="workload", index=models.Index(fields=["state", "admitted"], name="workloads_state")
        ),
        AddIndexOnline(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["finished_at", "admitted"],
                name="workloads_finished",
            ),
        ),
        AddIndexOnline(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("worker_id__isnull", False)), fields=["worker_id"], name="workloads_held"
            ),
        ),
    ]
