"""Runs one verb of one peer, in the Python that has its package. For `rates.py`; by hand it is of use for profiles.

`python bench/peer.py NAME setup|enqueue|bulk|work --dsn URL [--count N] [--concurrency N]`
"""

from __future__ import annotations

import argparse
import json
import sys

import peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", choices=peers.NAMES)
    parser.add_argument("verb", choices=("setup", "enqueue", "bulk", "work"))
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--concurrency", type=int)
    options = parser.parse_args()
    kind = peers.find(options.name)
    peer = kind(options.dsn, options.concurrency or kind.concurrency)
    if options.verb == "setup":
        peer.setup()
    elif options.verb == "work":
        peer.prepare()
        # Whoever started this has all workers begin at once.
        print("ready", flush=True)
        sys.stdin.readline()
        peer.work()
    else:
        seconds = (peer.enqueue if options.verb == "enqueue" else peer.enqueue_many)(options.count)
        print(json.dumps({"count": options.count, "seconds": seconds, "client_s": peer.watch.cpu_s}))


if __name__ == "__main__":
    main()
