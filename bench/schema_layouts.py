"""The two cuts of the workload tables that bench/schema.py compares, and an authority's statements to each."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Any

import psycopg

LANE = 1
POLICIES = json.dumps({
    "retry_policy": {"max_attempts": 3, "backoff": "EXPONENTIAL", "initial_delay_ms": 1000, "max_delay_ms": 60000,
                     "jitter": 0.0, "retry_on": ["timeout", "transient_connection", "worker_failure"]},
    "timeouts": {"execution_ms": 600000},
})  # fmt: skip

# Each column: its type, and its value as SQL over a source row v (id, n, workload_id, input, at).
COLD = {
    "workload_id": ("text NOT NULL", "v.workload_id"), "tenant_id": ("text NOT NULL", "'tenant-' || mod(v.n, 100)"),
    "application_id": ("text NOT NULL", "'application-' || mod(v.n / 100, 10)"),
    "requested_by": ("text NOT NULL", "'importer@example'"),
    "idempotency_key": ("text NOT NULL", "'invoice/2026/' || v.n"), "contract_version": ("int NOT NULL", "2"),
    "definition_id": ("text NOT NULL", "'files.checksum'"), "definition_revision": ("text NOT NULL", "'1'"),
    "environment": ("text NOT NULL", "'production'"), "input": ("text NOT NULL", "v.input"),
    "input_hash": ("text NOT NULL", "md5(v.input) || md5(v.workload_id)"), "trigger": ("text NOT NULL", "'upload'"),
    "session_id": ("text", "NULL"), "capability_snapshot": ("text NOT NULL", "'[\"files:read\",\"net:out\"]'"),
    "connection_scopes": ("text NOT NULL", "'[\"secret://store\"]'"), "grant_text": ("text", "NULL"),
    "policies": ("text NOT NULL", f"'{POLICIES}'"), "not_before": ("timestamptz", "NULL"),
    "lane_id": ("bigint NOT NULL", str(LANE)), "created_at": ("timestamptz NOT NULL", "v.at"),
}  # fmt: skip
HOT_TYPES = {
    "version": "int NOT NULL", "state": "text NOT NULL", "priority": "int NOT NULL",
    "next_attempt_at": "timestamptz NOT NULL", "attempt_count": "int NOT NULL", "retry_count": "int NOT NULL",
    "release_count": "int NOT NULL", "uncounted_releases": "int NOT NULL", "operator_retries": "int NOT NULL",
    "fencing_token": "bigint NOT NULL", "last_failure": "text NOT NULL", "updated_at": "timestamptz NOT NULL",
    "finished_at": "timestamptz", "overall_from": "timestamptz NOT NULL", "claim_id": "text", "worker_id": "text",
    "claimed_at": "timestamptz", "last_heartbeat": "timestamptz", "expires_at": "timestamptz", "attempt_id": "text",
    "started_at": "timestamptz", "event_count": "int NOT NULL", "checkpoint_count": "int NOT NULL",
    "due_at": "timestamptz", "blocked": "boolean NOT NULL", "queued_lane_id": "bigint", "waiting_lane_id": "bigint",
}  # fmt: skip
READY = {
    "version": "1", "state": "'READY'", "priority": "0", "next_attempt_at": "v.at", "last_failure": "''",
    "updated_at": "v.at", "overall_from": "v.at", "event_count": "2", "blocked": "false",
    "queued_lane_id": str(LANE),
    **dict.fromkeys(("attempt_count", "retry_count", "release_count", "uncounted_releases", "operator_retries",
                     "fencing_token", "checkpoint_count"), "0"),
}  # fmt: skip
DONE = READY | {"version": "4", "state": "'SUCCEEDED'", "attempt_count": "1", "fencing_token": "1",
                "finished_at": "v.at", "event_count": "5", "queued_lane_id": "NULL"}  # fmt: skip
CLAIMED = READY | {"state": "'RUNNING'", "claim_id": "md5('c' || v.n)", "worker_id": "'worker-9'",
                   "claimed_at": "v.at", "queued_lane_id": "NULL"}  # fmt: skip
HISTORY = """
CREATE TABLE event (id bigint PRIMARY KEY DEFAULT nextval('ids'), workload bigint NOT NULL, sequence int NOT NULL,
  from_state text NOT NULL, to_state text NOT NULL, at timestamptz NOT NULL, actor text NOT NULL,
  evidence text NOT NULL);
CREATE TABLE attempt (id bigint PRIMARY KEY DEFAULT nextval('ids'), workload bigint NOT NULL, number int NOT NULL,
  attempt_id text NOT NULL, claim_id text NOT NULL, worker_id text NOT NULL, fencing_token bigint NOT NULL,
  status text NOT NULL, claimed_at timestamptz NOT NULL, started_at timestamptz, ended_at timestamptz,
  error text NOT NULL DEFAULT '', failure_kind text, effect text, outcome_state text, outcome_decision text);
CREATE TABLE checkpoint (id bigint PRIMARY KEY DEFAULT nextval('ids'), workload bigint NOT NULL, sequence int NOT NULL,
  checkpoint_id text NOT NULL, attempt_id text NOT NULL, key text, state text NOT NULL, at timestamptz NOT NULL);
CREATE TABLE result (workload bigint NOT NULL, result_key uuid NOT NULL, result_id text NOT NULL,
  attempt_id text NOT NULL, produced_by text NOT NULL, output text NOT NULL, output_hash text NOT NULL,
  artifacts text NOT NULL, schema_version int NOT NULL, provenance text NOT NULL, at timestamptz NOT NULL);
"""
HISTORY_INDEXES = """
CREATE UNIQUE INDEX event_sequence ON event (workload, sequence);
CREATE UNIQUE INDEX attempt_number ON attempt (workload, number);
CREATE UNIQUE INDEX checkpoint_sequence ON checkpoint (workload, sequence);
ALTER TABLE result ADD PRIMARY KEY (workload);
CREATE UNIQUE INDEX result_key ON result (result_key);
"""
HISTORY_LOAD = """
INSERT INTO event (workload, sequence, from_state, to_state, at, actor, evidence)
  SELECT g, s, 'CLAIMED', 'RUNNING', '2026-01-01', 'worker-1', '{"attempt_id":"' || md5(g::text) || '"}'
  FROM generate_series(%(low)s::int, %(high)s::int) g, generate_series(1, 5) s;
INSERT INTO attempt (workload, number, attempt_id, claim_id, worker_id, fencing_token, status, claimed_at)
  SELECT g, 1, md5('a' || g), md5('c' || g), 'worker-1', 1, 'SUCCEEDED', '2026-01-01'
  FROM generate_series(%(low)s::int, %(high)s::int) g;
INSERT INTO result SELECT g, md5('r' || g)::uuid, 'result-' || g, md5('a' || g), 'worker-1', '{"sha256":"' ||
  md5(g::text) || '"}', md5('o' || g) || md5(g::text), '[]', 1, '{}', '2026-01-01'
  FROM generate_series(%(low)s::int, %(high)s::int) g;
"""


@dataclass(frozen=True)
class Layout:
    """One cut of the tables: `one` wide table, or a cold and a hot one; and the fillfactor of the changing table."""

    name: str
    one: bool
    fillfactor: int

    @property
    def key(self) -> str:
        return "id" if self.one else "admitted_id"

    @property
    def source(self) -> str:
        """The FROM clause in which `a` is what was admitted and `w` what changes."""
        return "workload w" if self.one else "admitted a JOIN workload w ON w.admitted_id = a.id"

    @property
    def cold(self) -> str:
        return "w" if self.one else "a"

    def create(self) -> str:
        cold = ", ".join(f"{name} {kind}" for name, (kind, _) in COLD.items())
        hot = ", ".join(f"{name} {kind}" for name, kind in HOT_TYPES.items())
        options = f"WITH (fillfactor = {self.fillfactor}, autovacuum_enabled = false)"
        if self.one:
            return f"CREATE TABLE workload (id bigint NOT NULL, {cold}, {hot}) {options};"
        return (f"CREATE TABLE admitted (id bigint NOT NULL, {cold}) WITH (autovacuum_enabled = false);"
                f"CREATE TABLE workload (admitted_id bigint NOT NULL, {hot}) {options};")  # fmt: skip

    def index(self) -> str:
        cold = "workload" if self.one else "admitted"
        extra = "" if self.one else "ALTER TABLE admitted ADD PRIMARY KEY (id);"
        return f"""{extra} ALTER TABLE workload ADD PRIMARY KEY ({self.key});
            CREATE UNIQUE INDEX workload_id_unique ON {cold} (workload_id);
            CREATE INDEX listing ON {cold} (tenant_id, application_id, id);
            CREATE INDEX claim ON workload (queued_lane_id, priority DESC, next_attempt_at, {self.key})
              WHERE queued_lane_id IS NOT NULL;
            CREATE INDEX wait ON workload (waiting_lane_id, next_attempt_at) WHERE waiting_lane_id IS NOT NULL;
            CREATE INDEX due ON workload (due_at) WHERE due_at IS NOT NULL;"""

    def inserts(self, source: str, hot: dict[str, str], key: str = "v.id") -> list[str]:
        """The statements that put the rows of `source` into every table of this layout."""
        cold = {name: value for name, (_, value) in COLD.items()}
        if self.one:
            parts = [("workload", {"id": key} | cold | hot)]
        else:
            parts = [("admitted", {"id": key} | cold), ("workload", {"admitted_id": "v.id"} | hot)]
        return [f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {source}"
                for table, columns in parts]  # fmt: skip

    def locked(self, condition: str, order: str, tail: str = "") -> str:
        """The statement that locks the rows and only then reads the clock."""
        names = [f"w.{self.key} AS id", f"{self.cold}.workload_id", f"{self.cold}.policies"]
        read = ", ".join(names + [f"w.{name}" for name in HOT_TYPES])
        skip = " SKIP LOCKED" if tail else ""
        return (f"WITH l AS MATERIALIZED (SELECT {read} FROM {self.source} WHERE {condition}"
                f" ORDER BY {order} {tail} FOR UPDATE OF w{skip})"
                " SELECT l.*, clock_timestamp() AS clock FROM l")  # fmt: skip

    @property
    def claimable(self) -> str:
        order = f"w.priority DESC, w.next_attempt_at, w.{self.key}"
        return self.locked("w.queued_lane_id = %s::bigint", order, "LIMIT %s::int")

    @property
    def named(self) -> str:
        return self.locked(f"{self.cold}.workload_id = ANY(%s::text[])", f"w.{self.key}")


LAYOUTS = {
    f"{letter}{fill}": Layout(f"{letter}{fill}", letter == "A", fill) for letter in "AB" for fill in (100, 80, 70, 50)
}


def make_source(low: int, high: int, *, salt: str = "w", at: str = "timestamptz '2026-01-01'") -> str:
    return (f"(SELECT g AS id, g AS n, 'workload_' || substr(md5('{salt}' || g), 1, 24) AS workload_id, "
            f"'{{\"path\":\"' || repeat(md5(g::text), 12) || '\"}}' AS input, {at} + g * interval '1 ms' AS at "
            f"FROM generate_series({low}, {high}) g) v")  # fmt: skip


class Authority:
    """The statements that an authority sends, each verb one transaction over a list; counts them."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]], layout: Layout) -> None:
        self.connection, self.layout, self.statements, self.commits = connection, layout, 0, 0
        connection.execute(f"SET search_path = {layout.name.lower()}, history")

    def send(self, query: str, *values: Any) -> psycopg.Cursor[dict[str, Any]]:
        self.statements += 1
        return self.connection.execute(query, values)

    def change(self, rows: list[dict[str, Any]], assignments: str, **columns: tuple[str, list[Any]]) -> None:
        """The rows are updated where their version is still the one that was read, or all is refused."""
        names = ", ".join(["id", "version", *columns])
        arrays = ", ".join(["%s::bigint[]", "%s::int[]", *(f"%s::{kind}[]" for kind, _ in columns.values())])
        changed = self.send(
            f"UPDATE workload w SET version = w.version + 1, {assignments} FROM unnest({arrays}) v({names})"
            f" WHERE w.{self.layout.key} = v.id AND w.version = v.version",
            [row["id"] for row in rows], [row["version"] for row in rows], *(values for _, values in columns.values()),
        )  # fmt: skip
        assert changed.rowcount == len(rows), "the version had moved"

    def add_events(self, events: list[tuple[Any, ...]]) -> None:
        self.send("INSERT INTO event (workload, sequence, from_state, to_state, at, actor, evidence) SELECT * FROM"
                  " unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::timestamptz[], %s::text[], %s::text[])",
                  *map(list, zip(*events, strict=True)))  # fmt: skip

    def admit(self, numbers: list[int]) -> list[str]:
        names = ["workload_" + hashlib.sha256(uuid.uuid4().bytes).hexdigest()[:24] for _ in numbers]
        inputs = ['{"path":"' + uuid.uuid4().hex * 12 + '"}' for _ in numbers]
        source = ("(SELECT n, workload_id, input, clock_timestamp() AS at FROM"
                  " unnest(%s::bigint[], %s::text[], %s::text[]) u(n, workload_id, input)) v")  # fmt: skip
        first, *rest = self.layout.inserts(source, READY, key="nextval('ids')")
        tail = " ON CONFLICT (workload_id) DO NOTHING RETURNING id, created_at"
        rows = self.send(first + tail, numbers, names, inputs).fetchall()
        for _ in rest:
            query = self.layout.inserts("unnest(%s::bigint[], %s::timestamptz[]) v(id, at)", READY)[1]
            self.send(query, [row["id"] for row in rows], [row["created_at"] for row in rows])
        steps = ((1, "", "CREATED"), (2, "CREATED", "READY"))
        self.add_events(
            [(row["id"], *step, row["created_at"], "importer@example", "{}") for row in rows for step in steps]
        )
        return names

    def claim(self, limit: int) -> list[str]:
        rows = self.send(self.layout.claimable, LANE, limit).fetchall()
        assert len(rows) == limit, "less was claimable than asked for"
        ids, at = [row["id"] for row in rows], rows[0]["clock"]
        claims, attempts = [[uuid.uuid4().hex for _ in rows] for _ in range(2)]
        clocks = [at] * len(rows)
        self.change(rows, "state = 'RUNNING', attempt_count = attempt_count + 1, fencing_token = fencing_token + 1,"
                    " updated_at = v.at, claim_id = v.claim_id, worker_id = 'worker-1', claimed_at = v.at,"
                    " last_heartbeat = v.at, expires_at = v.at + interval '60 s', due_at = v.at + interval '60 s',"
                    " attempt_id = v.attempt_id, started_at = v.at, event_count = event_count + 2,"
                    " queued_lane_id = NULL",
                    at=("timestamptz", clocks), claim_id=("text", claims), attempt_id=("text", attempts))  # fmt: skip
        self.send("INSERT INTO attempt (workload, number, attempt_id, claim_id, worker_id, fencing_token, status,"
                  " claimed_at, started_at) SELECT v.id, 1, v.attempt, v.claim, 'worker-1', 1, 'RUNNING', v.at, v.at"
                  " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::timestamptz[]) v(id, attempt, claim, at)",
                  ids, attempts, claims, clocks)  # fmt: skip
        events: list[tuple[Any, ...]] = []
        for key, claim, attempt in zip(ids, claims, attempts, strict=True):
            evidence = {"claim_id": claim, "worker_id": "worker-1", "attempt_id": attempt, "fencing_token": "1",
                        "expires_at": at.isoformat()}  # fmt: skip
            events.append((key, 3, "READY", "CLAIMED", at, "worker-1", json.dumps(evidence)))
            events.append((key, 4, "CLAIMED", "RUNNING", at, "worker-1", json.dumps({"attempt_id": attempt})))
        self.add_events(events)
        return [row["workload_id"] for row in rows]

    def heartbeat(self, names: list[str]) -> None:
        rows = self.send(self.layout.named, names).fetchall()
        self.change(rows, "last_heartbeat = v.at, updated_at = v.at, expires_at = v.at + interval '60 s'",
                    at=("timestamptz", [row["clock"] for row in rows]))  # fmt: skip

    def checkpoint(self, names: list[str]) -> None:
        rows = self.send(self.layout.named, names).fetchall()
        at = [row["clock"] for row in rows]
        self.change(rows, "state = 'CHECKPOINTED', updated_at = v.at, event_count = event_count + 1,"
                    " checkpoint_count = checkpoint_count + 1", at=("timestamptz", at))  # fmt: skip
        marks = [uuid.uuid4().hex for _ in rows]
        self.send("INSERT INTO checkpoint (workload, sequence, checkpoint_id, attempt_id, state, at)"
                  " SELECT v.id, 1, v.mark, v.attempt, '{\"bytes_done\":1048576}', v.at FROM"
                  " unnest(%s::bigint[], %s::text[], %s::text[], %s::timestamptz[]) v(id, mark, attempt, at)",
                  [row["id"] for row in rows], marks, [row["attempt_id"] for row in rows], at)  # fmt: skip
        events: list[tuple[Any, ...]] = []
        for row, mark in zip(rows, marks, strict=True):
            evidence = json.dumps({"attempt_id": row["attempt_id"], "checkpoint_id": mark})
            events.append((row["id"], 5, "RUNNING", "CHECKPOINTED", row["clock"], "worker-1", evidence))
        self.add_events(events)

    def complete(self, names: list[str]) -> None:
        keys = [uuid.uuid4() for _ in names]
        self.send("SELECT workload, result_key, output_hash FROM result WHERE result_key = ANY(%s::uuid[])", keys)
        rows = self.send(self.layout.named, names).fetchall()
        ids, at = [row["id"] for row in rows], [row["clock"] for row in rows]
        self.change(rows, "state = 'SUCCEEDED', updated_at = v.at, finished_at = v.at, event_count = event_count + 1,"
                    " claim_id = NULL, worker_id = NULL, claimed_at = NULL, last_heartbeat = NULL, expires_at = NULL,"
                    " due_at = NULL", at=("timestamptz", at))  # fmt: skip
        self.send("UPDATE attempt a SET status = 'SUCCEEDED', ended_at = v.at FROM"
                  " unnest(%s::bigint[], %s::timestamptz[]) v(id, at) WHERE a.workload = v.id AND a.number = 1",
                  ids, at)  # fmt: skip
        self.send("INSERT INTO result SELECT v.id, v.key, v.key::text, v.attempt, 'worker-1', v.output, v.hash, '[]',"
                  " 1, v.provenance, v.at FROM unnest(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::text[],"
                  " %s::text[], %s::timestamptz[]) v(id, key, attempt, output, hash, provenance, at)",
                  ids, keys, [row["attempt_id"] for row in rows], [f'{{"sha256":"{key.hex * 2}"}}' for key in keys],
                  [key.hex * 2 for key in keys],
                  [json.dumps({"claim_id": row["claim_id"], "fencing_token": 1}) for row in rows], at)  # fmt: skip
        events: list[tuple[Any, ...]] = []
        for row, key in zip(rows, keys, strict=True):
            evidence = json.dumps({"attempt_id": row["attempt_id"], "result_id": str(key)})
            events.append((row["id"], 6, "CHECKPOINTED", "SUCCEEDED", row["clock"], "worker-1", evidence))
        self.add_events(events)
