"""What each cut of the workload tables costs on PostgreSQL: WAL, statements, HOT updates, sizes, plans.

Run `python bench/schema.py --help`. It creates the database `workloads_bench_schema` on the given server, and drops it
at the end. It needs PostgreSQL 15 or later, a superuser and the contrib extension pg_walinspect, which says which table
and index each WAL record belongs to. Findings: docs/schema.md.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import re
import statistics
import sys
import time
from collections import Counter
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from schema_layouts import (
    CLAIMED,
    DONE,
    HISTORY,
    HISTORY_INDEXES,
    HISTORY_LOAD,
    LANE,
    LAYOUTS,
    READY,
    Authority,
    Layout,
    make_source,
)

DATABASE = "workloads_bench_schema"
EXTRA = 100_000
SETTINGS = ("server_version", "shared_buffers", "full_page_writes", "fsync", "synchronous_commit", "wal_compression")
READ_LSN = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS lsn"


class Bench:
    """One database under measurement, and the connection that measures."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(make_conninfo(dsn, dbname=DATABASE), autocommit=True, row_factory=dict_row)
        self.started = time.monotonic()

    def ask(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []

    def say(self, text: str) -> None:
        print(f"\r\033[K{time.monotonic() - self.started:6.0f} s  {text}", end="", file=sys.stderr, flush=True)

    def load(self, layouts: list[Layout], rows: int) -> None:
        """Every table holds `rows` finished workloads and their history; indexes are built after the rows."""
        self.ask("CREATE EXTENSION pg_walinspect; CREATE SCHEMA history; SET synchronous_commit = off")
        self.ask("SET search_path = history; CREATE SEQUENCE ids; " + HISTORY)
        step = 50_000
        for low in range(1, rows + 1, step):
            self.say(f"history: {low - 1:,} of {rows:,} workloads")
            span = {"low": low, "high": min(low + step - 1, rows)}
            for statement in filter(str.strip, HISTORY_LOAD.split(";")):
                self.connection.execute(statement, span)
        self.ask(HISTORY_INDEXES)
        for layout in layouts:
            self.ask(
                f"CREATE SCHEMA {layout.name}; SET search_path = {layout.name.lower()}, history; {layout.create()}"
            )
            for low in range(1, rows + 1, step):
                self.say(f"{layout.name}: {low - 1:,} of {rows:,} workloads")
                for statement in layout.inserts(make_source(low, min(low + step - 1, rows)), DONE):
                    self.ask(statement)
            self.ask(layout.index())
        self.ask("SELECT setval('history.ids', greatest(%s::bigint, last_value + 1)) FROM history.ids", rows + 1)
        self.ask("RESET synchronous_commit")
        self.say("VACUUM ANALYZE")
        self.ask("VACUUM ANALYZE")

    def compare(self, kinds: list[tuple[str, Layout, str]], options: argparse.Namespace) -> dict[str, Any]:
        """Each kind is measured in turn, as often as asked, so that what moves with the minute moves for all."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for turn in range(options.repeats):
            for (name, layout, question), batch in ((kind, batch) for kind in kinds for batch in (1, 50)):
                self.say(f"{name} in batches of {batch}, turn {turn + 1} of {options.repeats}")
                before, after = alter(layout, question)
                self.ask(before)
                runs.setdefault(f"{name}, {batch}", []).append(self.measure(layout, batch, options.lives))
                self.ask(after)
        answer = {name: summarise(each) for name, each in runs.items()}
        for name, each in runs.items():
            spent = [sum(run["ms"].values()) for run in each]
            answer[name]["ms_range"] = [round(min(spent), 3), round(max(spent), 3)]
        return answer

    def measure(self, layout: Layout, batch: int, lives: int) -> dict[str, Any]:
        """`lives` workloads are admitted, and after a checkpoint claimed, beaten, checkpointed and completed."""
        self.ask(f"VACUUM {layout.name}.workload")
        updates = self.count_updates(layout)
        authority, answer = Authority(self.connection, layout), dict[str, Any]()
        seconds = dict.fromkeys(("admit", "claim", "heartbeat", "checkpoint", "complete"), 0.0)
        for phase in ("admit", "drain"):
            self.ask("CHECKPOINT")
            marks = [(self.ask(READ_LSN)[0]["lsn"], "")]
            for low in range(0, lives, batch):
                names: list[str] = []
                for verb in ("admit",) if phase == "admit" else ("claim", "heartbeat", "checkpoint", "complete"):
                    asked: Any = {"admit": list(range(low, low + batch)), "claim": batch}.get(verb, names)
                    begun = time.perf_counter()
                    with self.connection.transaction():
                        done = getattr(authority, verb)(asked)
                    seconds[verb] += time.perf_counter() - begun
                    authority.commits += 1
                    names = done or names
                    marks.append((self.ask(READ_LSN)[0]["lsn"], verb))
            answer[phase] = self.read_wal(marks, lives)
        after = self.count_updates(layout)
        answer["wal_per_life"] = sum(answer[phase]["wal"] for phase in ("admit", "drain"))
        answer["hot_share"] = (after["hot"] - updates["hot"]) / (after["updates"] - updates["updates"])
        answer["statements"], answer["commits"] = authority.statements / lives, authority.commits / lives
        answer["ms"] = {verb: 1000 * spent / lives for verb, spent in seconds.items()}
        return answer

    def count_updates(self, layout: Layout) -> dict[str, int]:
        self.ask("SELECT pg_stat_force_next_flush()")
        self.ask("SELECT pg_stat_clear_snapshot()")
        return self.ask("SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot FROM pg_stat_user_tables"
                        " WHERE schemaname = %s AND relname = 'workload'", layout.name.lower())[0]  # fmt: skip

    def read_wal(self, marks: list[tuple[int, str]], lives: int) -> dict[str, Any]:
        """Bytes of WAL for each life: in all, and by verb and relation, full-page images apart from the rest."""
        self.ask("SELECT pg_logical_emit_message(true, 'bench', '')")  # its commit flushes what is not yet readable
        names = {str(row["node"]): row["relname"] for row in self.ask(
            "SELECT pg_relation_filenode(oid) AS node, relname FROM pg_class"
            " WHERE pg_relation_filenode(oid) > 0")}  # fmt: skip
        database = str(self.ask("SELECT oid FROM pg_database WHERE datname = current_database()")[0]["oid"])
        verbs, relations = Counter[str](), Counter[str]()
        images, image_bytes, checkpoints = Counter[str](), 0, 0
        lsns = [lsn for lsn, _ in marks]
        records = """SELECT (start_lsn - '0/0')::bigint AS at, record_type, record_length, fpi_length, block_ref
            FROM public.pg_get_wal_records_info('0/0'::pg_lsn + %s::bigint, '0/0'::pg_lsn + %s::bigint)"""
        for row in self.ask(records, lsns[0], lsns[-1]):
            found = re.search(r"rel \d+/(\d+)/(\d+)", row["block_ref"] or "")
            checkpoints += row["record_type"].startswith("CHECKPOINT")
            if found and found[1] != database:
                continue
            relation = names.get(found[2], "other") if found else "commit and other"
            verb = marks[min(bisect.bisect_right(lsns, row["at"]), len(marks) - 1)][1]
            verbs[verb] += row["record_length"] - row["fpi_length"]
            relations[relation] += row["record_length"] - row["fpi_length"]
            image_bytes += row["fpi_length"]
            images[relation] += row["fpi_length"] > 0
        return {
            "lsn_difference": (lsns[-1] - lsns[0]) / lives,
            "wal": (verbs.total() + image_bytes) / lives, "without_images": verbs.total() / lives,
            "images": images.total() / lives, "checkpoints_inside": checkpoints,
            "by_verb": {verb: size / lives for verb, size in verbs.items()},
            "by_relation": {name: size / lives for name, size in relations.most_common()},
            "images_by_relation": {name: count / lives for name, count in images.most_common() if count},
        }  # fmt: skip

    def sizes(self, layout: Layout) -> dict[str, int]:
        return {row["relname"]: row["size"] for row in self.ask(
            "SELECT relname, pg_relation_size(c.oid) AS size FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relkind IN ('r', 'i')"
            " ORDER BY 2 DESC", layout.name.lower())}  # fmt: skip

    def plans(self, layout: Layout, rows: int) -> dict[str, Any]:
        """The plans once work that a claimer must not read stands in the tables, each run twice, the second kept."""
        self.ask(f"SET search_path = {layout.name.lower()}, history")
        base = 10_000_000_000
        for number, hot in enumerate((
            READY | {"queued_lane_id": f"{LANE + 1} + mod(v.n, 50)"},
            READY | {"blocked": "true", "queued_lane_id": "NULL", "priority": "9"},
            READY | {"queued_lane_id": "NULL", "waiting_lane_id": str(LANE), "priority": "9",
                     "next_attempt_at": "clock_timestamp() + interval '1 day'"},
            CLAIMED | {"due_at": "clock_timestamp() + interval '1 hour' + mod(v.n, 1000) * interval '1 s'"},
            CLAIMED | {"due_at": "clock_timestamp() - interval '1 s'"},
            READY,
        )):  # fmt: skip
            self.say(f"{layout.name}: rows that the plans must not read, {number + 1} of 6")
            low = base + number * EXTRA
            source = make_source(
                low, low + (EXTRA if number < 4 else 1_000) - 1, at=f"clock_timestamp() - {low} * '1 ms'::interval"
            )
            for statement in layout.inserts(source, hot):
                self.ask(statement)
        self.ask("VACUUM ANALYZE")
        name = self.ask("SELECT 'workload_' || substr(md5('w' || %s::int), 1, 24) AS name", rows // 2)[0]["name"]
        some = [
            row["workload_id"]
            for row in self.ask(f"SELECT {layout.cold}.workload_id FROM {layout.source} ORDER BY 1 LIMIT 50")
        ]
        due = layout.locked("w.due_at <= %s::timestamptz", "w.due_at", "LIMIT %s::int")
        clock = self.ask("SELECT clock_timestamp() AS at")[0]["at"]
        history = (f"SELECT e.* FROM event e JOIN {'workload' if layout.one else 'admitted'} a ON a.id = e.workload"
                   " WHERE a.workload_id = %s ORDER BY e.sequence")  # fmt: skip
        listing = (f"SELECT {layout.cold}.*, w.* FROM {layout.source} WHERE {layout.cold}.tenant_id = 'tenant-7'"
                   f" AND {layout.cold}.application_id = 'application-3'"
                   f" ORDER BY {layout.cold}.id DESC LIMIT 50")  # fmt: skip
        answer = {}
        for title, query, values in (
            ("claim 50 of one lane", layout.claimable, (LANE, 50)), ("lock 50 by workload_id", layout.named, (some,)),
            ("due, 1,000", due, (clock, 1000)), ("due, 100", due, (clock, 100)),
            ("history of one", history, (name,)), ("list, newest 50", listing, ()),
        ):  # fmt: skip
            for _ in range(2):
                with self.connection.transaction(force_rollback=True):
                    lines = [row["QUERY PLAN"] for row in self.ask("EXPLAIN (ANALYZE, BUFFERS) " + query, *values)]
            top = next(line for line in lines if "Buffers:" in line)
            took = next(line for line in lines if "Execution Time" in line)
            answer[title] = {"pages": sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", top)),
                             "ms": float(re.findall(r"[\d.]+", took)[0]), "plan": lines}  # fmt: skip
        return answer


def alter(layout: Layout, question: str) -> tuple[str, str]:
    """The statements that bring in and take out what a micro-question asks about."""
    if question == "claim_id unique":
        return "CREATE UNIQUE INDEX attempt_claim ON history.attempt (claim_id)", "DROP INDEX history.attempt_claim"
    if question == "foreign keys":
        keys = {f"history.{table}": f"(workload) REFERENCES {layout.name}.workload ({layout.key})"
                for table in ("event", "attempt", "checkpoint", "result")}  # fmt: skip
        if not layout.one:
            keys[f"{layout.name}.workload"] = f"(admitted_id) REFERENCES {layout.name}.admitted (id)"
        # As Django declares them; not valid, since the rows that stand there are other layouts' too.
        kind = "DEFERRABLE INITIALLY DEFERRED NOT VALID"
        made = "; ".join(f"ALTER TABLE {t} ADD CONSTRAINT asked FOREIGN KEY {key} {kind}" for t, key in keys.items())
        return made, "; ".join(f"ALTER TABLE {table} DROP CONSTRAINT asked" for table in keys)
    return "SELECT 1", "SELECT 1"


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number over the runs, in the shape of one run."""
    answer: dict[str, Any] = {}
    for name, value in runs[0].items():
        column = [run.get(name, type(value)()) for run in runs]
        answer[name] = summarise(column) if isinstance(value, dict) else round(statistics.median(column), 3)
    return answer


def table(title: str, head: list[str], rows: list[list[Any]]) -> str:
    cells = [head, ["---"] + ["---:"] * (len(head) - 1)]
    cells += [[f"{c:,.2f}" if isinstance(c, float) and c < 100 else f"{c:,.0f}" if isinstance(c, int | float) else c
               for c in row] for row in rows]  # fmt: skip
    return f"\n**{title}**\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in cells)


def report(answer: dict[str, Any]) -> str:
    """The answer as Markdown tables; sizes are bytes of WAL for each life unless a title says otherwise."""
    lives = {**answer["runs"], **answer["questions"]}
    head = ["tables, batch", "WAL in all", "admit", "images", "drain", "images", "drain less images", "HOT %"]
    rows = []
    for name, run in lives.items():
        admit, drain, ms = run["admit"], run["drain"], run["ms"]
        low, high = run["ms_range"]
        rows.append([name, run["wal_per_life"], admit["wal"], admit["images"], drain["wal"], drain["images"],
                     drain["without_images"], round(100 * run["hot_share"]), run["statements"], run["commits"],
                     ms["admit"], sum(ms.values()) - ms["admit"], f"{low:.2f} to {high:.2f}"])  # fmt: skip
    parts = [table("A life", [*head, "statements", "commits", "ms admit", "ms drain", "ms in all, range"], rows)]

    verbs = ("admit", "claim", "heartbeat", "checkpoint", "complete")
    spent = {name: {**run["admit"]["by_verb"], **run["drain"]["by_verb"]} for name, run in lives.items()}
    rows = [[name, *(size[verb] for verb in verbs)] for name, size in spent.items()]
    parts.append(table("WAL less images, by verb", ["tables, batch", *verbs], rows))

    drains = {name: run["drain"] for name, run in answer["runs"].items()}
    seen = dict.fromkeys(key for drain in drains.values() for key in drain["by_relation"])
    rows = []
    for key in seen:
        pairs = [(d["by_relation"].get(key, 0), d["images_by_relation"].get(key, 0)) for d in drains.values()]
        rows.append([key, *(f"{size:,.0f} / {images:.2f}" for size, images in pairs)])
    parts.append(table("Drain by relation: bytes less images / images", ["relation", *drains], rows))

    sizes = answer["sizes"]
    seen = dict.fromkeys(key for size in sizes.values() for key in size)
    rows = [[key, *(size.get(key, 0) / 1e6 for size in sizes.values())] for key in seen]
    rows.append(["in all", *(sum(size.values()) / 1e6 for size in sizes.values())])
    parts.append(table("MB once loaded", ["relation", *sizes], rows))

    plans = answer["plans"]
    rows = [[title, *(f"{each[title]['pages']:,} / {each[title]['ms']:.2f}" for each in plans.values())]
            for title in next(iter(plans.values()))]  # fmt: skip
    parts.append(table("Plans: pages read / ms", ["query", *plans], rows))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dsn", default=os.environ.get("DATABASE_URL") or "postgres://postgres@127.0.0.1:5432/postgres"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="finished workloads that stand in each schema")
    parser.add_argument("--lives", type=int, default=2_000, help="lives measured in each run; a multiple of 50")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind; medians are printed")
    parser.add_argument(
        "--layouts",
        default="A100,A70,B100,B80,B50,B70",
        help=f"of {', '.join(LAYOUTS)}; the last is asked the micro-questions",
    )
    parser.add_argument("--json", help="where to write the answer; standard output otherwise")
    options = parser.parse_args()
    if options.lives % 50 or options.lives < 50:
        parser.error("--lives must be a multiple of 50")
    layouts = [LAYOUTS[name] for name in options.layouts.split(",")]
    with psycopg.connect(options.dsn, autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(DATABASE)))
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        bench = Bench(options.dsn)
        try:
            bench.load(layouts, options.rows)
            answer: dict[str, Any] = {"rows": options.rows, "lives": options.lives, "repeats": options.repeats}
            shown = "SELECT current_setting(%s) AS value"
            answer["settings"] = {name: bench.ask(shown, name)[0]["value"] for name in SETTINGS}
            answer["sizes"] = {layout.name: bench.sizes(layout) for layout in layouts}
            answer["runs"] = bench.compare([(layout.name, layout, "") for layout in layouts], options)
            last = layouts[-1]
            asked = [(f"{last.name} + {q}", last, q) for q in ("nothing", "foreign keys", "claim_id unique")]
            answer["questions"] = bench.compare(asked, options)
            answer["plans"] = {layout.name: bench.plans(layout, options.rows) for layout in (layouts[0], layouts[-1])}
        finally:
            bench.connection.close()
            server.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(DATABASE)))
            print(file=sys.stderr)
    text = json.dumps(answer, indent=1)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text)
    print(report(answer))


if __name__ == "__main__":
    main()
