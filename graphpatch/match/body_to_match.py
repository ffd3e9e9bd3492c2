"""Of which ops a match asks: those of the model, or what rules added and changed too."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch import names
from graphpatch.graph.body import Body
from graphpatch.graph.model_body import as_model
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.spec import Between, DependencySearch, Match, inner


def body_to_match(body: Body, match: Match) -> Body:
    """The body of which a match asks: as the model has it, unless it means what rules did.

    It does so with `taken`, and where it names ops that rules added.
    """
    model = as_model(body)
    if model is body or _asks_for_patched(match):
        return body
    named = [one for one in _names_written(match) if one in body.by_name]
    return body if any(_is_added(one, match, body, model) for one in named) else model


def _is_added(name: str, match: Match, body: Body, model: Body) -> bool:
    """Whether a name is that of an op which a rule added: by itself, or with its op type."""
    if name not in model.by_name:
        return True
    is_type = glob.one_of(texts(match.op or "**"))
    return is_type(body.node(name).op) and not is_type(model.node(name).op)


def _asks_for_patched(match: Match) -> bool:
    return match.taken not in (None, False) or any(map(_asks_for_patched, inner(match)))


def _names_written(match: Match) -> Iterator[str]:
    """The names of ops, and of those that give tensors, which a match writes out."""
    yield from texts(match.name or ())
    for path in (match.upstream_of, match.downstream_of, match.between):
        if isinstance(path, Between):
            yield from map(names.op_of, (*path.sources, *path.targets))
        elif path is not None:
            yield from map(
                names.op_of, texts(path.of if isinstance(path, DependencySearch) else path)
            )
    for one in inner(match):
        yield from _names_written(one)
