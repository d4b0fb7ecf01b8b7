"""Bar charts as SVG: drawn here, coloured by classes, with nothing that a strict content policy refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

HEIGHT: Final = 48
STEP: Final = 10
GAP: Final = 2
LEAST: Final = 2
"""How high a bar is at least, so that one failure among a thousand others can be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One span. `value` is None where it is not known; `text` says it with its span, for those who point at it."""

    value: int | None
    text: str
    is_about: bool = False


def bar_chart(name: str, title: str, description: str, bars: Sequence[Bar]) -> SafeString:
    """Return the bars, side by side, as high as the highest. `name` tells its parts from those of other charts."""
    highest = max((bar.value or 0 for bar in bars), default=0)
    return format_html(
        '<svg class="workloads-chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-labelledby="{}-title {}-desc"><title id="{}-title">{}</title><desc id="{}-desc">{}</desc>{}'
        '<rect class="workloads-chart-base" x="0" y="{}" width="{}" height="1"/></svg>',
        len(bars) * STEP,
        HEIGHT + 1,
        name,
        name,
        name,
        title,
        name,
        description,
        format_html_join("", "{}", ((_bar(bar, index, highest),) for index, bar in enumerate(bars))),
        HEIGHT,
        len(bars) * STEP,
    )


def _bar(bar: Bar, index: int, highest: int) -> SafeString:
    if bar.value is None:
        height, kind = HEIGHT, "workloads-bar-unknown"
    else:
        height = 0 if bar.value <= 0 else max(LEAST, round(bar.value / highest * HEIGHT))
        kind = "workloads-bar-about" if bar.is_about else "workloads-bar"
    x = index * STEP
    # The whole of the span answers to the pointer, however low its bar.
    return format_html(
        '<g><title>{}</title><rect class="workloads-bar-reach" x="{}" y="0" width="{}" height="{}"/>'
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/></g>',
        bar.text,
        x,
        STEP,
        HEIGHT,
        kind,
        x + GAP // 2,
        HEIGHT - height,
        STEP - GAP,
        height,
    )
