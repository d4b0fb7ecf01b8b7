"""How gunicorn serves the site: `gunicorn project.wsgi`, from the folder of manage.py.

| variable | what it sets | without it |
|---|---|---|
| `WEB_BIND` | where it listens | `127.0.0.1:8000` |
| `WEB_PROCESSES` | how many processes serve | 2 |
| `WEB_THREADS` | how many threads each has; half of them may wait for work | 4 |
| `WEB_GRACE_S` | how many seconds a request has to end in, once the server is to stop | 35 |
"""

from __future__ import annotations

import os

wsgi_app = "project.wsgi"
bind = os.environ.get("WEB_BIND", "127.0.0.1:8000")
worker_class = "gthread"
workers = int(os.environ.get("WEB_PROCESSES", "2"))
threads = int(os.environ.get("WEB_THREADS", "4"))
# Workers ask often: each keeps its connection. Longer than most proxies keep theirs, so that they end it, not we.
keepalive = 75
# A call that waits for work takes up to 30 s; it is let end.
graceful_timeout = int(os.environ.get("WEB_GRACE_S", "35"))
timeout = 60
# A list may be asked for by several long names, each letter of which takes up to twelve bytes. The most there is.
limit_request_line = 8190
# Each process has its own database connections and threads: none may be inherited.
preload_app = False
