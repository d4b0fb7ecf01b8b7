"""The paths of the interface, all below `v1/`, and its schema. A site mounts them where it likes."""

from __future__ import annotations

from typing import Any

from django.urls import include, path, re_path

from workloads.api import admissions, claims, fenced, figures, interventions, reading
from workloads.api.base import NoSuchPath
from workloads.api.schema import BrowsableDocs, SchemaFile

app_name = "workloads"

_one: list[Any] = [
    path("", reading.ReadWorkload.as_view(), name="workload"),
    path("events/", reading.Events.as_view(), name="events"),
    path("attempts/", reading.Attempts.as_view(), name="attempts"),
    path("checkpoints/", reading.Checkpoints.as_view(), name="checkpoints"),
    path("result/", reading.Results.as_view(), name="result"),
    path("why/", reading.Why.as_view(), name="why"),
    path("cancel/", interventions.Cancel.as_view(), name="cancel"),
    path("rearm/", interventions.Rearm.as_view(), name="rearm"),
    path("time-out/", interventions.TimeOut.as_view(), name="time-out"),
    path("claim/", claims.ClaimOne.as_view(), name="claim"),
    path("start/", fenced.Start.as_view(), name="start"),
    path("heartbeat/", fenced.Heartbeat.as_view(), name="heartbeat"),
    path("context/", fenced.Context.as_view(), name="context"),
    path("complete/", fenced.Complete.as_view(), name="complete"),
    path("fail/", fenced.Fail.as_view(), name="fail"),
    path("release/", fenced.Release.as_view(), name="release"),
    path("confirm-cancel/", fenced.ConfirmCancel.as_view(), name="confirm-cancel"),
]

paths: list[Any] = [
    path("workloads/", reading.Workloads.as_view(), name="workloads"),
    path("workloads/batch/", admissions.AdmissionBatch.as_view(), name="batch"),
    path("workloads/<str:workload_id>/", include(_one)),
    path("claims/", claims.Claims.as_view(), name="claims"),
    path("heartbeats/", fenced.HeartbeatBatch.as_view(), name="heartbeats"),
    path("completions/", fenced.CompletionBatch.as_view(), name="completions"),
    path("stats/", figures.Stats.as_view(), name="stats"),
    path("health/", figures.Health.as_view(), name="health"),
    path("schema/", SchemaFile.as_view(), name="schema"),
    path("docs/", BrowsableDocs.as_view(), name="docs"),
]

urlpatterns = [
    path("v1/", include(paths)),
    re_path("", NoSuchPath.as_view()),
]
