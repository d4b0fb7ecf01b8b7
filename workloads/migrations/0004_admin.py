"""What the admin needs: rights of their own, workers that were seen, and decisions on many workloads at once."""

import workloads.fields
from django.db import migrations, models

TABLES = ["bulkaction", "bulkitem", "seenworker"]


def compare_byte_for_byte(apps, schema_editor):
    if schema_editor.connection.vendor == "mysql":
        for table in TABLES:
            schema_editor.execute(
                f"ALTER TABLE workloads_{table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
            )


class Migration(migrations.Migration):
    dependencies = [
        ("workloads", "0003_access"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="workload",
            options={
                "permissions": [
                    ("rearm_workload", "Can re-arm a workload"),
                    ("cancel_workload", "Can cancel a workload"),
                    ("timeout_workload", "Can time out a workload"),
                    ("view_payload", "Can read inputs, outputs and checkpoints"),
                ],
                "verbose_name": "workload",
                "verbose_name_plural": "workloads",
            },
        ),
        migrations.CreateModel(
            name="BulkAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "verb",
                    models.CharField(
                        choices=[
                            ("rearm", "re-arm"),
                            ("cancel", "cancel"),
                            ("force_cancel", "cancel by force"),
                            ("time_out", "time out"),
                        ],
                        max_length=16,
                        verbose_name="action",
                    ),
                ),
                (
                    "stage",
                    models.CharField(
                        choices=[
                            ("selecting", "selecting"),
                            ("asking", "to be confirmed"),
                            ("running", "under way"),
                            ("done", "done"),
                            ("stopped", "stopped"),
                        ],
                        max_length=16,
                        verbose_name="stage",
                    ),
                ),
                ("actor", models.CharField(max_length=200, verbose_name="begun by")),
                ("confirmed_by", models.CharField(blank=True, max_length=200, verbose_name="confirmed by")),
                ("stopped_by", models.CharField(blank=True, max_length=200, verbose_name="stopped by")),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                ("restart_overall", models.BooleanField(default=False, verbose_name="overall deadline starts anew")),
                (
                    "criteria",
                    models.TextField(blank=True, help_text="As in the address of the list.", verbose_name="filter"),
                ),
                (
                    "states",
                    workloads.fields.JSONTextField(
                        default=dict, help_text="How many were selected in each state.", verbose_name="states"
                    ),
                ),
                ("upto", models.BigIntegerField(help_text="The last key that may be selected.", verbose_name="up to")),
                ("selected_upto", models.BigIntegerField(default=0, verbose_name="selected up to")),
                ("done_upto", models.BigIntegerField(default=0, verbose_name="done up to")),
                ("selected_count", models.PositiveIntegerField(default=0, verbose_name="selected")),
                ("done_count", models.PositiveIntegerField(default=0, verbose_name="done")),
                ("refused_count", models.PositiveIntegerField(default=0, verbose_name="refused")),
                (
                    "refusals",
                    workloads.fields.JSONTextField(
                        default=dict, help_text="How many were refused with each code.", verbose_name="refusals"
                    ),
                ),
                ("items_are_kept", models.BooleanField(default=True, verbose_name="items are kept")),
                ("created_at", models.DateTimeField(verbose_name="begun")),
                ("updated_at", models.DateTimeField(verbose_name="last went on")),
            ],
            options={
                "verbose_name": "bulk action",
                "verbose_name_plural": "bulk actions",
                "default_permissions": (),
                "indexes": [models.Index(fields=["items_are_kept", "updated_at"], name="workloads_bulk_kept")],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("action_id", models.BigIntegerField(verbose_name="bulk action")),
                ("record", models.BigIntegerField(verbose_name="workload")),
                ("version", models.PositiveBigIntegerField(verbose_name="version")),
                ("state", models.CharField(max_length=24, verbose_name="state")),
                ("code", models.CharField(max_length=64, null=True, verbose_name="refusal")),
                ("message", models.TextField(blank=True, verbose_name="message")),
            ],
            options={
                "verbose_name": "item of a bulk action",
                "verbose_name_plural": "items of bulk actions",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("action_id", "record"), name="workloads_bulk_item_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="SeenWorker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "worker_key",
                    models.UUIDField(
                        help_text="A digest of place and worker id.", unique=True, verbose_name="worker key"
                    ),
                ),
                ("worker_id", models.CharField(max_length=200, verbose_name="worker")),
                (
                    "incarnation",
                    models.CharField(
                        blank=True,
                        help_text="What tells a worker from one before it.",
                        max_length=200,
                        verbose_name="incarnation",
                    ),
                ),
                ("is_remote", models.BooleanField(default=False, verbose_name="over HTTP")),
                (
                    "tenant_id",
                    models.CharField(
                        blank=True,
                        help_text="Empty: it claims work of all.",
                        max_length=200,
                        null=True,
                        verbose_name="tenant",
                    ),
                ),
                (
                    "application_id",
                    models.CharField(
                        blank=True,
                        help_text="Empty: it claims work of all.",
                        max_length=200,
                        null=True,
                        verbose_name="application",
                    ),
                ),
                ("capabilities", workloads.fields.StringSetField(verbose_name="capabilities")),
                (
                    "definitions",
                    workloads.fields.StringSetField(
                        help_text="Empty: it claims work of all.", null=True, verbose_name="definitions"
                    ),
                ),
                ("first_seen_at", models.DateTimeField(verbose_name="first seen")),
                ("seen_at", models.DateTimeField(verbose_name="last seen")),
                ("asked_at", models.DateTimeField(blank=True, null=True, verbose_name="last asked for work")),
                ("claimed_at", models.DateTimeField(blank=True, null=True, verbose_name="last claim")),
                ("heartbeat_at", models.DateTimeField(blank=True, null=True, verbose_name="last heartbeat")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["seen_at"], name="workloads_seen"),
                    models.Index(fields=["worker_id"], name="workloads_seen_worker"),
                ],
            },
        ),
        # MariaDB changes no table within a transaction.
        migrations.RunPython(compare_byte_for_byte, migrations.RunPython.noop, atomic=False),
    ]
