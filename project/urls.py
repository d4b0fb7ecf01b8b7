"""The site's addresses: its front page, the project's documents, the admin, and the HTTP interface."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import TemplateView

from project import pages

urlpatterns = [
    # The one that is asked for most stands first.
    path("api/", include("workloads.api.urls")),
    path("", TemplateView.as_view(template_name="index.html"), name="index"),
    # As they lie in the project, so that their links to one another lead somewhere.
    path("README.md", pages.readme, name="readme"),
    path("docs/<path:name>", pages.document, name="document"),
    path("admin/", admin.site.urls),
]
