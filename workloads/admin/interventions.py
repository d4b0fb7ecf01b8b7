"""Deciding on selected work from the admin: what is about to happen to each, and what became of it."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from django.db import DatabaseError
from django.utils import timezone
from django.utils.translation import gettext as _

from workloads import authority
from workloads.admin.deeds import applies, explained, why_not
from workloads.admin.display import NOTHING, SHORT_CHARS, short, word
from workloads.admin.page_rows import Row, read
from workloads.errors import WorkloadError
from workloads.lifecycle.deadlines import overall_deadline
from workloads.lifecycle.interventions import Verb, leads_to
from workloads.lifecycle.snapshot import Snapshot
from workloads.models import Workload

MOST_AT_ONCE: Final = 200
_LARGEST_KEY: Final = 2**63 - 1

COLUMNS: Final = (
    "admitted_id",
    "workload_id",
    "definition_id",
    "definition_revision",
    "contract_version",
    "retry_policy",
    "timeouts",
    "version",
    "state",
    "attempt_count",
    "uncounted_releases",
    "operator_retries",
    "overall_from",
)

logger = logging.getLogger("workloads.admin")


@dataclass(frozen=True, slots=True)
class _Timed:
    """What the rule of the overall deadline reads."""

    contract_version: int
    timeouts: Any
    overall_from: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One workload that the verb may apply to. `seen` is the version that the operator decides on."""

    verb: Verb
    row: Row
    seen: int

    @property
    def pk(self) -> int:
        return int(self.row["admitted_id"])

    @property
    def sent(self) -> str:
        """What the page sends for it."""
        return f"{self.pk}:{self.seen}"

    @property
    def workload_id(self) -> str:
        return self.row.text("workload_id") or f"#{self.pk}"

    @property
    def state(self) -> str:
        """The state's word; a spoilt one as it stands."""
        return self.row.text("state")

    @property
    def state_word(self) -> str:
        return word(self.state)

    @property
    def then(self) -> str:
        """The state that the verb leads to."""
        return word(leads_to(self.verb, self.state) or self.state)

    @property
    def definition(self) -> str:
        return f"{self.row.text('definition_id')}@{self.row.text('definition_revision')}"

    @property
    def failure(self) -> str:
        return short(self.row.text("last_failure") or NOTHING)

    @property
    def is_readable(self) -> bool:
        return not self.row.faults

    @property
    def applies(self) -> bool:
        return self.is_readable and applies(self.verb, self.state)

    @property
    def why_not(self) -> str:
        return why_not(self.verb, self.state) if self.is_readable else _("Its record can't be read.")

    @property
    def has_moved(self) -> bool:
        """Whether it is no longer what the operator saw."""
        return self.seen != self.row["version"]

    @property
    def budget(self) -> int:
        return int(self.row["retry_policy"].max_attempts + self.row["operator_retries"])

    @property
    def budget_then(self) -> int:
        return self.budget + 1

    @property
    def used(self) -> int:
        return int(self.row["attempt_count"] - self.row["uncounted_releases"])

    @property
    def overall_has_passed(self) -> bool:
        """Whether re-arming is refused unless the overall deadline starts anew, by this server's clock."""
        timed = _Timed(*(self.row[name] for name in ("contract_version", "timeouts", "overall_from")))
        # The rule reads no more of a snapshot than this.
        at = overall_deadline(cast(Snapshot, timed))
        return at is not None and timezone.now() >= at


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one workload: the state that it is in, or why the verb was refused. `changed`: it is done now."""

    name: str
    state: str = ""
    changed: bool = False
    refusal: str | None = None


def parse_keys(texts: Iterable[str]) -> dict[int, int | None]:
    """Return the keys in `pk` or `pk:version` texts, with the versions; what is neither is left out."""
    found: dict[int, int | None] = {}
    for text in texts:
        key, _colon, version = text.partition(":")
        numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 20 else -1 for part in (key, version)]
        if 0 < numbers[0] <= _LARGEST_KEY:
            found[numbers[0]] = numbers[1] if 0 < numbers[1] <= _LARGEST_KEY else None
    return found


def parse_items(texts: list[str]) -> dict[int, int] | None:
    """Return keys with versions from `pk:version` texts; None if any is something else, or one is given twice."""
    found = {key: version for key, version in parse_keys(texts).items() if version is not None}
    return found if len(found) == len(texts) else None


def find(verb: Verb, wanted: dict[int, int | None]) -> list[Item]:
    """Return the workloads with these keys, oldest first. Without a version, the present one is what is seen."""
    rows = Workload.objects.filter(pk__in=list(wanted)).order_by("pk")
    found = read(rows, COLUMNS, {"last_failure": SHORT_CHARS + 1})
    return [Item(verb=verb, row=row, seen=wanted[row["admitted_id"]] or row.number("version") or 0) for row in found]


def carry_out(
    verb: Verb, wanted: dict[int, int], *, actor: str, reason: str, restart_overall: bool = False
) -> list[Outcome]:
    """Do it to each workload that still stands as it was seen; say of each what became of it."""
    names = dict(Workload.objects.filter(pk__in=list(wanted)).values_list("pk", "workload_id"))
    more: dict[str, bool] = {}
    if verb is Verb.REARM:
        more = {"restart_overall": restart_overall}
    elif verb is Verb.FORCE_CANCEL:
        more = {"force": True}
    call: Any = {Verb.REARM: authority.rearm, Verb.TIME_OUT: authority.time_out}.get(verb, authority.cancel)
    outcomes = []
    for key, seen in sorted(wanted.items()):
        name = names.get(key)
        if name is None:
            outcomes.append(Outcome(name=f"#{key}", refusal=_("It no longer exists.")))
            continue
        try:
            workload = call(name, actor=actor, reason=reason, expected_version=seen, **more)
        except WorkloadError as error:
            outcome = Outcome(name=name, refusal=explained(error.code, error.message))
        except DatabaseError:
            logger.exception("%s could not be decided on.", name)
            outcome = Outcome(name=name, refusal=_("The database did not take it; try again."))
        except Exception:
            # A record that is spoilt stops no other.
            logger.exception("%s can't be read.", name)
            outcome = Outcome(name=name, refusal=_("Its record can't be read."))
        else:
            outcome = Outcome(name=name, state=workload.state, changed=workload.version != seen)
        outcomes.append(outcome)
    return outcomes
