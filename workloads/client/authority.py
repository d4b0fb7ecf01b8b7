"""The authority's verbs over HTTP: the same names, the same values, the same WorkloadError."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from workloads.client import records
from workloads.client.line import Line, obeyed_s, retry_after_s
from workloads.client.records import AttemptRecord, EventRecord, WorkloadRecord
from workloads.contract import (
    Admission,
    AdmissionRequest,
    Blocker,
    CheckpointRecord,
    Claim,
    CompletionReport,
    Effect,
    ExecutionContext,
    FailureOutcome,
    Fence,
    ResultRecord,
)
from workloads.errors import WORKLOAD_TOO_LARGE, WorkloadError, invalid
from workloads.lifecycle import arguments
from workloads.lifecycle.canonical import canonical, iso

T = TypeVar("T")
Item = TypeVar("Item")

ITEMS_A_CALL: Final = 1_000
PATIENCE_MS: Final = 60_000
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,200}")


class RemoteAuthority:
    """An authority on another machine. Its verbs take and return what `workloads.authority`'s do, `now` left out.

    `base_url` is where the site has the interface mounted, as `https://example.org/api`; `token` is one that the site
    has issued. A lost response never hurts: calls of workers and requesters are repeated with the same request and
    result ids until they are answered, 429 and 503 as their Retry-After says, for `patience_ms` in all (None: for
    ever), and then `Unanswered` is raised. An operator's act is not repeated when its answer was lost: look what has
    become of it, or give `expected_version`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        patience_ms: int | None = PATIENCE_MS,
        transport: Any = None,
        verify: Any = True,
    ) -> None:
        self.line = Line(base_url, token, patience_ms=patience_ms, transport=transport, verify=verify)

    def __repr__(self) -> str:
        return f"<RemoteAuthority over {self.line!r}>"

    def __enter__(self) -> RemoteAuthority:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self.line.close()

    # The requester

    def admit(self, request: AdmissionRequest) -> Admission:
        """Admit work: see `workloads.authority.admit`. `requested_by` is the token's user."""
        status, workload, _ = self.line.ask("POST", "workloads/", _admission(request), read=records.workload)
        return Admission(workload=workload, created=status == 201)

    def admit_many(self, requests: Iterable[AdmissionRequest]) -> list[Admission | WorkloadError]:
        """Admit much work: see `workloads.authority.admit_many`. More than 1,000 are sent in several calls."""

        def read(outcome: Mapping[str, Any]) -> Admission:
            return Admission(workload=records.workload(outcome["workload"]), created=outcome["status"] == 201)

        return self._batch("workloads/batch/", "workloads", requests, _admission, read)

    # The worker

    def claim(
        self,
        workload_id: str,
        *,
        worker_id: str,
        capabilities: Iterable[str],
        lease_ms: int,
        request_id: str | None = None,
    ) -> ExecutionContext:
        """Claim this very workload: see `workloads.authority.claim`. The claim is an ExecutionContext."""
        body = {
            "worker_id": worker_id,
            "capabilities": _listed(capabilities, "capabilities"),
            "lease_ms": lease_ms,
            "request_id": request_id or _make_id(),
        }
        return self._post(workload_id, "claim/", body, read=records.execution_context)

    def claim_next(self, *, wait_ms: int = 0, **asked: Any) -> list[ExecutionContext]:
        """Claim the next work: see `workloads.authority.claim_next`. Each claim is an ExecutionContext.

        The server may hold its answer back for `wait_ms` milliseconds until there is work. One that can't, since too
        many wait, says when to come back; that is obeyed within `wait_ms`.
        """
        until = time.monotonic() + wait_ms / 1000
        while True:
            claims, later_s = self.claims(**asked, wait_ms=wait_ms)
            pause = obeyed_s(later_s)
            if claims or not 0 < pause < until - time.monotonic():
                return [claim for claim, _ in claims]
            time.sleep(pause)  # as the server has asked
            # A request that was given nothing may be repeated as a new one.
            wait_ms = max(0, int((until - time.monotonic()) * 1000))

    def claims(
        self,
        *,
        worker_id: str,
        capabilities: Iterable[str],
        lease_ms: int,
        limit: int = 1,
        tenant_id: str | None = None,
        application_id: str | None = None,
        definitions: Iterable[str] | None = None,
        start: bool = False,
        request_id: str | None = None,
        wait_ms: int = 0,
    ) -> tuple[list[tuple[ExecutionContext, int | None]], float]:
        """Ask once, as `claim_next` does; return the claims, and how many seconds the server asks to be left alone.

        Each claim comes with the work's heartbeat deadline in milliseconds, or None.
        """
        body: dict[str, Any] = {
            "worker_id": worker_id,
            "capabilities": _listed(capabilities, "capabilities"),
            "lease_ms": lease_ms,
            "limit": limit,
            "tenant_id": tenant_id,
            "application_id": application_id,
            "definitions": None if definitions is None else _listed(definitions, "definitions"),
            "start": start,
            "request_id": request_id or _make_id(),
            "wait_ms": wait_ms,
        }
        _, claims, headers = self.line.ask("POST", "claims/", body, read=records.claims, wait_s=wait_ms / 1000)
        return claims, retry_after_s(headers)

    def start(self, fence: Fence) -> Claim:
        """Let claimed work run: see `workloads.authority.start`."""
        return self._fenced(fence, "start/", read=records.claim)

    def heartbeat(self, fence: Fence, *, extend_ms: int) -> Claim:
        """Keep the lease: see `workloads.authority.heartbeat`."""
        return self._fenced(fence, "heartbeat/", {"extend_ms": extend_ms}, read=records.claim)

    def heartbeat_many(self, items: Iterable[tuple[Fence, int]], **how: Any) -> list[Claim | WorkloadError]:
        """Keep many leases: see `workloads.authority.heartbeat_many`."""

        def said(item: tuple[Fence, int]) -> dict[str, Any]:
            return {**dataclasses.asdict(item[0]), "extend_ms": item[1]}

        return self._batch("heartbeats/", "items", items, said, lambda outcome: records.claim(outcome["claim"]), **how)

    def context(self, fence: Fence, *, secret_references: Iterable[str] = ()) -> ExecutionContext:
        """Read all that is needed to run: see `workloads.authority.context`."""
        body = {"secret_references": _listed(secret_references, "secret_references")}
        return self._fenced(fence, "context/", body, read=records.execution_context)

    def checkpoint(self, fence: Fence, state: Any, *, key: str | None = None) -> CheckpointRecord:
        """Save progress: see `workloads.authority.checkpoint`. Without a key it makes one, so that it may repeat."""
        canonical(state, field="state")
        body = {"state": state, "key": key if key is not None else f"call-{_make_id()}"}
        return self._fenced(fence, "checkpoints/", body, read=records.checkpoint)

    def complete(
        self, fence: Fence, *, result_id: str, output: Any, artifacts: Any = (), schema_version: int = 1
    ) -> ResultRecord:
        """End the work well: see `workloads.authority.complete`."""
        report = CompletionReport(
            fence=fence, result_id=result_id, output=output, artifacts=artifacts, schema_version=schema_version
        )
        body = _completion(report)
        return self._post(body.pop("workload_id"), "complete/", body, read=records.result)

    def complete_many(self, reports: Iterable[CompletionReport]) -> list[ResultRecord | WorkloadError]:
        """Report many completions: see `workloads.authority.complete_many`."""
        return self._batch(
            "completions/", "items", reports, _completion, lambda outcome: records.result(outcome["result"])
        )

    def fail(
        self,
        fence: Fence,
        *,
        kind: str,
        error: str,
        effect: Effect | str | None = None,
        retry_after_ms: int | None = None,
    ) -> FailureOutcome:
        """Report a failure: see `workloads.authority.fail`."""
        body = {
            "kind": kind,
            "error": error,
            "effect": None if effect is None else str(effect),
            "retry_after_ms": retry_after_ms,
        }
        return self._fenced(fence, "fail/", body, read=records.outcome)

    def release(self, fence: Fence, *, reason: str = "") -> WorkloadRecord:
        """Give the work back: see `workloads.authority.release`."""
        return self._fenced(fence, "release/", {"reason": reason}, read=records.workload)

    def confirm_cancel(self, fence: Fence) -> WorkloadRecord:
        """End work whose cancellation was requested: see `workloads.authority.confirm_cancel`."""
        return self._fenced(fence, "confirm-cancel/", read=records.workload)

    # The operator

    def cancel(
        self, workload_id: str, *, reason: str = "", expected_version: int | None = None, force: bool = False
    ) -> WorkloadRecord:
        """Call the work off: see `workloads.authority.cancel`. The actor is the token's user. May be repeated."""
        body = {"reason": reason, "expected_version": expected_version, "force": force}
        # Work that is cancelled stays so; only the version that the caller saw is another after the first time.
        may_repeat = expected_version is None
        return self._post(workload_id, "cancel/", body, may_repeat=may_repeat, read=records.workload)

    def rearm(
        self, workload_id: str, *, reason: str, expected_version: int | None = None, restart_overall: bool = False
    ) -> WorkloadRecord:
        """Give parked work one more attempt: see `workloads.authority.rearm`. The actor is the token's user."""
        body = {"reason": reason, "expected_version": expected_version, "restart_overall": restart_overall}
        return self._post(workload_id, "rearm/", body, may_repeat=False, read=records.workload)

    def time_out(self, workload_id: str, *, reason: str = "", expected_version: int | None = None) -> WorkloadRecord:
        """End waiting or claimed work by hand: see `workloads.authority.time_out`. The actor is the token's user."""
        body = {"reason": reason, "expected_version": expected_version}
        return self._post(workload_id, "time-out/", body, may_repeat=False, read=records.workload)

    def explain(self, workload_id: str) -> list[Blocker]:
        """Return why this work is not running: see `workloads.authority.explain`."""
        return self._get(workload_id, "why/", read=records.blockers)

    # Everybody

    def get(self, workload_id: str) -> WorkloadRecord:
        """Return the workload as it stands: see `workloads.authority.get`."""
        return self._get(workload_id, "", read=records.workload)

    def list_for(self, tenant_id: str, application_id: str, **filters: Any) -> Iterator[WorkloadRecord]:
        """Yield the workloads of an application, newest first, page by page. `filters` are the list's parameters."""
        query = {"tenant_id": tenant_id, "application_id": application_id, **filters}
        return self._pages("workloads/", query, records.workload)

    def events(self, workload_id: str) -> Iterator[EventRecord]:
        """Yield the steps of a workload, in order."""
        return self._pages(f"{_path(workload_id)}events/", {}, records.event)

    def attempts(self, workload_id: str) -> Iterator[AttemptRecord]:
        """Yield the attempts at a workload, in order."""
        return self._pages(f"{_path(workload_id)}attempts/", {}, records.attempt)

    def checkpoints(self, workload_id: str) -> Iterator[CheckpointRecord]:
        """Yield the checkpoints of a workload, in order."""
        return self._pages(f"{_path(workload_id)}checkpoints/", {}, records.checkpoint)

    def result(self, workload_id: str) -> ResultRecord | None:
        """Return the result of a workload, None if it has none."""
        return next(self._pages(f"{_path(workload_id)}result/", {}, records.result), None)

    def stats(self, **filters: Any) -> dict[str, Any]:
        """Return counts and rates of the workloads that the filters hold."""
        return self.line.ask("GET", f"stats/{_query(filters)}", read=lambda said: {**said})[1]

    def _post(
        self,
        workload_id: str,
        path: str,
        body: Mapping[str, Any],
        *,
        read: Callable[[Mapping[str, Any]], T],
        may_repeat: bool = True,
    ) -> T:
        return self.line.ask("POST", _path(workload_id) + path, body, read=read, may_repeat=may_repeat)[1]

    def _get(self, workload_id: str, path: str, *, read: Callable[[Mapping[str, Any]], T]) -> T:
        return self.line.ask("GET", _path(workload_id) + path, read=read)[1]

    def _fenced(
        self,
        fence: Fence,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        proof = dataclasses.asdict(arguments.fence_types(fence))
        return self._post(proof.pop("workload_id"), path, {**proof, **(body or {})}, read=read)

    def _batch(
        self,
        path: str,
        name: str,
        items: Iterable[Item],
        said: Callable[[Item], Mapping[str, Any]],
        read: Callable[[Mapping[str, Any]], T],
        **how: Any,
    ) -> list[T | WorkloadError]:
        """Send items in calls of at most 1,000, and return an answer or the refusal for each, in order."""
        answers: list[T | WorkloadError] = []
        for part in _parts(list(items)):
            unsent: list[WorkloadError | None] = []
            bodies = []
            for item in part:
                try:
                    bodies.append(said(item))
                    unsent.append(None)
                except WorkloadError as refusal:
                    unsent.append(refusal)
            heard = iter(self._heard(path, name, bodies, read, **how))
            answers += [next(heard) if refusal is None else refusal for refusal in unsent]
        return answers

    def _heard(
        self,
        path: str,
        name: str,
        bodies: Sequence[Mapping[str, Any]],
        read: Callable[[Mapping[str, Any]], T],
        **how: Any,
    ) -> list[T | WorkloadError]:
        """Send bodies in one call, or in as many as the site takes: how large one may be is its own setting."""
        if not bodies:
            return []
        try:
            return self.line.ask(
                "POST", path, {name: bodies}, read=lambda said: records.outcomes(said, len(bodies), read), **how
            )[1]
        except WorkloadError as refusal:
            if refusal.code != WORKLOAD_TOO_LARGE:
                raise
            if len(bodies) == 1:
                return [refusal]
        half = len(bodies) // 2
        parts = (bodies[:half], bodies[half:])
        return [answer for part in parts for answer in self._heard(path, name, part, read, **how)]

    def _pages(self, path: str, query: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
        address: str | None = path + _query(query)
        while address is not None:
            _, (found, further), _ = self.line.ask("GET", address, read=lambda said: records.page(said, read))
            yield from found
            # The query alone: the token goes to no other host, whatever the server takes its own name to be.
            address = None if further is None else f"{path}?{urlsplit(further).query}"


def _make_id() -> str:
    return secrets.token_hex(16)


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), ITEMS_A_CALL):
        yield items[start : start + ITEMS_A_CALL]


def _path(workload_id: str) -> str:
    # What the authority does not make names nothing, whatever it is, and some such names change an address.
    name = workload_id if isinstance(workload_id, str) and _ID.fullmatch(workload_id) else "-"
    return f"workloads/{name}/"


def _query(filters: Mapping[str, Any]) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in filters.items():
        for one in value if isinstance(value, (list, tuple, set, frozenset)) else [value]:
            if one is not None:
                pairs.append((name, _text(one)))
    return "?" + "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs) if pairs else ""


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return iso(value) if isinstance(value, dt.datetime) else str(value)


def _listed(members: Iterable[str], field: str) -> list[str]:
    return sorted(arguments.identifiers(members, field))


def _admission(request: AdmissionRequest) -> dict[str, Any]:
    """Return the body of an admission; what can't be sent is refused as the authority would."""
    checked = arguments.admission(request)
    canonical(request.input, field="input")
    if checked.grant is not None:
        raise invalid("grant", "is issued by the server from the caller's access")
    body = {field.name: getattr(checked, field.name) for field in dataclasses.fields(checked) if field.name != "grant"}
    body |= {
        "capability_snapshot": sorted(checked.capability_snapshot),
        "connection_scopes": sorted(checked.connection_scopes),
        "retry_policy": {
            **dataclasses.asdict(checked.retry_policy),
            "retry_on": sorted(checked.retry_policy.retry_on),
        },
        "timeouts": dataclasses.asdict(checked.timeouts),
        "dependencies": [
            {"workload_id": edge.workload_id, "required_state": str(edge.required_state)}
            for edge in checked.dependencies
        ],
        "not_before": None if checked.not_before is None else iso(checked.not_before),
    }
    return body


def _completion(report: CompletionReport) -> dict[str, Any]:
    """Return one completion as a batch has it; what can't be sent is refused as the authority would."""
    if not isinstance(report, CompletionReport):
        raise invalid("reports", "each must be a CompletionReport")
    canonical(report.output, field="output")
    canonical(report.artifacts, field="artifacts")
    return {
        **dataclasses.asdict(arguments.fence_types(report.fence)),
        "result_id": report.result_id,
        "output": report.output,
        "artifacts": report.artifacts,
        "schema_version": report.schema_version,
    }
