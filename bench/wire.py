"""Counts what passes between a program and PostgreSQL: a proxy that understands just enough of the protocol.

What is counted does not depend on how the program asks: in single statements, in a pipeline, by COPY. A round trip is
each point at which the client waits for an answer; a statement is whatever the server reports as completed, less those
that only begin, end or mark a transaction.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

# Query, Sync, Flush, CopyDone: after each of these a client waits.
WAITS = frozenset(b"QSHc")
NO_STATEMENTS = frozenset({"BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET", "PREPARE"})
HEADER = 5


@dataclass(kw_only=True)
class Count:
    """What has passed. `rows` are those that statements reported as written: not what the parts of a WITH wrote."""

    round_trips: int = 0
    statements: int = 0
    transactions: int = 0
    rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Wire:
    """A port of this machine behind which a PostgreSQL stands; without TLS, which would hide what passes."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._guard = threading.Lock()
        self._count = Count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="wire", daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that stand end with their ends."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @contextmanager
    def counting(self) -> Iterator[Count]:
        """Count what passes in the block."""
        count = Count()
        with self._guard:
            self._count = count
        try:
            yield count
        finally:
            with self._guard:
                self._count = Count()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._upstream[0].startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{self._upstream[0]}/.s.PGSQL.{self._upstream[1]}")
            else:
                server = socket.create_connection(self._upstream)
            for end in (client, server):
                with suppress(OSError):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target, look, has_head in (
                (client, server, self._from_client, True),
                (server, client, self._from_server, False),
            ):
                arguments = (source, target, look, has_head)
                threading.Thread(target=self._pump, args=arguments, name="wire", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, look: Any, has_head: bool) -> None:
        """Pass on what comes, once it is counted; a client's first message has a length and no kind."""
        buffer = b""
        try:
            while data := source.recv(65_536):
                buffer += data
                if has_head and len(buffer) >= 4:
                    size = int.from_bytes(buffer[:4])
                    if len(buffer) >= size:
                        buffer, has_head = buffer[size:], False
                at = 0
                while not has_head and len(buffer) - at >= HEADER:
                    size = 1 + int.from_bytes(buffer[at + 1 : at + HEADER])
                    if len(buffer) - at < size:
                        break
                    look(buffer[at], buffer[at + HEADER : at + size], size)
                    at += size
                buffer = buffer[at:]
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                with suppress(OSError):
                    end.close()

    def _from_client(self, kind: int, body: bytes, size: int) -> None:
        with self._guard:
            self._count.sent_bytes += size
            self._count.round_trips += kind in WAITS

    def _from_server(self, kind: int, body: bytes, size: int) -> None:
        with self._guard:
            self._count.received_bytes += size
            if kind == ord("C"):
                verb, *rest = body.rstrip(b"\0").decode().split()
                self._count.statements += verb not in NO_STATEMENTS
                if verb in ("INSERT", "UPDATE", "DELETE", "MERGE", "COPY"):
                    self._count.rows += int(rest[-1])
            elif kind == ord("Z"):
                # Idle again: a transaction has ended, be it of one statement that only reads.
                self._count.transactions += body == b"I"


@contextmanager
def through(wire: Wire, connections: Any, alias: str = "default") -> Iterator[None]:
    """Let all of Django's new connections of this alias pass through the wire; the ones there are, are closed."""
    settings = connections[alias].settings_dict
    before = {name: settings[name] for name in ("HOST", "PORT", "OPTIONS", "CONN_MAX_AGE")}
    connections[alias].close()
    options = {**settings["OPTIONS"], "sslmode": "disable", "gssencmode": "disable"}
    settings.update({"HOST": "127.0.0.1", "PORT": str(wire.port), "OPTIONS": options, "CONN_MAX_AGE": None})
    try:
        yield
    finally:
        connections[alias].close()
        settings.update(before)
