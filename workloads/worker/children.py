"""How a child process ends that a handler forked and that came back from it."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn


def end_child(error: BaseException | None) -> NoReturn:
    """End a child process that came back from the handler, as its exception would end a program; report nothing."""
    code = 0
    if isinstance(error, SystemExit):
        given = error.code
        code = 0 if given is None else given & 0xFF if isinstance(given, int) else 1
        if code == 1 and not isinstance(given, int):
            with suppress(BaseException):
                print(given, file=sys.stderr)  # noqa: T201 (as Python would)
    elif error is not None:
        code = 1
        with suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code)
