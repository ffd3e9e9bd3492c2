"""Why a match found nothing: how many ops each key alone lets through, and what comes near."""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.errors import nearest
from graphpatch.graph.graph import Graph
from graphpatch.match import glob
from graphpatch.match.conditions import conditions
from graphpatch.match.spec import Match, texts

MOST = 5
LARGE = 50_000  # names compared letter by letter; the rest by what they contain


def explain(graphs: Iterable[Graph], match: Match) -> str:
    """One line a key: how many ops it alone lets through, the nearest op types or names."""
    graphs = list(graphs)
    nodes = [node for graph in graphs for body in graph.bodies for node in body]
    lines = [f"  looked at {len(nodes)} ops"]
    for key, holds in conditions(match).items():
        count = sum(1 for node in nodes if holds(node))
        value = match.given()[key]
        shown = f" {_shown(value)}" if key in NEAR or key == "name_regex" else ""
        lines.append(f"  {key}{shown}: {count} of them" + (_near(graphs, key, value, count)))
    return "\n".join(lines)


def _types(graphs: Iterable[Graph]) -> list[str]:
    return sorted({op for graph in graphs for body in graph.bodies for op in body.by_type})


def _names(graphs: Iterable[Graph]) -> list[str]:
    return [name for graph in graphs for body in graph.bodies for name in body.heads.names]


def _labels(graphs: Iterable[Graph]) -> list[str]:
    return sorted({body.label for graph in graphs for body in graph.bodies})


NEAR = {"op": _types, "name": _names, "body": _labels}


def _near(graphs: Iterable[Graph], key: str, value: object, count: int) -> str:
    if count or key not in NEAR or not isinstance(value, str | tuple):
        return ""
    legal = NEAR[key](graphs)
    found = [near for text in texts(value) for near in nearest_names(text, legal)]
    if not found and key == "op":
        found = sorted(legal)[:MOST]
    return f"; nearest: {', '.join(dict.fromkeys(found))}" if found else ""


def nearest_names(text: str, legal: Iterable[str]) -> list[str]:
    """The names nearest to a name or glob: those that contain its last part, else similar ones."""
    legal = list(legal)
    last = text.rpartition("/")[2].strip("*?").lower()
    holding = [name for name in legal if last and last in name.rpartition("/")[2].lower()]
    close = nearest(text, legal[:LARGE], MOST)
    if glob.is_glob(text):
        return (holding or close)[:MOST]
    return list(dict.fromkeys(close + holding))[:MOST]


def _shown(value: object) -> str:
    return ", ".join(map(repr, texts(value))) if isinstance(value, str | tuple) else ""
