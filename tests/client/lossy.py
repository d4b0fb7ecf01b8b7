"""A bad line: a proxy that loses, delays, cuts and repeats, by a seed."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
FATES = ("pass", "lose_question", "lose_answer", "cut", "delay", "twice", "answer_twice", "502", "503", "429", "504")


class Lossy:
    """A proxy to one server. Each question meets a fate; `share` of them a bad one."""

    def __init__(self, url: str, *, seed: int = 0, share: float = 0.3, fates=FATES[1:]) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._random = random.Random(seed)
        self._guard = threading.Lock()
        self.share = share
        self.fates = fates
        self.met: Counter[str] = Counter()
        self.asked: list[bytes] = []
        self._listening = socket.create_server((LOOPBACK, 0), backlog=128)
        self.url = f"http://{LOOPBACK}:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while question := _read_message(client):
                if not self._meet(client, question):
                    return

    def _fate(self) -> str:
        with self._guard:
            fate = self._random.choice(self.fates) if self._random.random() < self.share else "pass"
            self.met[fate] += 1
            return fate

    def _meet(self, client: socket.socket, question: bytes) -> bool:
        """Answer a question, or not; return whether the connection goes on."""
        fate = self._fate()
        with self._guard:
            self.asked.append(question.partition(b"\r\n")[0])
        if fate == "lose_question":
            return False
        if fate in ("502", "504"):
            return _send(client, f"HTTP/1.1 {fate} Bad\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")
        if fate in ("503", "429"):
            return _send(client, f"HTTP/1.1 {fate} Not now\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{{}}")
        if fate == "delay":
            time.sleep(0.05)  # the line's own slowness
        if fate == "twice":
            self._forward(question)
        answer = self._forward(question)
        if answer is None or fate == "lose_answer":
            return False
        if fate == "cut":
            client.sendall(answer[: max(1, len(answer) * 2 // 3)])
            return False
        if fate == "answer_twice":
            answer = answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            client.sendall(answer + answer)
            return False
        client.sendall(answer)
        return True

    def _forward(self, question: bytes) -> bytes | None:
        with socket.create_connection(self._server, 30) as server:
            server.sendall(question)
            return _read_message(server)


def _send(client: socket.socket, text: str) -> bool:
    client.sendall(text.encode())
    return True


def _read_message(peer: socket.socket) -> bytes | None:
    """Read one message whose length its header says; None if there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = peer.recv(65_536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        part = peer.recv(65_536)
        if not part:
            return None
        body += part
    return head + b"\r\n\r\n" + body


@contextmanager
def lossy(url: str, **options):
    """Open a bad line to a server."""
    line = Lossy(url, **options)
    try:
        yield line
    finally:
        line.close()
