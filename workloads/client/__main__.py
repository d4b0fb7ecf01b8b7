"""`python -m workloads.client`: a worker on this machine, for a site anywhere. Needs neither Django nor settings."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from pathlib import Path

from workloads.client.worker import DEFAULTS, RemoteWorker
from workloads.errors import WorkloadError
from workloads.worker.program import add_options, leave, options_of, run
from workloads.worker.registry import handlers

TOKEN = "WORKLOADS_TOKEN"
MOST_LEASE_MS = 3_155_760_000_000


def main(given: list[str] | None = None) -> int:
    """Run a worker until it is stopped or drained; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.client",
        description="Claim work of a site over HTTP and run handlers on it, as manage.py workloads_worker does there.",
        epilog=f"The token stands in the environment, as {TOKEN}, or in a file that --token-file names.",
    )
    parser.add_argument("url", metavar="URL", help="where the interface is, as https://example.org/api")
    parser.add_argument("--token-file", metavar="FILE", help="a file that holds the token")
    parser.add_argument(
        "--max-output-bytes", type=int, default=DEFAULTS.max_output_bytes, metavar="N", help="the site's (%(default)s)"
    )
    add_options(parser)
    options = vars(parser.parse_args(given))
    if options["worker_id"] is None:
        parser.error("--worker-id is needed: it begins as the token's user must have it")
    # Each request is no news; a module of handlers may still want it said.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        token = _read_token(options["token_file"])
        sys.path.insert(0, str(Path.cwd()))
        for module in options["handlers"]:
            importlib.import_module(module)
        worker = RemoteWorker(
            options["url"],
            token,
            max_output_bytes=options["max_output_bytes"],
            **options_of(options, handlers, most_lease_ms=MOST_LEASE_MS),
        )
        summary, left = run(worker)
    except (OSError, ValueError, ImportError, WorkloadError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)  # noqa: T201 (a program says so)
        return 1
    if summary.abandoned or left:
        leave(int(summary.is_clogged))
    return int(summary.is_clogged)


def _read_token(file: str | None) -> str:
    token = Path(file).read_text().strip() if file else os.environ.get(TOKEN, "")
    if not token:
        raise ValueError(f"no token is given: set {TOKEN}, or name a file")
    return token


if __name__ == "__main__":
    sys.exit(main())
