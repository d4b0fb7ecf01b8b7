"""The figures of a run as Markdown, and how they get between the markers of a document."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

COLUMNS = (
    ("one", "enqueue, one commit each /s"),
    ("bulk", "in bulk /s"),
    ("drain1", "drain, 1 worker /s"),
    ("drain2", "2 workers /s"),
    ("finished", "1 worker with {finished} finished /s"),
)


def median(measures: dict[str, Any], measure: str, figure: str = "rate") -> float | None:
    """Return the median of a figure over the repeats, None where there is none."""
    found = [each[figure] for each in measures.get(measure, ()) if figure in each]
    return statistics.median(found) if found else None


def number(value: float | None) -> str:
    """Return a figure to three digits or so."""
    if value is None:
        return ""
    if value == round(value) and value < 100:
        return f"{value:.0f}"
    if value >= 100:
        digits = max(0, len(str(int(value))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, its first column text, the others figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def name_of(peer: dict[str, Any]) -> str:
    """Return a peer's name and version."""
    return f"**{peer['title']}**" if not peer["requirements"] else f"{peer['title']} {peer['version']}"


def rates(answer: dict[str, Any]) -> str:
    """Return all tables of a run of rates.py."""
    columns = [(key, title.format(finished=_count(answer["finished"]))) for key, title in COLUMNS
               if key != "finished" or answer["finished"]]  # fmt: skip
    measured = {name: peer for name, peer in answer["peers"].items() if peer.get("measures")}
    speed, spread, spent, ratios = [], [], [], []
    ours = measured.get("ours", {}).get("measures", {})
    for name, peer in measured.items():
        found = peer["measures"]
        speed.append([name_of(peer), *(number(median(found, key)) for key, _ in columns)])
        spread.append([name_of(peer), *(_range(found, key) for key, _ in columns)])
        spent.append(
            [name_of(peer)]
            + [number(median(found, key, figure)) for key in ("drain1", "finished")
               for figure in ("wal_bytes", "client_ms", "server_ms") if key != "finished" or answer["finished"]]
            + [number(median(found, key, "wal_bytes")) for key in ("one", "bulk")]
        )  # fmt: skip
        if name != "ours" and ours:
            ratios.append([name_of(peer), *(_ratio(median(ours, key), median(found, key)) for key, _ in columns)])
    titles = [title for _, title in columns]
    parts = [
        about(answer),
        "Jobs a second, medians:\n\n" + table(["", *titles], speed),
        "From the slowest to the fastest turn:\n\n" + table(["", *titles], spread),
    ]
    if ratios:
        parts.append("How often as fast as each of them this app is:\n\n" + table(["", *titles], ratios))
    if any(answer.get("limits", ())):
        parts.append(_limits(answer["limits"]))
    head = ["", "WAL bytes, drain", "client ms", "server ms"]
    if answer["finished"]:
        more = f"with {_count(answer['finished'])} finished"
        head += [f"WAL bytes, {more}", f"client ms, {more}", f"server ms, {more}"]
    head += ["WAL bytes, enqueue", "WAL bytes, bulk"]
    parts.append("For each job, with one worker; milliseconds are of processor time:\n\n" + table(head, spent))
    chosen = [[name_of(peer), f"{peer['concurrency']}", peer["choice"], peer["packages"].get("python", "")]
              for peer in measured.values()]  # fmt: skip
    parts.append(
        "How each was run:\n\n" + table(["", "concurrency", "what that is, and what else was chosen", "Python"], chosen)
    )
    failures = [f"- {peer.get('title', name)}, {what}: {_plain(why)}" for name, peer in answer["peers"].items()
                for what, why in peer.get("failures", {}).items()]  # fmt: skip
    if failures:
        parts.append("Not measured:\n\n" + "\n".join(failures))
    return "\n\n".join(parts)


def _limits(turns: list[list[dict[str, Any]]]) -> str:
    rows = [
        [f"{same[0]['rows']} a transaction, {same[0]['clients']} connections", number(statistics.median(rates)),
         f"{number(min(rates))} to {number(max(rates))}"]
        for same in zip(*turns, strict=True)
        for rates in [[one["rate"] for one in same]]
    ]  # fmt: skip
    return (
        "The limit of this machine by pgbench, where one prepared statement claims a job, ends it and writes an event, "
        "in jobs a second:\n\n" + table(["jobs", "median", "range"], rows)
    )


def about(answer: dict[str, Any]) -> str:
    """Return with what, and on what, a run was made."""
    machine, settings = answer["machine"], dict(answer["settings"])
    version = settings.pop("server_version").split()[0]
    told = ", ".join(f"`{name}` {value}" for name, value in settings.items())
    return (
        f"{answer['at']}, `{_plain(answer['command'])}`: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:.0f} GiB, PostgreSQL {version} ({told}), each measured "
        f"{answer['repeats']} times in turn."
    )


def put(path: Path, name: str, text: str) -> None:
    """Write text between a document's markers of that name."""
    # Definitions of links, which no reader of Markdown shows; some show comments.
    begin, end = f"[//]: # (begin: {name})", f"[//]: # (end: {name})"
    old = path.read_text()
    if begin not in old or end not in old:
        raise SystemExit(f"{path.name} has no markers {begin} and {end}")
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def _count(value: int) -> str:
    return f"{value / 1_000_000:g}M" if value >= 1_000_000 else f"{value:,}"


def _range(measures: dict[str, Any], measure: str) -> str:
    found = [each["rate"] for each in measures.get(measure, ())]
    return f"{number(min(found))} to {number(max(found))}" if found else ""


def _ratio(mine: float | None, theirs: float | None) -> str:
    return "" if mine is None or not theirs else f"{mine / theirs:.2f}"


def _plain(text: str) -> str:
    """Leave out of a text what tells whose machine it is: paths and addresses."""
    text = re.sub(r"\w+://\S+", "…", text)
    return re.sub(r"(?<![\w.])/[\w./-]+", "…", text).replace("|", "/").replace("\n", " ")
