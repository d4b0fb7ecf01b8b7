"""The site's addresses, and its static files, which a web server of its own would serve in production."""

from __future__ import annotations

from django.contrib.staticfiles.views import serve
from django.urls import re_path

from project.urls import urlpatterns as site

urlpatterns = [re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True}), *site]
