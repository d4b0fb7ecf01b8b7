"""Fills a PostgreSQL database with work of every kind, as large as a site's after two busy months.

Run `python bench/fill.py --help`. It makes a database of its own, migrates it, and writes rows by SQL: it is the one
place that goes around the authority, and fit for measurements alone. `bench/admin_pages.py` measures on it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

ROOT = Path(__file__).resolve().parents[1]
STEP = 250_000
DAYS = 60
TABLES = ("admitted", "workload", "attempt", "event", "result", "dependency", "checkpoint")

TENANTS = ("acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "wonka", "tyrell", "cyberdyne")
APPLICATIONS = ("billing", "mail", "reports", "imports", "search", "media")
DEFINITIONS = ("sync", "render", "send", "charge", "export")
KINDS = ("upstream", "timeout", "worker_failure", "rate_limited", "validation", "disk", "quota", "network", "conflict")

# What a workload goes through before it first waits, at each attempt that is not its last, and at its end.
BEGIN = ("CREATED", "READY")
AGAIN = ("CLAIMED", "RUNNING", "FAILED", "READY")
ENDS = {
    "SUCCEEDED": ("CLAIMED", "RUNNING", "SUCCEEDED"),
    "DEAD_LETTER": ("CLAIMED", "RUNNING", "FAILED", "DEAD_LETTER"),
    "TIMED_OUT": ("CLAIMED", "RUNNING", "TIMED_OUT"),
    "CANCELLED": ("CANCELLED",),
    "CLAIMED": ("CLAIMED",),
    "RUNNING": ("CLAIMED", "RUNNING"),
    "CHECKPOINTED": ("CLAIMED", "RUNNING", "CHECKPOINTED"),
    "CANCELLATION_REQUESTED": ("CLAIMED", "RUNNING", "CANCELLATION_REQUESTED"),
}
WITHOUT_ATTEMPT = {"CANCELLED", "READY"}

PLAN = """
CREATE UNLOGGED TABLE fill AS
WITH numbered AS (
    SELECT n, n - {count} * 9 / 10 AS recent, least({lanes}, 1 + floor(power(random(), 2.5) * {lanes}))::bigint AS lane
    FROM generate_series(1, {count}) AS n
), sorted AS (
    SELECT *, CASE
        WHEN n > {count} - {held} * 25 AND n % 25 = 13 THEN CASE
            WHEN n % 100 = 13 THEN 'CLAIMED'
            WHEN n % 100 = 38 THEN 'CHECKPOINTED'
            WHEN n % 1000 = 63 THEN 'CANCELLATION_REQUESTED'
            ELSE 'RUNNING'
        END
        WHEN recent > 0 AND recent % greatest(1, {count} / 10 / {scheduled}) = 2 THEN 'scheduled'
        WHEN recent > 0 AND recent % greatest(1, {count} / 10 / {blocked}) = 4 THEN 'blocked'
        WHEN recent > 0 AND recent % 25 = 8 THEN 'READY'
        WHEN n % greatest(1, {count} * 93 / 100 / {dead}) = 1 THEN 'DEAD_LETTER'
        WHEN n % 100 = 50 THEN 'CANCELLED'
        WHEN n % 500 = 77 THEN 'TIMED_OUT'
        ELSE 'SUCCEEDED'
    END AS kind FROM numbered
)
SELECT n, lane, CASE WHEN kind IN ('scheduled', 'blocked') THEN 'READY' ELSE kind END AS state, kind,
    CASE kind
        WHEN 'DEAD_LETTER' THEN 3
        WHEN 'CANCELLED' THEN 0
        WHEN 'blocked' THEN 0
        WHEN 'scheduled' THEN (n % 20 = 0)::int
        WHEN 'READY' THEN (n % 20 = 0)::int
        ELSE 1 + (n % 20 = 0)::int
    END AS attempts,
    now - interval '{days} days' * (1 - n::float8 / {count}) AS created_at,
    least(now - interval '1 second', now - interval '{days} days' * (1 - n::float8 / {count})
        + interval '1 hour' * power(random(), 6)) AS finished_at,
    (ARRAY[{kinds}])[1 + floor(power(random(), 2) * {kind_count})::int] AS failure_kind
FROM sorted, (SELECT clock_timestamp() AS now) AS clock
"""

LOAD = {
    "admitted": """
INSERT INTO workloads_admitted (id, workload_id, tenant_id, application_id, requested_by, idempotency_key,
    contract_version, definition_id, definition_revision, environment, input, input_hash, trigger, capability_snapshot,
    connection_scopes, retry_policy, timeouts, not_before, created_at, ancestry_is_closed, lane_id)
SELECT n, 'workload_' || left(md5('w' || n), 24), tenant_id, application_id, 'user-' || n % 40, 'key-' || n, 2,
    definition_id, definition_revision, 'production',
    '{{"amount":' || n || ',"currency":"EUR","note":"' || repeat(md5('i' || n), 8) || '"}}',
    md5('h' || n) || md5('g' || n), '', capabilities, '["billing.read","mail.send"]',
    '{{"backoff":"EXPONENTIAL","initial_delay_ms":1000,"jitter":0.1,"max_attempts":3,"max_delay_ms":60000,'
    '"retry_on":["timeout","upstream","worker_failure"]}}',
    '{{"execution_ms":3600000,"overall_ms":604800000}}',
    CASE WHEN kind = 'scheduled' THEN created_at + interval '8 days' END, created_at, TRUE, lane
FROM fill JOIN workloads_lane AS l ON l.id = lane WHERE n BETWEEN {low} AND {high} ORDER BY n
""",
    "workload": """
INSERT INTO workloads_workload (admitted_id, version, state, priority, next_attempt_at, attempt_count, retry_count,
    release_count, uncounted_releases, operator_retries, fencing_token, last_failure, updated_at, finished_at,
    overall_from, claim_id, worker_id, claimed_at, last_heartbeat, expires_at, attempt_id, started_at, event_count,
    checkpoint_count, dependency_standing, due_at, queued_lane_id, waiting_lane_id)
SELECT n, length, f.state, n % 5, CASE WHEN f.state = 'READY' THEN next END, attempts, greatest(0, attempts - 1),
    0, 0, 0, attempts,
    CASE WHEN attempts > 1 OR (attempts = 1 AND f.state IN ('READY', 'TIMED_OUT')) THEN
        failure_kind || ': the far side said ' || left(repeat(md5('f' || n) || ' ', 40), 40 + (n % 1000)::int) END,
    coalesce(ended, created_at), ended, created_at,
    CASE WHEN held THEN md5('c' || n || attempts) END, CASE WHEN held THEN 'worker-' || n % 60 END,
    CASE WHEN held THEN begun END, CASE WHEN held THEN greatest(begun, clock_timestamp() - interval '5 seconds') END,
    CASE WHEN held THEN clock_timestamp() + interval '1 day' END,
    CASE WHEN held THEN md5('a' || n || attempts) END,
    CASE WHEN held AND f.state <> 'CLAIMED' THEN begun END,
    length, (f.state = 'CHECKPOINTED')::int, CASE kind WHEN 'blocked' THEN 'waiting' ELSE 'met' END,
    CASE WHEN held OR f.state = 'READY' THEN created_at + interval '7 days' END,
    CASE WHEN kind = 'READY' THEN lane END, CASE WHEN kind = 'scheduled' THEN lane END
FROM fill AS f JOIN fill_length USING (state, attempts), LATERAL (
    SELECT f.state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED', 'CANCELLATION_REQUESTED') AS held,
        CASE WHEN f.state IN ('SUCCEEDED', 'DEAD_LETTER', 'TIMED_OUT', 'CANCELLED') THEN finished_at END AS ended,
        clock_timestamp() - CASE WHEN n % 1000 < 100 THEN interval '3 hours' ELSE interval '1 second' * (n % 1800) END
            AS begun,
        CASE kind WHEN 'scheduled' THEN created_at + interval '8 days' ELSE created_at END AS next
) AS derived
WHERE n BETWEEN {low} AND {high} ORDER BY n
""",
    "attempt": """
INSERT INTO workloads_attempt (record, number, attempt_id, claim_id, worker_id, fencing_token, status, claimed_at,
    started_at, ended_at, ended_by, error, failure_kind, effect, outcome_state, outcome_decision)
SELECT n, number, md5('a' || n || number), md5('c' || n || number), 'worker-' || (n + number) % 60, number,
    CASE WHEN is_last THEN last_status ELSE 'FAILED' END, at, at, CASE WHEN is_over THEN at + interval '2 seconds' END,
    CASE WHEN NOT is_over THEN '' WHEN is_last AND state = 'TIMED_OUT' THEN 'clock' ELSE 'worker' END,
    CASE WHEN has_failed THEN left(repeat(md5('f' || n) || ' ', 10), 40 + (n % 200)::int) END,
    CASE WHEN has_failed THEN failure_kind END,
    CASE WHEN has_failed THEN 'none' END, CASE WHEN has_failed THEN CASE WHEN is_last THEN state ELSE 'READY' END END,
    CASE WHEN has_failed THEN CASE WHEN is_last THEN 'attempt_budget_exhausted' ELSE 'retry' END END
FROM fill, generate_series(1, attempts) AS number, LATERAL (
    SELECT number = attempts AND state <> 'READY' AS is_last, CASE state
        WHEN 'SUCCEEDED' THEN 'SUCCEEDED' WHEN 'DEAD_LETTER' THEN 'FAILED' WHEN 'TIMED_OUT' THEN 'TIMED_OUT'
        WHEN 'CLAIMED' THEN 'CLAIMED' ELSE 'RUNNING' END AS last_status,
        created_at + (finished_at - created_at) * number / (attempts + 1) AS at
) AS a, LATERAL (
    SELECT NOT is_last OR last_status IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT') AS is_over,
        NOT is_last OR last_status = 'FAILED' AS has_failed
) AS b
WHERE n BETWEEN {low} AND {high} ORDER BY n
""",
    "event": """
INSERT INTO workloads_event (record, sequence, from_state, to_state, at, actor, evidence)
SELECT n, sequence, from_state, to_state, created_at + (finished_at - created_at) * (sequence - 1) / length,
    CASE WHEN to_state IN ('CREATED', 'READY', 'DEAD_LETTER') THEN 'authority.admission' ELSE 'worker-' || n % 60 END,
    CASE WHEN to_state IN ('CREATED', 'READY') THEN '{{}}'
        ELSE '{{"attempt_id":"' || md5('a' || n || attempts) || '"}}' END
FROM fill JOIN fill_step USING (state, attempts) JOIN fill_length USING (state, attempts)
WHERE n BETWEEN {low} AND {high} ORDER BY n, sequence
""",
    "result": """
INSERT INTO workloads_result (record, result_key, result_id, attempt_id, produced_by, output, output_hash, artifacts,
    schema_version, claim_id, fencing_token, at)
SELECT n,
    (lpad(to_hex((extract(epoch FROM finished_at) * 1000)::bigint), 12, '0') || '7' || left(md5('r' || n), 19))::uuid,
    'result-' || n, md5('a' || n || attempts), 'worker-' || (n + attempts) % 60,
    '{{"sum":' || n || '}}', md5('o' || n) || md5('p' || n), '[]', 1, md5('c' || n || attempts), attempts, finished_at
FROM fill WHERE state = 'SUCCEEDED' AND n BETWEEN {low} AND {high} ORDER BY n
""",
    "dependency": """
INSERT INTO workloads_dependency (depends_on, required_state, standing, dependent_id)
SELECT 'workload_' || left(md5('w' || before), 24), 'SUCCEEDED', 'waiting', n
FROM (SELECT n, n - n % 10 + 3 AS before FROM fill WHERE kind = 'blocked' AND n BETWEEN {low} AND {high}) AS b
""",
    "checkpoint": """
INSERT INTO workloads_checkpoint (sequence, checkpoint_id, attempt_id, key, state, at, record)
SELECT 1, md5('k' || n), md5('a' || n || attempts), NULL, '{{"at":1}}', finished_at, n
FROM fill WHERE state = 'CHECKPOINTED' AND n BETWEEN {low} AND {high}
""",
}


class Filling:
    """One database that is being filled."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = make_conninfo(dsn, dbname=name)
        self.name = name
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self.started = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started:6.0f} s  {text}", file=sys.stderr, flush=True)

    def migrate(self) -> None:
        """The tables are the project's, as its migrations make them."""
        parts = conninfo_to_dict(self.dsn)
        where = f"{parts.get('host', '127.0.0.1')}:{parts.get('port', 5432)}"
        password = f":{parts['password']}" if parts.get("password") else ""
        os.environ["DATABASE_URL"] = f"postgres://{parts.get('user', 'postgres')}{password}@{where}/{self.name}"
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        sys.path.insert(0, str(ROOT))
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)

    def load(self, options: argparse.Namespace) -> None:
        """Each table holds its rows; its indexes are made after them."""
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.connection.execute(
            "SET synchronous_commit = off; SET maintenance_work_mem = '1GB'; SET work_mem = '256MB'"
        )
        self.connection.execute("SELECT setseed(0.5)")
        lanes = self.lanes()
        self.say(f"{lanes} lanes")
        self.connection.execute(
            PLAN.format(
                count=options.workloads,
                lanes=lanes,
                held=options.held,
                scheduled=options.scheduled,
                blocked=options.blocked,
                dead=options.dead_letters,
                days=DAYS,
                kinds=", ".join(f"'{kind}'" for kind in KINDS),
                kind_count=len(KINDS),
            )
        )
        self.paths()
        self.connection.execute("CREATE INDEX ON fill (n); ANALYZE fill")
        self.say("the plan is made")
        for table in TABLES:
            again = list(self.without_indexes(f"workloads_{table}"))
            for low in range(1, options.workloads + 1, STEP):
                high = min(low + STEP - 1, options.workloads)
                self.connection.execute(LOAD[table].format(low=low, high=high))
            self.say(f"{table}: rows")
            for statement in again:
                self.connection.execute(statement)
            self.say(f"{table}: {len(again)} indexes")
            if table not in ("workload", "result"):
                last = f"SELECT max(id) FROM workloads_{table}"
                self.connection.execute(f"SELECT setval(pg_get_serial_sequence('workloads_{table}', 'id'), ({last}))")
        self.connection.execute("DROP TABLE fill, fill_step, fill_length")
        # The visibility map is what an autovacuum would have made of it.
        self.connection.execute("VACUUM (ANALYZE)")
        self.say("vacuumed")

    def lanes(self) -> int:
        """Each large tenant has each application's definitions; a hundred small ones have one each."""
        rows = [
            (tenant, application, f"{application}.{definition}", "1")
            for tenant in TENANTS
            for application in APPLICATIONS
            for definition in DEFINITIONS
        ]
        rows += [(f"small-{number}", "mail", "mail.send", "1") for number in range(100)]
        with self.connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO workloads_lane (lane_key, tenant_id, application_id, definition_id, definition_revision, "
                "capabilities) VALUES (md5(%s)::uuid, %s, %s, %s, %s, '[\"net\"]')",
                [("/".join(row), *row) for row in rows],
            )
        return len(rows)

    def paths(self) -> None:
        """Note which events each state has behind it, after so many attempts."""
        self.connection.execute(
            "CREATE TABLE fill_step (state text, attempts int, sequence int, from_state text, to_state text)"
        )
        steps = []
        for state in (*ENDS, "READY"):
            for attempts in range(4):
                if attempts == 0 and state not in WITHOUT_ATTEMPT:
                    continue
                before = attempts if state in WITHOUT_ATTEMPT else attempts - 1
                path = (*BEGIN, *AGAIN * before, *ENDS.get(state, ()))
                steps += [
                    (state, attempts, number, path[number - 2] if number > 1 else "", to)
                    for number, to in enumerate(path, 1)
                ]
        with self.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO fill_step VALUES (%s, %s, %s, %s, %s)", steps)
        self.connection.execute(
            "CREATE TABLE fill_length AS SELECT state, attempts, max(sequence) AS length FROM fill_step GROUP BY 1, 2;"
            "ANALYZE fill_step; ANALYZE fill_length"
        )

    def without_indexes(self, table: str) -> Iterator[str]:
        """Drop the table's indexes, but for its key's; yield what makes each again."""
        found = self.connection.execute(
            "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), c.conname, "
            "pg_get_constraintdef(c.oid) FROM pg_index AS i "
            "LEFT JOIN pg_constraint AS c ON c.conindid = i.indexrelid AND c.contype = 'u' "
            "WHERE i.indrelid = %s::regclass AND NOT i.indisprimary",
            [table],
        ).fetchall()
        for index, definition, constraint, clause in found:
            if constraint:
                self.connection.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}"')
                yield f'ALTER TABLE {table} ADD CONSTRAINT "{constraint}" {clause}'
            else:
                self.connection.execute(f"DROP INDEX {index}")
                yield definition

    def tell(self) -> None:
        """Print what there is now."""
        print("| what | how many |\n|---|---:|")
        for table in TABLES:
            count = self.connection.execute(f"SELECT count(*) FROM workloads_{table}").fetchone()[0]
            print(f"| {table} | {count:,} |")
        query = "SELECT state, dependency_standing, count(*) FROM workloads_workload GROUP BY 1, 2 ORDER BY 3 DESC"
        for state, standing, count in self.connection.execute(query):
            print(f"| {state}{'' if standing == 'met' else f' ({standing})'} | {count:,} |")
        size = self.connection.execute("SELECT pg_size_pretty(pg_database_size(current_database()))").fetchone()[0]
        print(f"| size | {size} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", default="postgres://postgres@127.0.0.1:5432/postgres", help="a superuser's address")
    parser.add_argument("--name", default="workloads_fill", help="the database to make; one of that name is dropped")
    parser.add_argument("--workloads", type=int, default=5_000_000)
    parser.add_argument("--dead-letters", type=int, default=100_000)
    parser.add_argument("--scheduled", type=int, default=100_000)
    parser.add_argument("--blocked", type=int, default=50_000)
    parser.add_argument("--held", type=int, default=2_000)
    options = parser.parse_args()
    filling = Filling(options.dsn, options.name)
    filling.migrate()
    filling.load(options)
    filling.tell()


if __name__ == "__main__":
    main()
