"""The site's handlers. One: a file's checksum, which a later attempt goes on with where an earlier one was lost."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

from workloads.contract import Effect
from workloads.worker import Attempt, WorkloadFailure, handler

MIB: Final = 1024 * 1024
MOST_BLOCKS: Final = 512
"""So that the digests of all blocks, and of half as many that are added meanwhile, fit into a checkpoint."""
CHECKPOINT_S: Final = 0.5


@handler("files.checksum", revisions=["1"], capabilities={"files:read"})
def checksum(attempt: Attempt) -> dict[str, Any]:
    """Return the checksum of the file that the input names: the SHA-256 of the SHA-256 digests of its blocks.

    A plain SHA-256 can't be stopped and gone on with; the digests of whole blocks can be kept in a checkpoint. Blocks
    have 1 MiB, more in files of over 512 MiB. Input: `path`, or `path_bytes` in hex where the name is no text, and
    `pause_ms` after each block, to be gentle to a disk. A file that can't be read is a failure that no retry mends.
    """
    path = _path(attempt.input)
    pause_s = attempt.input.get("pause_ms", 0) / 1000
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            state = _resumed(attempt, found) or _begun(found)
            resumed_at = state["offset"]
            file.seek(resumed_at)
            saved_at = time.monotonic()
            while (block := _read_block(attempt, file, state["block_bytes"])) is not None:
                size, digest = block
                state["digests"].append(digest)
                state["offset"] += size
                if len(state["digests"]) > MOST_BLOCKS + MOST_BLOCKS // 2:
                    raise WorkloadFailure("file_grows", f"{path} grows while it is read.", effect=Effect.NONE)
                if time.monotonic() - saved_at >= CHECKPOINT_S:
                    attempt.checkpoint(state)
                    saved_at = time.monotonic()
                time.sleep(pause_s)
    except (TimeoutError, ConnectionError):
        # A network's file system may answer the next time.
        raise
    except OSError as error:
        raise WorkloadFailure("file_unreadable", str(error), effect=Effect.NONE) from None
    joined = b"".join(bytes.fromhex(digest) for digest in state["digests"])
    return {
        "checksum": hashlib.sha256(joined).hexdigest(),
        "bytes": state["offset"],
        "block_bytes": state["block_bytes"],
        "modified_ns": state["modified_ns"],
        "resumed_at": resumed_at,
    }


def _read_block(attempt: Attempt, file: BinaryIO, block_bytes: int) -> tuple[int, str] | None:
    """Return the size and the digest of the next block, None at the file's end. A long block is read in pieces."""
    digest = hashlib.sha256()
    size = 0
    while size < block_bytes and (piece := file.read(min(MIB, block_bytes - size))):
        attempt.check()
        digest.update(piece)
        size += len(piece)
    return (size, digest.hexdigest()) if size else None


def _path(given: dict[str, Any]) -> Path:
    """Return the path to read. What is no regular file is refused: a pipe would be waited for without end."""
    path = Path(os.fsdecode(bytes.fromhex(given["path_bytes"])) if "path_bytes" in given else given["path"])
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise WorkloadFailure("file_unreadable", str(error), effect=Effect.NONE) from None
    if not stat.S_ISREG(mode):
        raise WorkloadFailure("file_unreadable", f"{path} is no regular file.", effect=Effect.NONE)
    return path


def _begun(found: os.stat_result) -> dict[str, Any]:
    block_bytes = MIB * max(1, -(-found.st_size // (MIB * MOST_BLOCKS)))
    return {
        "offset": 0,
        "block_bytes": block_bytes,
        "digests": [],
        "file_bytes": found.st_size,
        "modified_ns": found.st_mtime_ns,
    }


def _resumed(attempt: Attempt, found: os.stat_result) -> dict[str, Any] | None:
    """Return what the last checkpoint holds, unless the file has changed since."""
    last = attempt.last_checkpoint
    if last is None:
        return None
    state: dict[str, Any] = last.state
    is_same = state["file_bytes"] == found.st_size and state["modified_ns"] == found.st_mtime_ns
    # Only whole blocks can be gone on from: a checkpoint at the end of the file holds a shorter one.
    is_whole = state["offset"] == state["block_bytes"] * len(state["digests"])
    return {**state, "digests": list(state["digests"])} if is_same and is_whole else None
