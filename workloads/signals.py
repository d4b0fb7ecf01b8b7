"""What the app tells its site: signals that are sent once something has been committed."""

from __future__ import annotations

from django.dispatch import Signal

work_queued = Signal()
"""Work has become claimable. Sent after the commit, once for a transaction, with `using`, the database's alias.

A hint and no promise: work also comes due by time alone, and a process may end between its commit and its signal.
"""
