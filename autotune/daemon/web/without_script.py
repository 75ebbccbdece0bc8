"""The page's state as plain HTML, for browsers without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from autotune.clock import format_duration

Part = Mapping[str, Any]


def plain_html(state: Part) -> str:
    """Return the body of the state: what to do, the search, what the daemon watches."""
    parts = [
        f"<p>{escape(str(state.get('host')))}, {escape(str(state.get('utc')))}; loaded anew every few seconds.</p>"
    ]
    if search := state.get("search"):
        parts += [*_search(search)]
    if advice := state.get("advice"):
        parts += [
            *_table(
                "What to do",
                ("config", "gain", "state", "to take it"),
                (
                    (one["config"], _ratio(one["ratio"]), one["state"], f"autotune apply --config {one['config']}")
                    for one in advice["advice"]
                ),
            )
        ]
    if queue := state.get("queue"):
        names = ["number", "state", "config", "reason"]
        parts += _table("Queue", names, ([entry[name] for name in names] for entry in queue["entries"]))
    if trainings := state.get("trainings"):
        alarms = [("alarm", one["utc"], one["message"]) for one in trainings["alarms"] if one["is_open"]]
        parts += _table("Alarms", ("", "since", "what"), alarms)
        names = ["name", "samples_per_s", "ratio"]
        rows = ([one[name] for name in names] for one in trainings["trainings"])
        parts += _table("Trainings", ("training", "samples/s", "of tuned speed"), rows)
    if gpus := state.get("gpus"):
        rows = ([one.get(name) for name in ("index", "name", "utilization")] for one in gpus["devices"])
        parts += _table("GPUs", ("GPU", "name", "utilization"), rows)
    return "\n".join(parts)


def _search(search: Part) -> Iterable[str]:
    best = search["best"][-1][1] if search["best"] and search["best_changes"] else None
    budget = f"{format_duration(search['used_s'])} of {format_duration(search['budget_s'])}"
    now = search["now"]
    facts = {
        "config": search["config"],
        "answer": None if search["is_running"] else str(search["verdict"] or "no verdict").replace("_", " "),
        "best": f"{_ratio([best])} {search['best_changes']}" if best else "nothing better yet",
        "now": now and f"trial {now['number']}, {now['purpose']}: {now['changes']}",
        "phase": search["phase"] and f"{search['phase']}: {search['why']}",
        "budget": budget,
        "trials": search["trials"],
    }
    yield from _table("Search", ("", ""), ((name, said) for name, said in facts.items() if said is not None))
    yield from _table(
        "Fastest points",
        ("values", "speed over today's", "trials"),
        (
            (
                "today's config" if one["is_today"] else one["changes"],
                _ratio([one["ratio"], one["low"], one["high"]]),
                one["trials"],
            )
            for one in search["points"]
        ),
    )
    columns = ("number", "purpose", "changes", "samples_per_s", "ratio", "ending")
    rows = ([one[name] for name in columns] for one in search["recent"])
    yield from _table("Last trials", ("trial", "purpose", "changes", "samples/s", "speed", "ending"), rows)


def _ratio(ratio: Sequence[float]) -> str:
    value, *ends = (f"{one:.2f}" for one in ratio)
    return f"{value}x ({' to '.join(ends)})" if ends else f"{value}x"


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Iterable[str]:
    cells = ["".join(f"<td>{'' if one is None else escape(str(one))}</td>" for one in row) for row in rows]
    if cells:
        yield f"<section><h2>{title}</h2><table>"
        yield f"<tr>{''.join(f'<th>{name}</th>' for name in columns)}</tr>" if any(columns) else ""
        yield from (f"<tr>{row}</tr>" for row in cells)
        yield "</table></section>"
