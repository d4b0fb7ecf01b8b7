"""What the machine's PostgreSQL can do at most, by pgbench: a job claimed, done and noted by one statement.

No queue of that design can be faster with as many connections and as many rows in a transaction; those that are take
fewer steps for a job, or more jobs at once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from server import NoServer, Server, find_binaries

TABLES = """
CREATE TABLE job (id bigint PRIMARY KEY, is_done boolean NOT NULL DEFAULT FALSE, worker text, done_at timestamptz);
CREATE INDEX ON job (id) WHERE NOT is_done;
CREATE TABLE event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job bigint NOT NULL, at timestamptz NOT NULL);
"""
STATEMENT = """
WITH picked AS (SELECT id FROM job WHERE NOT is_done ORDER BY id LIMIT {rows} FOR UPDATE SKIP LOCKED),
done AS (UPDATE job SET is_done = TRUE, worker = 'pgbench', done_at = clock_timestamp() FROM picked
    WHERE job.id = picked.id RETURNING job.id)
INSERT INTO event (job, at) SELECT id, clock_timestamp() FROM done;
"""
KINDS = ((1, 1, 6_000), (1, 4, 3_000), (100, 1, 600), (100, 2, 400))
"""Rows a transaction, connections, transactions of each."""


def measure(server: Server, scale: float) -> list[dict[str, Any]]:
    """Return how many jobs a second each kind does; nothing where pgbench is not installed."""
    found: list[dict[str, Any]] = []
    pgbench = shutil.which("pgbench")
    try:
        pgbench = pgbench or str(find_binaries() / "pgbench")
    except NoServer:
        return found
    if not Path(pgbench).exists():
        return found
    for rows, clients, turns in KINDS:
        turns = max(100, int(turns * scale))
        dsn = server.create("bench_limit")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)
            connection.execute("INSERT INTO job SELECT generate_series(1, %s)", [rows * clients * turns])
            connection.execute("VACUUM (ANALYZE)")
        server.rest()
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(STATEMENT.format(rows=rows).replace("\n", " ").strip() + "\n")
            script.flush()
            command = [pgbench, "-n", "-M", "prepared", "-f", script.name, "-c", str(clients), "-t", str(turns), dsn]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        rate = re.search(r"tps = ([\d.]+)", done.stdout)
        assert rate, done.stdout
        found.append({"rows": rows, "clients": clients, "rate": round(rows * float(rate[1]), 1)})
    server.drop("bench_limit")
    return found
