"""A gate before the database's server: while it is shut, who comes is turned away, and counted."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.races.processes import database_url

SIZE = 65_536


class Gate:
    """Listens on a port of its own and passes on what comes and goes, or lets nobody through."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.turned_away = 0
        self._is_open = True
        self._guard = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._keep, daemon=True).start()

    def url(self) -> str:
        """Return the address of the tests' database by way of the gate."""
        before, _, name = database_url().rpartition("/")
        credentials, _, _ = before.rpartition("@")
        return f"{credentials}@127.0.0.1:{self.port}/{name}"

    def open(self) -> None:
        """Let everybody through."""
        self._is_open = True

    def shut(self) -> None:
        """Cut all that are connected, and turn away who comes."""
        self._is_open = False
        with self._guard:
            cut, self._sockets = self._sockets, set()
        for each in cut:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Shut it for good."""
        self.shut()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _keep(self) -> None:
        while True:
            try:
                guest, _ = self._door.accept()
            except OSError:
                return
            if not self._is_open:
                self.turned_away += 1
                guest.close()
                continue
            inner = socket.create_connection(self.server)
            with self._guard:
                self._sockets |= {guest, inner}
            for source, target in ((guest, inner), (inner, guest)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(SIZE):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()
