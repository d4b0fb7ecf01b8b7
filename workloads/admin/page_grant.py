"""The grant that work was admitted with: what it states, and whether its signature still verifies. Never the grant."""

from __future__ import annotations

import logging
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _

from workloads import authority
from workloads.admin.display import instant, listed
from workloads.admin.page_text import identifier, spoilt, visible
from workloads.errors import WorkloadError

logger = logging.getLogger("workloads.admin")


def grant(workload_id: str) -> list[tuple[str, Any]]:
    """Return how the grant stands, by name; empty where the work was admitted without one."""
    try:
        standing = authority.read_grant(workload_id)
    except WorkloadError:
        return []
    except Exception:
        # The rows that it is compared with may be spoilt.
        logger.exception("The grant of %s can't be judged.", workload_id)
        return [(_("Grant"), spoilt(""))]
    if standing is None:
        return []
    stated = standing.statement
    if stated is None:
        said = _("It does not verify: no key of this site, present or former, has signed it as it stands.")
        return [(_("Signature"), _sign("bad", said))]
    if standing.fault == "scope":
        covers = _sign("bad", _("No: it names another requester, tenant or application."))
    elif standing.fault is not None:
        covers = _sign("bad", _("No: it does not cover all the capabilities."))
    else:
        covers = _sign("good", _("Yes"))
    if standing.holds:
        holds = _sign("good", _("It holds."))
    else:
        holds = _sign("quiet", _("It does not hold at this time. It is judged at admission alone."))
    return [
        (_("Signature"), _sign("good", _("It verifies."))),
        (_("Covers this work"), covers),
        (_("Now"), holds),
        (_("Subject"), identifier(stated.subject)),
        (_("Tenant"), identifier(stated.tenant_id)),
        (_("Application"), identifier(stated.application_id)),
        (_("Capabilities"), listed(visible(name) for name in stated.capabilities)),
        (_("Issued"), instant(stated.issued_at)),
        (_("Expires"), instant(stated.expires_at)),
    ]


def _sign(tone: str, said: str) -> Any:
    return format_html('<span class="workloads-{}">{}</span>', tone, said)
