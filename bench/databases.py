"""How fast the same verbs are on each database that is supported: SQLite, MariaDB and PostgreSQL, in one run.

Run `python bench/databases.py --help`. SQLite gets a file, PostgreSQL a server of its own; MariaDB is measured on the
server that `--mariadb` names, in a database that is made for it and removed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from report import number, put, table
from server import NoServer, started

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "bench_databases"


def run(command: list[Any], url: str) -> str:
    """Run a command on a database and return what it prints; end with its words if it fails."""
    environment = {**os.environ, "DATABASE_URL": url, "SECRET_KEY": "of no use to anybody"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def measured(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Migrate a database that is empty, and return how fast each verb is there."""
    run([sys.executable, ROOT / "manage.py", "migrate", "--verbosity", 0], url)
    what = ["lives", "pass", "moves", "drain"]
    limits = ["--turns", options.turns, "--drain", options.drain]
    answer = json.loads(run([sys.executable, HERE / "verbs.py", "--dsn", url, *limits, "--what", *what], url))
    found = {f"{verb}, {size}": answer[size][verb] for size in ("alone", "50 at once") for verb in answer[size]}
    found["drain, 1 worker"] = answer["drain"]["a worker"]
    found["decisions of a pass over 1,000 due"] = answer["pass"]["decisions"]
    found["instants moved on by a pass over 1,000"] = round(1_000 / answer["moves"]["seconds"], 1)
    return found


class MariaDB:
    """A server of MariaDB, on which a database is made and removed."""

    def __init__(self, url: str) -> None:
        import MySQLdb

        self.url = urlsplit(url)
        self.connection = MySQLdb.connect(
            host=self.url.hostname or "127.0.0.1",
            port=self.url.port or 3306,
            user=unquote(self.url.username or "root"),
            password=unquote(self.url.password or ""),
        )

    def tell(self, statement: str) -> tuple[Any, ...]:
        """Let it do something, and return the first row of its answer."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() or ()

    def create(self) -> str:
        """Make the database anew and return its address."""
        self.drop()
        self.tell(f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4")
        return urlunsplit(self.url._replace(path=f"/{NAME}"))

    def drop(self) -> None:
        """Remove the database."""
        self.tell(f"DROP DATABASE IF EXISTS {NAME}")

    def version(self) -> str:
        """Say which it is, and how it commits."""
        version, flush = self.tell("SELECT version(), @@innodb_flush_log_at_trx_commit")
        return f"{version.split('-')[0]} (`innodb_flush_log_at_trx_commit` {flush})"


def markdown(answer: dict[str, Any]) -> str:
    """Return what was found as Markdown."""
    names = list(answer["rates"])
    rows = [
        [measure, *[number(statistics.median(turn[measure] for turn in answer["rates"][name])) for name in names]]
        for measure in answer["rates"][names[0]][0]
    ]
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    return f"Workloads a second, medians of {answer['repeats']} turns; {versions}:\n\n" + table(["", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dsn", help="a PostgreSQL on which nothing else writes, as a superuser (one of its own)")
    parser.add_argument("--mariadb", metavar="URL", help="mysql://root@127.0.0.1:3306; left out if not given")
    parser.add_argument("--turns", type=int, default=100, help="lives alone; a fifth of that in batches (100)")
    parser.add_argument("--drain", type=int, default=2_000, help="workloads that a worker does (2000)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default=str(ROOT / ".cache" / "bench" / "databases.json"), metavar="FILE")
    parser.add_argument("--document", metavar="FILE", help="a Markdown file whose table is made anew")
    options = parser.parse_args()
    rates: dict[str, list[dict[str, float]]] = {}
    versions: dict[str, str] = {}
    mariadb = MariaDB(options.mariadb) if options.mariadb else None
    try:
        with started(options.dsn) as server:
            versions["PostgreSQL"] = server.settings()["server_version"].split()[0]
            for turn in range(options.repeats):
                print(f"turn {turn + 1} of {options.repeats}", file=sys.stderr, flush=True)
                rates.setdefault("PostgreSQL", []).append(measured(server.create(NAME), options))
                if mariadb:
                    versions["MariaDB"] = mariadb.version()
                    rates.setdefault("MariaDB", []).append(measured(mariadb.create(), options))
                with tempfile.TemporaryDirectory() as folder:
                    url = f"sqlite:///{folder}/site.sqlite3"
                    rates.setdefault("SQLite", []).append(measured(url, options))
                versions["SQLite"] = run([sys.executable, "-c", "import sqlite3; print(sqlite3.sqlite_version)"], url)
                versions["SQLite"] = f"{versions['SQLite'].strip()} (`synchronous` FULL)"
            server.drop(NAME)
    except NoServer as error:
        sys.exit(str(error))
    finally:
        if mariadb:
            mariadb.drop()
    answer = {"rates": rates, "versions": versions, "repeats": options.repeats}
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(answer, indent=1) + "\n")
    print(markdown(answer))
    if options.document:
        put(Path(options.document), "databases", markdown(answer))


if __name__ == "__main__":
    main()
