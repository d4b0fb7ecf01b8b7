"""The looks themselves: each kind of fault that a walk is to find, made on purpose, is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MAKE = "document.body.append(Object.assign(document.createElement('{}'), {}))"

FAULTS = {
    "an error in the console": ("console.error('not well')", "console: error: not well"),
    "a script that breaks": ("setTimeout(() => { throw new Error('broke'); })", "script: "),
    "a link that leaves the machine": ("location.href = 'http://203.0.113.1/'", "a request for http://203.0.113.1/"),
    "a script that asks another host": ("fetch('http://203.0.113.1/').catch(() => 0)", "Content Security Policy"),
    "a request to the server that fails": ("fetch('/nothing-is-here')", "/nothing-is-here: 404"),
    "a style within the page": ("document.body.innerHTML += '<p style=\"color: red\">'", "Content Security Policy"),
    "what is wider than the window": (
        MAKE.format("p", "{textContent: 'wide'.repeat(400)}"),
        "px wide, the window 1440",
    ),
    "a text that became markup": (MAKE.format("img", "{src: 'x', alt: ''}"), "a picture of a text"),
    "a field without a label": (MAKE.format("select", "{}"), "axe: critical select-name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_look_finds(fault: str, people: Callable[..., Any]) -> None:
    somebody = people("")
    somebody.open("/admin/login/")
    assert somebody.look() == []
    script, told = FAULTS[fault]
    somebody.page.evaluate(f"() => {{ {script} }}")
    # What was begun has been heard of by then.
    somebody.page.wait_for_timeout(200)
    found = list(somebody.noted)
    if not any(told in said for said in found):
        found += somebody.look()
    somebody.noted.clear()
    assert any(told in said for said in found), found
