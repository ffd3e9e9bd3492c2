"""What earlier rules added is not the model's: which matches mean it nevertheless."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.model_body import ModelBody
from graphpatch.match import glob
from graphpatch.match.condition import Condition, Test, everything
from graphpatch.match.glob import texts
from graphpatch.match.spec import Match
from graphpatch.table import short

ADDED_KEY = "added"
"""What a miss calls this condition; it is not a key of a match."""


ANY_RULE = ("*", "**")


def of_the_model(match: Match) -> Condition | None:
    """The op is the model's own, and no rule added it; None where the match may mean any op.

    With `taken`, or its name written out, what was added is meant too. Clones of the model's ops
    are its own: the gradient flows through them.
    """
    by_kind = match.class_ is not None or not set(ANY_RULE) & set(texts(match.op or ANY_RULE))
    if match.taken is not None or ((match.any or match.all) and not by_kind):
        return None  # each of `any` and `all` asks for itself
    spelled = {text for text in texts(match.name or ()) if not glob.is_glob(text)}

    def prepared(body: Body) -> Test:
        if not body.edited and not any(body.heads.marked):
            return everything
        if isinstance(body, ModelBody):
            return lambda node: body.is_there(node.index)
        return lambda node: (
            not body.may_be_signed(node.index) or not _is_new(node) or node.name in spelled
        )

    return prepared


def adder(node: Node) -> str:
    """The rule that added an op which is not a clone of another; nothing where none did."""
    authors = provenance.rules_that_patched(node) if _is_new(node) else []
    return authors[0].rule if authors else ""


def _is_new(node: Node) -> bool:
    """Whether a rule added an op which is not a clone of another."""
    record = provenance.record(node)
    return record is not None and record.is_added and not record.clone_of


def not_added(bodies: Iterable[Body], tests: dict[str, Condition]) -> list[str]:
    """That ops meet all of these conditions, and are none of the model's; or nothing."""
    others = dict(tests)
    is_own = others.pop(ADDED_KEY, None)
    if is_own is None:
        return []
    found = [node for body in bodies for node in _ops_not_own(is_own, list(others.values()), body)]
    if not found:
        return []
    named = short([f"{node} (rule {adder(node)!r})" for node in found])
    return [
        f"  left out, as rules added them: {named}; to mean them, write their names without "
        f'a glob, or "taken": true'
    ]


def adder_in_words(node: Node, wanted: object) -> str:
    """Which rule added an op, in words."""
    return f"rule {adder(node)!r} added it"


def _ops_not_own(is_own: Condition, others: Iterable[Condition], body: Body) -> Iterator[Node]:
    own = is_own(body)
    if body.is_ours or own is everything:
        return
    tests = [condition(body) for condition in others]
    for node in provenance.may_be_signed(body):  # own reads the node, and is asked last
        if all(test(node) for test in tests) and not own(node):
            yield node
