"""Who the caller is and what it may do: the one place where the workloads that it may see are narrowed."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from django.db.models import Q

from workloads.api.compiled import Compiled
from workloads.api.errors import forbidden
from workloads.api.rows import rows
from workloads.errors import invalid
from workloads.lifecycle import canonical
from workloads.lifecycle.arguments import is_identifier
from workloads.models import Access, Admitted, Workload, WorkloadQuerySet


class Role(enum.StrEnum):
    """What a user may be in an application."""

    REQUESTER = "requester"
    WORKER = "worker"
    OPERATOR = "operator"
    VIEWER = "viewer"


READERS: Final = (Role.OPERATOR, Role.VIEWER)
"""Those who read all of an application's work. A requester reads its own."""


ACCESS: Final = (
    "tenant_id",
    "application_id",
    "is_requester",
    "is_worker",
    "is_operator",
    "is_viewer",
    "reads_payloads",
    "capabilities",
    "worker_prefix",
)
"""The columns of an Access row that say what it gives, in the order in which `Place.of` takes them."""
_BROUGHT: Final = "workloads_access_brought"
_WHOSE: Final = ("workload_id", "tenant_id", "application_id", "requested_by")

_access: Final = Compiled(Access, by="user", columns=ACCESS)
_whose: Final = Compiled(Admitted, by="workload_id", columns=_WHOSE)


def bring(user: Any, found: Iterable[Sequence[Any]]) -> None:
    """Leave with a user its Access rows, as an authenticator has read them together with it: columns as in ACCESS.

    They serve the first question after its access; a later one, as of a caller that has waited, reads them anew.
    """
    setattr(user, _BROUGHT, tuple(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What one Access row gives: roles in one application, or, where that is empty, in all of a tenant's."""

    tenant_id: str
    application_id: str
    roles: frozenset[Role]
    reads_payloads: bool
    capabilities: frozenset[str]
    worker_prefix: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> Place:
        """Return the place that an Access row gives; its columns as in ACCESS."""
        tenant_id, application_id, *has, reads_payloads, capabilities, worker_prefix = row
        return cls(
            tenant_id=tenant_id,
            application_id=application_id,
            roles=frozenset(role for role, held in zip(Role, has, strict=True) if held),
            reads_payloads=reads_payloads,
            capabilities=frozenset(capabilities),
            worker_prefix=worker_prefix,
        )

    def shows(self, tenant_id: str, application_id: str, *, is_own: bool) -> bool:
        """Tell whether work lies in this place, and its user sees it there: a requester sees its own alone."""
        return self.covers(tenant_id, application_id) and bool(
            self.roles and (is_own or self.roles != {Role.REQUESTER})
        )

    def covers(self, tenant_id: str, application_id: str) -> bool:
        """Tell whether work of this tenant and application lies in this place."""
        return self.tenant_id == tenant_id and self.application_id in ("", application_id)

    def check_worker(self, worker_id: str) -> None:
        """Refuse a worker id that this user's workers may not have: FORBIDDEN."""
        if not worker_id.startswith(self.worker_prefix):
            raise forbidden("The worker_id does not begin as this user's must.", field="worker_id")

    def check_capabilities(self, capabilities: Iterable[str]) -> None:
        """Refuse capabilities that the Access row does not hold: FORBIDDEN."""
        if not frozenset(capabilities) <= self.capabilities:
            raise forbidden("The capabilities are more than this user's workers may present.", field="capabilities")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A workload that the caller may see, and the places through which it does. Without one, nothing is visible."""

    workload_id: str
    tenant_id: str = ""
    application_id: str = ""
    places: tuple[Place, ...] = ()
    is_own: bool = False

    def may(self, *roles: Role) -> bool:
        """Tell whether the caller has one of these roles where the work lies; as a requester, for its own work."""
        held = {role for place in self.places for role in place.roles}
        return any(role in held and (role is not Role.REQUESTER or self.is_own) for role in roles)

    def demand(self, *roles: Role) -> None:
        """Refuse a caller that sees the work without having one of these roles: FORBIDDEN. The unseen is not judged."""
        if self.places and not self.may(*roles):
            raise forbidden(f"This needs the role {' or '.join(roles)}.")

    @property
    def reads_payloads(self) -> bool:
        """Tell whether the caller may read the work's input, output, artifacts and checkpoints."""
        return self.may(Role.OPERATOR, Role.REQUESTER) or any(
            place.reads_payloads and Role.VIEWER in place.roles for place in self.places
        )

    def check_worker(self, worker_id: Any) -> None:
        """Refuse, FORBIDDEN, a worker id that none of the caller's worker places here allows."""
        self._place_of_worker(worker_id)

    def check_claim(self, worker_id: Any, capabilities: Iterable[str]) -> None:
        """Refuse, FORBIDDEN, a worker id or capabilities that the caller's worker place here does not allow."""
        place = self._place_of_worker(worker_id)
        if place is not None:
            place.check_capabilities(capabilities)

    def _place_of_worker(self, worker_id: Any) -> Place | None:
        place = nearest(place for place in self.places if Role.WORKER in place.roles)
        if place is not None and isinstance(worker_id, str):
            place.check_worker(worker_id)
        return place


def request_id_in(tenant_id: str, request_id: str | None) -> str | None:
    """Return a claim's request id as the authority is given it: of this tenant's, whoever else has thought of it.

    The authority knows request ids by their worker's id, and two tenants may have workers of one name.
    """
    return None if request_id is None else canonical.digest(canonical.canonical([tenant_id, request_id], field=""))


def nearest(places: Iterable[Place]) -> Place | None:
    """Return the place that names an application, else the one of the whole tenant, else None."""
    return next(iter(sorted(places, key=lambda place: not place.application_id)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """An authenticated user, with all of its Access rows as they are now."""

    name: str
    places: tuple[Place, ...]

    @classmethod
    def of(cls, user: Any) -> Caller:
        """Return the caller that a user is: one query, or none where its access was brought."""
        found = getattr(user, _BROUGHT, None)
        if found is None:
            found = _access.read([user.pk])
        else:
            setattr(user, _BROUGHT, None)
        return cls(name=user.get_username(), places=tuple(Place.of(row) for row in found))

    def workloads(self, *roles: Role) -> WorkloadQuerySet:
        """Return the workloads that the caller sees, or those that it sees in one of these roles.

        A requester sees its own; workers, operators and viewers see their application's.
        """
        return self._all().filter(self._scope(roles or tuple(Role)))

    def workloads_by_place(
        self, *roles: Role, tenant_id: str | None, application_id: str | None
    ) -> list[WorkloadQuerySet]:
        """Return what `workloads` does of what is named, place by place: each has an index that keeps its order.

        With places that lie in one another a workload is in several.
        """
        places = self._named(tenant_id, application_id)
        return [self._all().filter(scope) for scope in self._scopes(places, roles)]

    @staticmethod
    def _all() -> WorkloadQuerySet:
        return cast("WorkloadQuerySet", rows(Workload))

    def _scope(self, roles: Collection[Role]) -> Q:
        seen = Q(pk__in=[])
        for scope in self._scopes(self.places, roles):
            seen |= scope
        return seen

    def _scopes(self, places: Iterable[Place], roles: Collection[Role]) -> Iterator[Q]:
        for place in places:
            held = place.roles.intersection(roles)
            if not held:
                continue
            here = Q(tenant_id=place.tenant_id)
            if place.application_id:
                here &= Q(application_id=place.application_id)
            if held == {Role.REQUESTER}:
                here &= Q(requested_by=self.name)
            yield here

    def find(self, workload_id: str) -> Subject:
        """Return the workload as the caller sees it. The unseen and what does not exist are one: without places."""
        return self.find_all([workload_id]).get(workload_id) or Subject(workload_id=workload_id)

    def find_all(self, workload_ids: Iterable[Any]) -> dict[str, Subject]:
        """Return, by id, those of these workloads that the caller sees: one query."""
        wanted = {id_ for id_ in workload_ids if is_identifier(id_)}
        subjects = (self._subject(*row) for row in _whose.read(wanted))
        return {subject.workload_id: subject for subject in subjects if subject is not None}

    def _subject(self, workload_id: str, tenant_id: str, application_id: str, requested_by: str) -> Subject | None:
        is_own = requested_by == self.name
        if not any(place.shows(tenant_id, application_id, is_own=is_own) for place in self.places):
            return None
        return Subject(
            workload_id=workload_id,
            tenant_id=tenant_id,
            application_id=application_id,
            places=tuple(place for place in self.places if place.covers(tenant_id, application_id)),
            is_own=is_own,
        )

    def demand(self, *roles: Role, tenant_id: str | None, application_id: str | None) -> None:
        """Refuse, FORBIDDEN, a caller with access to what is named, or to anything, but in none of these roles.

        What is named and lies outside its access is no one's here: there is nothing to refuse, and nothing to see.
        """
        here = self._named(tenant_id, application_id)
        is_named = tenant_id is not None or application_id is not None
        if not here and is_named:
            return
        if not any(place.roles.intersection(roles) for place in here):
            raise forbidden(f"This needs the role {' or '.join(roles)}.")

    def _named(self, tenant_id: str | None, application_id: str | None) -> list[Place]:
        return [
            place
            for place in self.places
            if tenant_id in (None, place.tenant_id)
            and (application_id is None or place.application_id in ("", application_id))
        ]

    def requester_place(self, tenant_id: str, application_id: str) -> Place:
        """Return the place in which the caller admits work of this tenant and application, else FORBIDDEN."""
        here = [place for place in self.places if place.covers(tenant_id, application_id)]
        place = nearest(place for place in here if Role.REQUESTER in place.roles)
        if place is None:
            raise forbidden("This user may admit no work into this tenant and application.")
        return place

    def claim_place(self, tenant_id: str | None, application_id: str | None) -> Place | None:
        """Return the one place from which a claim takes work; None where the names lie outside the caller's access.

        FORBIDDEN for a caller that is no worker there; WORKLOAD_INVALID names what must be named.
        """
        here = self._named(tenant_id, application_id)
        if not here and (tenant_id is not None or application_id is not None):
            return None
        able = [place for place in here if Role.WORKER in place.roles]
        if not able:
            raise forbidden(f"This needs the role {Role.WORKER}.")
        if len({place.tenant_id for place in able}) > 1:
            raise invalid("tenant_id", "must be named: this user works for more than one tenant")
        if application_id is None and len(able) > 1:
            raise invalid("application_id", "must be named: this user works for more than one application")
        place = nearest(able)
        assert place is not None
        return place
