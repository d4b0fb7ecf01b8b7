"""The figures of a run as a chart: bars on a logarithmic scale, as an SVG written by hand."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

from report import median, number

SHOWN = (
    ("one", "enqueue, one commit each", "#8da0b3"),
    ("bulk", "enqueue in bulk", "#4f6d8f"),
    ("drain1", "drain, 1 worker", "#e0a458"),
    ("drain2", "drain, 2 workers", "#b5651d"),
    ("finished", "drain, 1 worker, much finished", "#7a8450"),
)
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 900, 120, 70, 11, 14, 70


def draw(answer: dict[str, Any]) -> str:
    """Return the chart of a run of rates.py, in jobs a second."""
    shown = [each for each in SHOWN if each[0] != "finished" or answer["finished"]]
    measured = [peer for peer in answer["peers"].values() if peer.get("measures")]
    rates = [rate for peer in measured for key, _, _ in shown if (rate := median(peer["measures"], key))]
    low = 10 ** math.floor(math.log10(min(rates, default=1)))
    high = 10 ** math.ceil(math.log10(max(rates, default=10) * 1.01))
    span = WIDTH - LEFT - RIGHT

    def x(rate: float) -> float:
        return LEFT + span * (math.log10(rate) - math.log10(low)) / (math.log10(high) - math.log10(low))

    block = len(shown) * BAR + GAP
    height = TOP + block * len(measured) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11" role="img">',
        "<title>Jobs a second, logarithmic</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="22" font-size="15" fill="#222222">Jobs a second (logarithmic)</text>',
    ]
    for index, (_, label, colour) in enumerate(shown):
        place = 12 + index * 170
        parts.append(f'<rect x="{place}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{place + 17}" y="44" fill="#222222">{escape(label)}</text>')
    tick = low
    while tick <= high:
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{height - 30}" stroke="#dddddd"/>'
        )
        parts.append(
            f'<text x="{x(tick):.1f}" y="{height - 14}" text-anchor="middle" fill="#555555">{tick:,.0f}</text>'
        )
        tick *= 10
    for row, peer in enumerate(measured):
        y = TOP + row * block
        weight = ' font-weight="bold"' if not peer["requirements"] else ""
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + len(shown) * BAR / 2 + 4:.1f}" text-anchor="end" fill="#222222"{weight}>'
            f"{escape(peer['title'])}</text>"
        )
        for index, (key, _, colour) in enumerate(shown):
            if (rate := median(peer["measures"], key)) is None:
                continue
            at = y + index * BAR
            parts.append(
                f'<rect x="{LEFT}" y="{at}" width="{max(1.0, x(rate) - LEFT):.1f}" height="{BAR - 1}" fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{x(rate) + 4:.1f}" y="{at + BAR - 2}" font-size="9" fill="#555555">{number(rate)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"
