"""The reference page says what the code says."""

from __future__ import annotations

from tests.reference import CODES, PAGE, VALUES, VOICES, render
from workloads import authority, contract, errors


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.reference"


def test_every_verb_value_and_code_is_on_it() -> None:
    assert sorted(name for names in VOICES.values() for name in names) == sorted(authority.__all__)
    assert set(CODES) == errors.CODES
    described = {n for n, v in vars(contract).items() if hasattr(v, "__dataclass_fields__")}
    assert described == set(VALUES)
