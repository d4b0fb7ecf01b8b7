"""Which pages there are to walk, and what each must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.browser.site import ROLES, Site

LIST: Final = "/admin/workloads/workload/"


@dataclass(frozen=True)
class Place:
    """One page: its address, a text that it shows, and who may see it."""

    name: str
    path: Callable[[Site], str]
    shows: str
    roles: tuple[str, ...] = ROLES

    def __str__(self) -> str:
        return self.name


def at(path: str) -> Callable[[Site], str]:
    """Return an address that is the same on each site."""
    return lambda site: path


def of(story: str) -> Callable[[Site], str]:
    """Return the address of the page of a story's workload."""
    return lambda site: site.page(story)


STORIES: Final = [
    *"recovered running claimed retrying fresh blocked unable scheduled cancelled cancelling dead granted".split(),
    *("overdue", "timed out", "re-armed", "exhausted 0"),
    *("hostile done", "hostile dead", "hostile cancelled", "hostile running", "hostile waiting"),
    *("secretive", "largest", "saving", "wide", "stubborn", "spoilt state", "spoilt policy", "spoilt attempt"),
]

STATES: Final = ("DEAD_LETTER", "READY", "RUNNING", "parked")
WORKERS: Final = "/admin/workloads/seenworker/"
ACCESS: Final = "/admin/workloads/access/"
TOKENS: Final = f"{ACCESS}tokens/"
BULK: Final = "/admin/workloads/bulkaction/"


def worker(like: str) -> Callable[[Site], str]:
    """Return the address of the page of the first worker whose name begins so."""
    sql = "SELECT id FROM workloads_seenworker WHERE worker_id LIKE ? ORDER BY id LIMIT 1"
    return lambda site: f"{WORKERS}{site.ask(sql, f'{like}%')[0][0]}/change/"


PLACES: Final = [
    Place("front page", at("/"), "Workloads"),
    Place("README", at("/README.md"), "authority"),
    Place("a document", at("/docs/operating.md"), "PostgreSQL"),
    Place("index", at("/admin/"), "Workloads"),
    Place("overview", at("/admin/workloads/"), "Dead letters"),
    Place("list", at(LIST), "spare.waiting"),
    *(Place(f"list of {state}", at(f"{LIST}?state={state}"), "workload_") for state in STATES),
    Place("filtered list", at(f"{LIST}?definition=invoice.send&state=DEAD_LETTER"), "bad_address"),
    Place("empty list", at(f"{LIST}?q=nothing-has-this-key"), "0 "),
    *(Place(f"page: {story}", of(story), "workload_") for story in STORIES),
    Place("payload", lambda site: f"{LIST}{site.key('largest')}/payload/input/", "xxx", ("operator", "superuser")),
    Place("workers", at(WORKERS), "mail-1"),
    Place("page of a worker", worker("reports-2"), "reports-2"),
    Place("page of a hostile worker", worker('w"'), "<script>"),
    Place("bulk actions", at(BULK), "bulk actions"),
    Place("change of password", at("/admin/password_change/"), "password"),
    Place("access list", at(ACCESS), "Access", ("superuser",)),
    Place(
        "row of access",
        lambda site: f"{ACCESS}{site.ask('SELECT MIN(id) FROM workloads_access')[0][0]}/change/",
        "payments",
        ("superuser",),
    ),
    Place("access form", at(f"{ACCESS}add/"), "Capabilities", ("superuser",)),
    Place("tokens", at(TOKENS), "oken", ("superuser",)),
    Place("form of a token", at(f"{TOKENS}issue/"), "oken", ("superuser",)),
]
