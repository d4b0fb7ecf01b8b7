"""What the client makes of every answer: what is repeated, what is final, how long it waits, and what it never says."""

from __future__ import annotations

import datetime as dt
import json as json_
import logging
import time
from email.utils import format_datetime

import httpx
import pytest

from tests.client.scripted import Scripted, far, json, raw
from workloads.client import RemoteAuthority, RemoteWorker, Unanswered
from workloads.client.line import retry_after_s
from workloads.client.worker import RemotePort
from workloads.contract import CompletionReport, Fence
from workloads.errors import WorkloadError
from workloads.worker.registry import Registry

BLOCKERS = json(200, {"blockers": []})
FENCE = Fence(workload_id="workload_x", claim_id="c", worker_id="w", fencing_token=1)
SECRET = "s3cret-token"
ASKED = {"worker_id": "w-1", "capabilities": [], "lease_ms": 60_000}


@pytest.mark.parametrize(
    "lost",
    [
        *[raw(status, b"<html>") for status in (408, 425, 429, 502, 503, 504)],
        raw(200, b"<html>Sign in"),
        raw(200, b'{"blockers": ['),
        raw(200, b""),
        raw(204, b""),
        raw(200, b"[]"),
        raw(200, b"null"),
        raw(200, b'"ok"'),
        raw(200, b'{"status": "ok"}'),
        raw(200, b'{"blockers": [1]}'),
        raw(200, b"no gzip", Content_Encoding="gzip"),
        raw(200, b"[" * 100_000),
        httpx.ReadError("cut"),
        httpx.WriteError("cut"),
        httpx.ConnectError("away"),
        httpx.ConnectTimeout("away"),
        httpx.ReadTimeout("slow"),
        httpx.PoolTimeout("busy"),
        httpx.RemoteProtocolError("half"),
        httpx.ProxyError("away"),
    ],
    ids=lambda lost: type(lost).__name__,
)
def test_what_is_no_answer_is_asked_again(lost):
    authority, server = far(lost, BLOCKERS)
    assert authority.explain("workload_x") == []
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "status", [300, 301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 422, 500, 501]
)
@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"code": 7}'])
def test_every_other_status_is_final_and_a_refusal(status, body):
    authority, server = far(raw(status, body, Location="http://elsewhere/"), BLOCKERS)
    with pytest.raises(WorkloadError) as refused:
        authority.explain("workload_x")
    assert len(server.asked) == 1
    assert str(status) in str(refused.value)


def test_an_answer_that_never_can_be_read_ends_with_patience():
    authority, server = far(json(200, {"status": "ok"}), patience_ms=300)
    with pytest.raises(Unanswered, match="blockers"):
        authority.explain("workload_x")
    assert len(server.asked) > 1


@pytest.mark.parametrize("outcomes", [[], [{"status": 200}], [{}, {}], {"a": 1}, None])
def test_a_batch_without_an_outcome_for_each_item_is_no_answer(outcomes):
    authority, _ = far(json(200, {"outcomes": outcomes}), patience_ms=0)
    with pytest.raises(Unanswered):
        authority.heartbeat_many([(FENCE, 1_000)])


# The address and the token


@pytest.mark.parametrize(
    "url",
    [
        "",
        "far/api",
        "127.0.0.1:8000/api",
        "ftp://far/api",
        "http:///api",
        "http://far:port/api",
        "https://rita:s3cret-word@far/api",
        "https://far/api?token=s3cret-word",
        "https://far/api#there",
        "https://far\n/api",
    ],
)
def test_an_address_that_names_no_server_is_refused_at_once(url):
    with pytest.raises(ValueError, match="base_url") as refused:
        RemoteAuthority(url, "t")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


@pytest.mark.parametrize("url", ["http://far/api", "http://far/api///", "http://[::1]:8000/api", "http://far"])
def test_an_address_may_have_a_path_and_slashes(url):
    server = Scripted(BLOCKERS)
    with RemoteAuthority(url, "t", transport=server) as authority:
        authority.explain("workload_x")
    assert str(server.asked[0].url) == url.rstrip("/") + "/v1/workloads/workload_x/why/"


@pytest.mark.parametrize("token", ["", f"{SECRET}\n", f" {SECRET}", f"{SECRET} é", f"{SECRET}\r\nX: y", None])
def test_a_token_that_no_header_holds_is_refused_without_being_said(token, caplog):
    with pytest.raises(ValueError, match="token") as refused:
        RemoteAuthority("http://127.0.0.1:9/api", token, patience_ms=0).explain("workload_x")
    assert SECRET not in repr(refused.value) + caplog.text
    assert refused.value.__cause__ is None and refused.value.__context__ is None


def test_a_line_that_was_closed_answers_nothing():
    authority, server = far(BLOCKERS)
    authority.close()
    with pytest.raises(Unanswered):
        authority.explain("workload_x")
    assert not server.asked


# How long it waits


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("-1", 0, 0),
        ("1.5", 0, 0),
        ("soon", 0, 0),
        ("99999999", 3_600, 3_600),
        ("in twenty minutes", 1_100, 1_201),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_a_retry_after_is_seconds_or_an_instant(given, least, most):
    if given == "in twenty minutes":
        given = format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(minutes=20), usegmt=True)
    assert least <= retry_after_s({"Retry-After": given}) <= most


def test_without_patience_a_call_that_may_be_held_back_is_made_once():
    authority, server = far(raw(503, b""), patience_ms=0)
    with pytest.raises(Unanswered):
        authority.claim_next(**ASKED, wait_ms=5_000)
    assert len(server.asked) == 1


def test_an_answer_is_waited_for_no_longer_than_it_is_of_use():
    authority, server = far(raw(503, b""), patience_ms=0)
    with authority.line.patient(lambda: 1.5), pytest.raises(Unanswered):
        authority.explain("workload_x")
    assert set(server.asked[0].extensions["timeout"].values()) == {1.5}


def port_of(*answers, wait_ms=5_000):
    authority, server = far(*answers, patience_ms=0)
    return RemotePort(authority, wait_ms=wait_ms), server


class Waits:
    """Notes the waits of a port, and lets time stand still in them."""

    def __init__(self, monkeypatch, stop_after=None):
        self.now, self.taken, self._stop_after = time.monotonic(), [], stop_after
        monkeypatch.setattr("workloads.client.worker.time.monotonic", lambda: self.now)

    def __call__(self, seconds):
        self.taken.append(seconds)
        self.now += seconds

    def is_over(self):
        return self._stop_after is not None and len(self.taken) >= self._stop_after


def test_a_worker_that_is_told_to_come_later_does(monkeypatch):
    """Also when that is later than it would have waited: those who were turned away are many."""
    later = json(200, {"claims": []}, Retry_After="10")
    port, server = port_of(later, later, json(200, {"claims": []}))
    waits = Waits(monkeypatch)
    assert port.ask(lambda: port.claim(**ASKED), wait=waits, give_up=waits.is_over) == []
    assert len(server.asked) == 3
    assert 20 <= sum(waits.taken) <= 25


def test_a_worker_that_is_stopped_meanwhile_asks_for_nothing(monkeypatch):
    port, server = port_of(json(200, {"claims": []}, Retry_After="10"))
    waits = Waits(monkeypatch, stop_after=1)
    with pytest.raises(Unanswered):
        port.ask(lambda: port.claim(**ASKED), wait=waits, give_up=waits.is_over)
    assert len(server.asked) == 1


def test_one_that_drains_is_told_that_there_is_nothing():
    port, server = port_of(json(200, {"claims": []}, Retry_After="10"), wait_ms=0)
    assert port.claim(**ASKED) == []
    assert len(server.asked) == 1


def test_news_do_not_shorten_what_the_server_has_asked_for(monkeypatch):
    port, server = port_of(raw(503, b"", Retry_After="8"), json(200, {"claims": []}))
    waits = Waits(monkeypatch)
    port.ask(lambda: port.claim(**ASKED), wait=lambda s: waits(min(s, 1.0)), give_up=waits.is_over)
    assert 8 <= sum(waits.taken) <= 10
    assert len(server.asked) == 2


def test_nobody_waits_past_the_end_of_a_lease(monkeypatch):
    """A maintenance page may ask for an hour: the body must be told as soon as its lease is over."""
    port, server = port_of(raw(503, b"", Retry_After="3600"))
    waits = Waits(monkeypatch)
    ends_at = waits.now + 20
    with pytest.raises(Unanswered):
        port.ask(
            lambda: port.authority.checkpoint(FENCE, 1, key="k"),
            wait=waits,
            give_up=lambda: waits.now >= ends_at,
            left_s=lambda: ends_at - waits.now,
        )
    assert 20 <= sum(waits.taken) <= 21
    assert len(server.asked) <= 2


def test_a_heartbeat_leaves_the_server_alone_for_as_long_as_the_lease_allows(monkeypatch):
    port, server = port_of(raw(429, b"", Retry_After="4"))
    waits = Waits(monkeypatch)
    for is_repeat in (False, True):
        with pytest.raises(Unanswered):
            port.beat([(FENCE, 60_000)], bound_s=10.0, is_repeat=is_repeat)
    assert len(server.asked) == 1
    waits(5)
    with pytest.raises(Unanswered):
        port.beat([(FENCE, 60_000)], bound_s=1.0, is_repeat=False)
    waits(1)
    with pytest.raises(Unanswered):
        port.beat([(FENCE, 60_000)], bound_s=1.0, is_repeat=False)
    assert len(server.asked) == 3


# A worker and a server at fault


def test_a_server_at_fault_does_not_end_its_workers(caplog):
    server = far(raw(500, b"<html>"))[1]
    worker = RemoteWorker(
        "http://far/api", "t", worker_id="w-1", handlers=Registry(), poll_ms=1, wait_ms=0, transport=server
    )
    answer = server.handle_request

    def counted(request):
        if len(server.asked) == 3:
            worker.stop()
        return answer(request)

    server.handle_request = counted
    worker.run()
    assert len(server.asked) == 4
    assert [r.getMessage() for r in caplog.records if "can't be claimed" in r.getMessage()] == [
        "Work can't be claimed: INTERNAL_ERROR: The answer has status 500, and is not the authority's.. Trying again."
    ]


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_refusal_ends_a_worker(status):
    server = far(raw(status, b"<html>"))[1]
    worker = RemoteWorker("http://far/api", "t", worker_id="w-1", handlers=Registry(), transport=server)
    with pytest.raises(WorkloadError):
        worker.run()
    assert len(server.asked) == 1


# Batches over the site's limit


def test_a_batch_that_is_too_large_is_sent_in_parts():
    def judged(request):
        items = json_.loads(request.content)["items"]
        if len(items) > 3:
            return json(413, {"code": "WORKLOAD_TOO_LARGE", "message": "too large", "details": {"field": "body"}})
        if any(item["result_id"] == "r-5" for item in items) and len(items) > 1:
            return raw(413, b"<html>")(request)
        if items[0]["result_id"] == "r-5":
            return raw(413, b"<html>")(request)
        return json(200, {"outcomes": [{"status": 409, "error": {"code": item["result_id"]}} for item in items]})

    authority, _ = far(judged)
    reports = [CompletionReport(fence=FENCE, result_id=f"r-{n}", output=n) for n in range(10)]
    codes = [refusal.code for refusal in authority.complete_many(reports)]
    assert codes == [f"r-{n}" if n != 5 else "WORKLOAD_TOO_LARGE" for n in range(10)]


def test_more_than_a_thousand_go_in_several_calls():
    def refused(request):
        items = json_.loads(request.content)["items"]
        return json(200, {"outcomes": [{"status": 409, "error": {"code": "C"}}] * len(items)})

    authority, server = far(refused)
    assert len(authority.heartbeat_many([(FENCE, 1_000)] * 2_001)) == 2_001
    assert len(server.asked) == 3


# What it says


@pytest.fixture
def command(monkeypatch, capfd, tmp_path):
    """Return what runs the client's command and returns what it prints: it has a handler, and fails."""
    from workloads.client.__main__ import main

    monkeypatch.setenv("WORKLOADS_TOKEN", SECRET)
    (tmp_path / "quiet_handlers.py").write_text(
        "from workloads.worker import handler\n\n\n@handler('quiet.one')\ndef one(attempt): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.NOTSET)

    def run(*given):
        assert main([*given, "--worker-id", "w-1", "--handlers", "quiet_handlers"]) == 1
        said = capfd.readouterr().err
        assert SECRET not in said
        return said

    return run


def test_the_command_does_not_log_every_request(command):
    assert "base_url" in command("far/api")
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)


@pytest.mark.parametrize("grace", ["inf", "nan", "-1"])
def test_the_command_refuses_what_is_no_time(command, grace):
    assert "grace" in command("http://far/api", f"--grace={grace}")
