"""What an op must be: each key of a match is one condition, a line of the table `KEYS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphpatch import names
from graphpatch.errors import MatchError, RulesError, did_you_mean
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import ModelBody
from graphpatch.graph.walk import (
    Passes,
    anywhere,
    downstream,
    nowhere,
    readers_of,
    tensor_named,
    upstream,
)
from graphpatch.match import glob, inside, nth, values
from graphpatch.match.glob import texts
from graphpatch.match.inside import Inside
from graphpatch.match.keys import (
    CLASSES,
    OP_KEYS,
    Condition,
    Key,
    OneOf,
    Test,
    class_,
    classes_in_words,
    combined,
    everything,
)
from graphpatch.match.nth import NTH, Nth
from graphpatch.match.spec import (
    Between,
    DependencySearch,
    Match,
    Pattern,
    every_match,
    tensors_named,
)
from graphpatch.names import TensorName
from graphpatch.table import short

ADDED_KEY = "added"
"""What a miss calls this condition; it is not a key of a match."""


ANY_RULE = ("*", "**")


def of_the_model(match: Match) -> Condition | None:
    """Return the op is the model's own, and no rule added it; None where the match may mean any op.

    With `taken`, or its name written out, what was added is meant too. Clones of the model's ops
    are its own: the gradient flows through them.
    """
    by_kind = match.class_ is not None or not set(ANY_RULE) & set(texts(match.op or ANY_RULE))
    if match.taken is not None or ((match.any or match.all) and not by_kind):
        return None  # each of `any` and `all` asks for itself
    spelled = {text for text in texts(match.name or ()) if not glob.is_glob(text)}

    def prepared(body: Body) -> Test:
        if not body.edited and not body.heads.marked:
            return everything
        if isinstance(body, ModelBody):
            return lambda node: body.is_there(node.index)
        return lambda node: (
            not body.may_be_signed(node.index) or not _is_new(node) or node.name in spelled
        )

    return prepared


def adder(node: Node) -> str:
    """Return the rule that added an op which is not a clone of another; nothing where none did."""
    authors = provenance.rules_that_patched(node) if _is_new(node) else []
    return authors[0].rule if authors else ""


def _is_new(node: Node) -> bool:
    """Return whether a rule added an op which is not a clone of another."""
    record = provenance.record(node)
    return record is not None and record.is_added and not record.clone_of


def not_added(bodies: Iterable[Body], tests: dict[str, Condition]) -> list[str]:
    """That ops meet all of these conditions, and are none of the model's; or nothing."""
    others = dict(tests)
    is_own = others.pop(ADDED_KEY, None)
    if is_own is None:
        return []
    foreign = [
        node for body in bodies for node in _ops_not_own(is_own, list(others.values()), body)
    ]
    if not foreign:
        return []
    named = short([f"{node} (rule {adder(node)!r})" for node in foreign])
    return [
        f"  left out, as rules added them: {named}; to mean them, write their names without "
        f'a glob, or "taken": true'
    ]


def adder_in_words(node: Node, wanted: object) -> str:
    """Return which rule added an op, in words."""
    return f"rule {adder(node)!r} added it"


def _ops_not_own(is_own: Condition, others: Iterable[Condition], body: Body) -> Iterator[Node]:
    own = is_own(body)
    if body.is_ours or own is everything:
        return
    tests = [condition(body) for condition in others]
    for node in provenance.may_be_signed(body):  # own reads the node, and is asked last
        if all(test(node) for test in tests) and not own(node):
            yield node


def taken(wanted: bool | str | Sequence[str]) -> Condition:
    """Some rule before patched the op, or one of these names did; `false`: none did.

    The op that has its name now, and those that a rule added, count as patched by it too. Rules of
    an earlier run, which the file tells of, count as well.
    """
    meant = glob.one_of(("**",) if isinstance(wanted, bool) else texts(wanted))

    def prepared(body: Body) -> Test:
        taken_indices = {
            node.index
            for node in provenance.touched(body)
            if any(map(meant, rules_that_patched(node)))
        }
        return lambda node: (node.index in taken_indices) is not (wanted is False)

    return prepared


def rules_that_patched(node: Node) -> Iterator[str]:
    """The rules that patched an op, by name; not those that only let it read another tensor."""
    return (author.rule for author in provenance.rules_that_patched(node))


def check_taken(match: Match, before: Collection[str]) -> None:
    """Raise MatchError where `taken` names a rule, and none of those before has that name.

    A glob may be meant for rules that are not there.
    """
    for part in every_match(match):
        for text in () if isinstance(part.taken, bool) else texts(part.taken or ()):
            if not glob.is_glob(text) and text not in before:
                legal = ", ".join(map(repr, before)) or "none"
                near = did_you_mean(text, before)
                raise MatchError(
                    f"taken: no rule before this one is called {text!r}{near}; before it: {legal}"
                )


def takers_in_words(node: Node, wanted: object) -> str:
    """Return which rules patched an op, in words."""
    rules = list(dict.fromkeys(rules_that_patched(node)))
    return (
        f"it was patched by rule {', '.join(map(repr, rules))}" if rules else "no rule patched it"
    )


# An op, or None for what is not an op: the argument of a function, an input that names nothing.
Neighbour = Node | None

QUANTIFIERS: dict[str, Callable[[Iterable[bool]], bool]] = {
    **{"any": any, "all": all},
    **{"none": lambda neighbours: not any(neighbours)},
}


def inputs(wanted: Mapping[str, Match], control: bool, holds: Holds) -> Condition:
    """Input number k is given by such an op; or any, all, none of the inputs are.

    The argument of a function is not an op, and does not count. With `control`, any, all and none
    count the ops that run before, too.
    """

    def producers(node: Node, slot: int | None) -> Iterable[Neighbour]:
        if slot is None:
            return map(node.body.producer, node.inputs if control else node.data_inputs)
        return map(node.body.producer, node.data_inputs[slot : slot + 1])

    return _on_neighbours(wanted, "inputs", producers, holds)


def consumers(wanted: Mapping[str, Match], control: bool, holds: Holds) -> Condition:
    """Some op that reads output number k is such an op; or any, all, none of the readers are.

    `all` holds where nothing reads the op. With `control`, any, all and none count the ops that
    run after it, too.
    """

    def readers(node: Node, output: int | None) -> Iterable[Neighbour]:
        body = node.body
        tensor = None
        if output is not None:
            tensor = tensor_named(body, str(TensorName(node.name, output)))
        for index, slot in body.readers.get(node.name, ()):
            text = body.heads.inputs[index][slot]
            if control or text[:1] != "^" if output is None else names.parse(text) == tensor:
                yield Node(body, index)

    return _on_neighbours(wanted, "consumers", readers, holds)


def _on_neighbours(
    wanted: Mapping[str, Match],
    key: str,
    neighbours: Callable[[Node, int | None], Iterable[Neighbour]],
    holds: Holds,
) -> Condition:
    for word in wanted:
        if word not in QUANTIFIERS and not (word.isascii() and word.isdigit() and len(word) < 10):
            legal = f"; legal: 0, 1, ..., {', '.join(QUANTIFIERS)}"
            near = did_you_mean(word, QUANTIFIERS) or legal
            raise RulesError(f"{key}: {word!r} does not say which{near}")
    conditions = {word: holds(match) for word, match in wanted.items()}

    def prepared(body: Body) -> Test:
        tests = {word: condition(body) for word, condition in conditions.items()}

        def is_met(node: Node, word: str) -> bool:
            every = neighbours(node, None if word in QUANTIFIERS else int(word))
            test = tests[word]
            return QUANTIFIERS.get(word, any)(op is not None and test(op) for op in every)

        return lambda node: all(is_met(node, word) for word in tests)

    return prepared


Holds = Callable[[Match], Condition]
"""All conditions of a match as one."""


TensorsOrSearch = str | Sequence[str] | DependencySearch


def upstream_of(value: TensorsOrSearch, control: bool, holds: Holds) -> Condition:
    """One of these tensors is computed from the op; the op that gives the tensor is among them."""
    return _marked_by(upstream, value, control, holds)


def downstream_of(value: TensorsOrSearch, control: bool, holds: Holds) -> Condition:
    """Return the op is computed from one of these tensors; the op that gives the tensor is not."""
    return _marked_by(downstream, value, control, holds)


def _marked_by(
    marks_of: Callable[..., bytearray], value: TensorsOrSearch, control: bool, holds: Holds
) -> Condition:
    search = value if isinstance(value, DependencySearch) else DependencySearch(of=texts(value))

    def prepared(body: Body) -> Test:
        ends = _ends_in(body, search.of)
        marks = marks_of(body, ends, control, *_limits(search, body, holds))
        return lambda node: bool(marks[node.index])

    return prepared


def between(value: Between, control: bool, holds: Holds) -> Condition:
    """Return the op is on a path from one of the first tensors to one of the second.

    The ops that give the tensors at both ends belong to it, or neither does. A path leads on
    through ops that are `within` and are none of `stop_at`; what these say is not asked of ends.
    """

    def prepared(body: Body) -> Test:
        sources, targets = _ends_in(body, value.sources), _ends_in(body, value.targets)
        on_paths = _ops_on_paths(body, sources, targets, control, _limits(value, body, holds))
        ends = {body.by_name.get(tensor.op) for tensor in (*sources, *targets)}
        if value.ends:
            return lambda node: node.index in on_paths
        return lambda node: node.index in on_paths and node.index not in ends

    return prepared


def _ops_on_paths(
    body: Body,
    sources: Sequence[TensorName],
    targets: Sequence[TensorName],
    control: bool,
    limits: tuple[Passes, Passes],
) -> set[int]:
    """Return the ops on the paths, those at both ends included."""
    through, last = limits
    ends = {body.by_name.get(tensor.op) for tensor in targets}

    def passes(index: int) -> bool:
        return index in ends or (through(index) and not last(index))

    behind = downstream(body, sources, control, passes)
    before = upstream(body, targets, control, lambda index: bool(behind[index]))
    inner = {index for index, mark in enumerate(before) if mark and behind[index]}
    on_paths = set(inner)
    for tensor in sources:  # each by itself: a path may not lead through the op of another
        index = body.by_name.get(tensor.op)
        if index is not None and (tensor in targets or _is_read(body, tensor, inner, control)):
            on_paths.add(index)
    return on_paths


def _is_read(body: Body, tensor: TensorName, on_paths: Container[int], control: bool) -> bool:
    """Return whether one of these ops reads a tensor, or runs after the op that gives it."""
    inputs = body.heads.inputs
    uses = body.readers.get(tensor.op, ()) if control else ()
    after = (index for index, slot in uses if inputs[index][slot].startswith("^"))
    reading = (index for index, _ in readers_of(body, tensor))
    return any(index in on_paths for index in (*reading, *after))


def _limits(value: DependencySearch | Between, body: Body, holds: Holds) -> tuple[Passes, Passes]:
    """Through which ops a walk leads, and behind which it does not go on."""
    within = None if value.within is None else holds(value.within)(body)
    stop_at = None if value.stop_at is None else holds(value.stop_at)(body)
    return (
        anywhere if within is None else lambda index: within(Node(body, index)),
        nowhere if stop_at is None else lambda index: stop_at(Node(body, index)),
    )


def unknown_tensors(graphs: Iterable[Graph], match: Match) -> list[str]:
    """Return the tensors that a match names for its paths and that no body of these graphs has."""
    bodies = [body for graph in graphs for body in graph.bodies]
    return [
        text
        for text in tensors_named(match)
        if all(tensor_named(body, text) is None for body in bodies)
    ]


def _ends_in(body: Body, value: str | Sequence[str]) -> list[TensorName]:
    tensors = [tensor_named(body, text) for text in texts(value)]
    return [tensor for tensor in tensors if tensor is not None]


INSIDE = '"loop", "branch", or an object with one or more of loop, branch, when'
TENSOR = "a tensor's name, or a list of them"

# By key, what it takes where the key alone does not tell.
LEGAL = {"class": ", ".join(CLASSES), "nth": NTH, "inside": INSIDE}

# The same for the lists in the objects of a match.
LEGAL_INSIDE = {
    **{"of": TENSOR, "from": TENSOR, "to": TENSOR, "at": NTH},
    **{"loop": "the name of a loop, or a list of them"},
    **{"branch": "the name of a branch, or a list of them"},
    **{"in": "one or more values, in a list"},
}

# Those whose lists mean something without anything in them: a scalar's shape, no condition.
MAY_BE_EMPTY = ("value", "shape", "all", "pattern")


def refuse_empty(written: Mapping[str, Any]) -> None:
    """Raise RulesError where a key of a match, or a key in it, has an empty list or object."""
    for key, value in written.items():
        if value == () and key not in MAY_BE_EMPTY:
            legal = f"; legal: {LEGAL[key]}" if key in LEGAL else ""
            raise RulesError(
                f"{key}: the list is empty, so it says nothing; leave {key} out{legal}"
            )
        if value == {}:
            raise RulesError(f"{key}: it is empty, so it says nothing; leave {key} out")
    if written.get("inside") == Inside():
        raise RulesError(f"inside: it is empty, so it says nothing; expected {INSIDE}")
    for key, value in written.items():
        for path, part in value.items() if key == "attr" else [("", value)]:
            for name, inner in encoded_fields(part):
                if inner == () and name in LEGAL_INSIDE:
                    where = ".".join(filter(None, (key, path, name)))
                    raise RulesError(
                        f"{where}: the list is empty, so it says nothing; expected"
                        f" {LEGAL_INSIDE[name]}"
                    )


def encoded_fields(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the keys of an object in a match, and their values; nothing for another value."""
    if isinstance(value, DependencySearch | Between | Nth | Inside | OneOf):
        for name, field in zip(
            value.__struct_encode_fields__, value.__struct_fields__, strict=True
        ):
            yield name, getattr(value, field)


def body(wanted: str | Sequence[str]) -> Condition:
    """Return the op is in one of these bodies: `main`, or functions by name or glob."""
    patterns = [glob.compiled(text) for text in texts(wanted)]

    def prepared(body: Body) -> Test:
        is_meant = any(pattern(body.label) for pattern in patterns)
        return lambda node: is_meant

    return prepared


def _body_of(node: Node, wanted: object) -> str:
    return f"it is in {node.body.label}"


def none_of(wanted: Match) -> Condition:
    """This match does not hold."""
    condition = holds(wanted)

    def prepared(body: Body) -> Test:
        test = condition(body)
        return lambda node: not test(node)

    return prepared


def pattern(wanted: str | Pattern | Sequence[str | Pattern]) -> Condition:
    """Return the op is the last one of such a pattern, the one that no other of it reads."""
    from graphpatch.match.pattern.matcher import Finder
    from graphpatch.match.pattern.syntax import forms

    finders = [Finder(form, conditions) for form in forms(wanted)]

    def prepared(body: Body) -> Test:
        every = (binding for finder in finders for binding in finder.matches(body))
        last = {binding.last for binding in every}
        return lambda node: node.index in last

    return prepared


# In the order in which they are tried: cheap ones first.
KEYS: dict[str, Key] = {
    "body": Key(body, _body_of),
    "op": OP_KEYS["op"],
    "name": OP_KEYS["name"],
    "name_regex": OP_KEYS["name_regex"],
    "any": Key(lambda wanted: combined(list(map(holds, wanted)), any)),
    "all": Key(lambda wanted: combined(list(map(holds, wanted)))),
    "not": Key(none_of),
    "upstream_of": Key(upstream_of),
    "downstream_of": Key(downstream_of),
    "between": Key(between),
    "pattern": Key(pattern),
    "class": Key(class_, classes_in_words),
    "taken": Key(taken, takers_in_words),
    "inside": Key(inside.inside, inside.contexts_in_words),
    **OP_KEYS,  # the others of these
    "shape": Key(values.shape, values.shape_in_words),
    "inputs": Key(inputs),
    "consumers": Key(consumers),
    "value": Key(values.value, values.value_in_words),
    "nth": Key(nth.nth),
}

# Those that follow edges, and take `control` and `holds` besides.
ON_EDGES = ("inputs", "consumers", "between", "upstream_of", "downstream_of")


def conditions(match: Match) -> dict[str, Condition]:
    """Return the conditions of a match by their keys, in the order in which they are tried.

    One more says that the op is the model's (`added`), where the match does not ask for others.

    Raises RulesError where the value of a key means nothing.
    """
    written = match.given()
    refuse_empty(written)
    if match.control and not written.keys() & set(ON_EDGES):
        raise RulesError(f"control goes with {', '.join(ON_EDGES)}")
    by_key = {key: _condition_for(key, written[key], match) for key in KEYS if key in written}
    own = of_the_model(match)
    return by_key if own is None else {**by_key, ADDED_KEY: own}


def holds(match: Match) -> Condition:
    """Return all conditions of a match as one."""
    return combined(list(conditions(match).values()))


def _condition_for(key: str, wanted: Any, match: Match) -> Condition:
    if key == "nth":  # of those that all other keys mean
        return nth.nth(wanted, holds(replace(match, nth=None)))
    made = KEYS[key].condition
    return made(wanted, match.control, holds) if key in ON_EDGES else made(wanted)
