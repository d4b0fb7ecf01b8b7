"""What each database needs besides tables.

PostgreSQL: triggers that refuse to change an event, or to delete one while its workload exists; room in the pages of what
is updated, so that a heartbeat stays on its page and touches no index; a vacuum that comes after so many dead rows, not
after a share of what is stored, and always cleans the indexes (docs/schema.md). MariaDB: a collation that compares byte
for byte, trailing spaces included, in every text column of the app.
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

STORAGE = [
    "ALTER TABLE workloads_workload SET (fillfactor = 70, vacuum_index_cleanup = on, "
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
    "ALTER TABLE workloads_attempt SET (fillfactor = 85)",
]

NO_STORAGE = [
    "ALTER TABLE workloads_workload RESET (fillfactor, vacuum_index_cleanup, "
    "autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)",
    "ALTER TABLE workloads_attempt RESET (fillfactor)",
]

NOT_APPEND_ONLY = """
DROP TRIGGER IF EXISTS workloads_event_is_kept ON workloads_event;
DROP FUNCTION IF EXISTS workloads_event_is_kept();
"""


def forwards(apps, schema_editor):
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        for statement in [APPEND_ONLY, *STORAGE]:
            schema_editor.execute(statement)
    elif vendor == "mysql":
        for table in TABLES:
            schema_editor.execute(
                f"ALTER TABLE workloads_{table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
            )


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for statement in [NOT_APPEND_ONLY, *NO_STORAGE]:
            schema_editor.execute(statement)


class Migration(migrations.Migration):
    # MariaDB commits at each of these statements; each may be run again.
    atomic = False

    dependencies = [("workloads", "0001_initial")]

    operations = [migrations.RunPython(forwards, backwards)]
