"""What exceptions and outputs mean, and that no text is lost, stored with a secret in it, or too long."""

from __future__ import annotations

import pytest

from workloads import conf
from workloads.contract import Effect
from workloads.lifecycle import secrets
from workloads.worker import WorkloadFailure, failures, register_failure_kind
from workloads.worker.failures import describe, kind_of, presentable, settle_output


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Flaky(ValueError):
    pass


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "timeout"),
        (ConnectionError(), "transient_connection"),
        (ConnectionResetError(), "transient_connection"),
        (BrokenPipeError(), "transient_connection"),
        (ValueError(), "exception"),
        (OSError(), "exception"),
        (SystemExit(3), "exception"),
        (KeyboardInterrupt(), "exception"),
        (ExceptionGroup("many", [ValueError()]), "exception"),
        (Odd(), "exception"),
    ],
)
def test_the_table_says_the_kind(error, kind):
    assert describe(raised(error)).kind == kind_of(error) == kind


def test_a_site_extends_the_table(monkeypatch):
    monkeypatch.setattr(failures, "_kinds", dict(failures._kinds))
    register_failure_kind(ValueError, "bad_value")
    register_failure_kind(ConnectionResetError, "reset")
    assert kind_of(Flaky()) == "bad_value"
    register_failure_kind(Flaky, "flaky")
    assert kind_of(Flaky()) == "flaky"
    assert kind_of(ConnectionResetError()) == "reset"
    assert kind_of(ConnectionError()) == "transient_connection"
    with pytest.raises(TypeError):
        register_failure_kind("ValueError", "x")


def test_the_error_says_first_what_happened_and_then_where():
    failure = describe(raised(Flaky("went wrong")))
    assert failure.error.startswith("Flaky: went wrong\n\nTraceback")
    assert "test_failures.py" in failure.error
    assert "could not be made" in describe(raised(Odd())).error


def test_a_failure_says_exactly_what_it_is():
    failure = describe(WorkloadFailure("rate_limited", "slow down", effect="none", retry_after_ms=10**12))
    assert (failure.kind, failure.error, failure.effect) == ("rate_limited", "slow down", Effect.NONE)
    assert failure.retry_after_ms == 10**12
    assert describe(WorkloadFailure("rate_limited")).error == "rate_limited"
    assert describe(WorkloadFailure("x", effect=Effect.UNKNOWN)).effect is Effect.UNKNOWN


def test_the_cause_of_a_failure_is_told():
    error = WorkloadFailure("x", "told")
    error.__cause__ = raised(Flaky("inside"))
    assert describe(error).error.startswith("told\n\nTraceback")
    assert "Flaky: inside" in describe(error).error


@pytest.mark.parametrize("kind", ["", " x", "x" * 201, "a\nb", None, 3])
def test_a_kind_that_is_none_does_not_lose_the_failure(kind):
    failure = describe(WorkloadFailure(kind, "told"))
    assert failure.kind == "exception"
    assert "told" in failure.error


def test_an_effect_or_a_delay_that_is_none_does_not_lose_the_failure():
    assert describe(WorkloadFailure("x", effect="perhaps")).effect is Effect.UNKNOWN
    for delay in (-1, True, 1.5, "1"):
        assert describe(WorkloadFailure("x", retry_after_ms=delay)).retry_after_ms is None


def test_error_text_is_mended_redacted_and_cut():
    limit = conf.limits().max_error_chars
    text = presentable("a\0b\ud800 postgres://user:hunter2@host/db " + "x" * 10 * limit)
    assert "hunter2" not in text
    assert "\0" not in text
    assert len(text) <= limit
    text.encode()


@pytest.mark.parametrize("lead", range(40))
def test_a_cut_makes_no_secret_out_of_what_was_none(lead):
    limit = conf.limits().max_error_chars
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    text = presentable("." * (limit - 50 + lead) + key + "QRST" + "z" * 100)
    assert secrets.find_in_text(text) is None
    assert len(text) <= limit


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (None, None),
        ({"a": [1, 2.5, "é", None, True]}, None),
        (deep(64), None),
        (deep(65), "output_invalid"),
        (object(), "output_invalid"),
        ({1: 2}, "output_invalid"),
        ({"a": {1, 2}}, "output_invalid"),
        (b"bytes", "output_invalid"),
        (float("nan"), "output_invalid"),
        (float("inf"), "output_invalid"),
        ("a\0b", "output_invalid"),
        ("\ud800", "output_invalid"),
        (ValueError("returned"), "output_invalid"),
        ("x" * 300_000, "output_too_large"),
        ({"password": "hunter2"}, "output_secret"),
        ("postgres://user:hunter2@host/db", "output_secret"),
    ],
)
def test_an_output_is_judged_before_it_is_sent(output, kind):
    failure = settle_output(output, scopes=())[1]
    assert (failure.kind if failure else None) == kind
    assert failure is None or "hunter2" not in failure.error


def test_an_output_may_name_a_scope_under_a_secret_key():
    assert settle_output({"password": "db/main"}, scopes={"db/main"}) == ({"password": "db/main"}, None)
