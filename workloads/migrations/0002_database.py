"""What each database needs besides tables.

PostgreSQL: triggers that refuse to change an event, or to delete one while its workload exists. MariaDB: a collation
that compares byte for byte, trailing spaces included, in every text column of the app.
"""

from django.db import migrations

TABLES = [
    "admitted",
    "applicationlock",
    "attempt",
    "checkpoint",
    "claimrequest",
    "dependency",
    "event",
    "lane",
    "passrun",
    "result",
    "tombstone",
    "workload",
]

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION workloads_event_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        RAISE EXCEPTION 'workloads: an event is never changed' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF EXISTS (SELECT 1 FROM workloads_workload WHERE admitted_id = OLD.record) THEN
        RAISE EXCEPTION 'workloads: an event is not deleted while its workload exists'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END
$$;
DROP TRIGGER IF EXISTS workloads_event_is_kept ON workloads_event;
CREATE TRIGGER workloads_event_is_kept BEFORE UPDATE OR DELETE ON workloads_event
    FOR EACH ROW EXECUTE FUNCTION workloads_event_is_kept();
"""

NOT_APPEND_ONLY = """
DROP TRIGGER IF EXISTS workloads_event_is_kept ON workloads_event;
DROP FUNCTION IF EXISTS workloads_event_is_kept();
"""


def forwards(apps, schema_editor):
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        schema_editor.execute(APPEND_ONLY)
    elif vendor == "mysql":
        for table in TABLES:
            schema_editor.execute(
                f"ALTER TABLE workloads_{table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
            )


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(NOT_APPEND_ONLY)


class Migration(migrations.Migration):
    # MariaDB commits at each of these statements; each may be run again.
    atomic = False

    dependencies = [("workloads", "0001_initial")]

    operations = [migrations.RunPython(forwards, backwards)]
