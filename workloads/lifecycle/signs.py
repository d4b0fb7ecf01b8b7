"""After how long without a sign of life a pass, or a worker, counts as gone: for `explain`, health and the admin alike.

They decide nothing about work. Section 7 of the contract, `pass_not_running` and `no_capable_worker_seen`.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

PASS_IS_LATE: Final = dt.timedelta(minutes=5)
WORKER_IS_GONE: Final = dt.timedelta(minutes=5)
