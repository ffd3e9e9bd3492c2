"""Gradients that are built already, built anew in a patched training graph."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphpatch import names
from graphpatch.analysis.training import (
    MOST_NAMED,
    BuiltGradient,
    GradientSection,
    gradient_sections,
)
from graphpatch.control_flow.rebuilt import without_ops
from graphpatch.errors import PatchError
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.model import GRAPH, META, Model, open_graphs
from graphpatch.graph.attrs import OUTPUT_SHAPES
from graphpatch.graph.check import GRADIENT_SCOPE
from graphpatch.graph.functions import HINTS, LOC, located
from graphpatch.graph.node import COLOCATION
from graphpatch.graph.walk import reached
from graphpatch.graph.wire import Source
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import require_tensorflow
from graphpatch.runtime.imported import import_here, redirect, refused_as
from graphpatch.runtime.register import meta_graph
from graphpatch.runtime.tf_gradients import control_flow, gradients, op_types_in, warn_of_newer
from graphpatch.shown import short


def rebuild_gradients(model: ModelLike, loss: Sequence[str] = ()) -> Model:
    """Build the gradients of a training graph anew, and let its optimizer read those.

    A training graph holds the gradients that `tf.gradients` built before a rule changed any op;
    no rule reaches them. Forward: unchanged. Backward: for each call of `tf.gradients` whose
    results update variables, the gradients of the same losses by the same variables are taken in
    the patched graph. What lies between gradient and update stays (clipping, averaging, schedules)
    and reads the new ones, of the same shapes and dtypes. The old ones are left out where nothing
    else reads them. A warning names those that something besides the updates reads: they stay.
    Another names trainable variables that get a gradient now, and have no update as they got none
    when the optimizer was built; a third names new ops that TensorFlow 1.15 does not know.

    Args:
        model: A patched GraphDef or MetaGraphDef: what `load` takes.
        loss: The names of the losses, where the file does not tell them.

    Returns a model of the same kind, of which `revert` cannot give the original: the old gradients
    are gone.

    Raises:
        PatchError: Losses, variables or updates cannot be told.
        ModelError: The graph cannot be read or imported.
        RulesError: A key is not one that this version of graphpatch knows.
        TypeError: `model` is not a model.

    When not to use it: for a model without an optimizer; there is nothing to build anew.

    Example:
        >>> model = graphpatch.apply("rules.json", "training.meta").model
        >>> graphpatch.rebuild_gradients(model).save("patched.meta")
    """
    require_tensorflow("gradients are built by", PatchError)
    model = model_from("model", model)
    if model.container not in {GRAPH, META} or model.export is not None:
        raise PatchError(f"expected a GraphDef or MetaGraphDef to train, found a {model.format}")
    sections = gradient_sections(model.graphs[0].main, loss)
    # With v2 a TensorArray of a v1 loop has no gradient.
    what = "TensorFlow cannot build these gradients anew (graphpatch doctor says where it ends)"
    refused = refused_as(PatchError, what)
    with refused, control_flow(False), tf.Graph().as_default() as graph:
        file = meta_graph(model)
        meta = tf.compat.v1.MetaGraphDef()
        meta.CopyFrom(file)
        for node in meta.graph_def.node:
            # Other versions of TensorFlow infer other shapes of the old gradients, and refuse to
            # import those that were noted.
            if _is_old(node.name, sections):
                node.attr.pop(OUTPUT_SHAPES, None)
        import_here(meta, model.path)
        instead = dict(pair for section in sections for pair in _rebuild(graph, section))
        live: Any = tf.compat.v1.train.export_meta_graph(graph=graph, strip_default_attrs=True)
        _warn_of_untrained(graph, sections)
    before = op_types_in(file.graph_def)
    _merge(file, live, sections, instead)
    warn_of_newer(before, op_types_in(file.graph_def))
    _warn_of_old(file.graph_def.node, sections)
    message: Any = file.graph_def if model.container is GRAPH else file
    source = Source(message.SerializeToString(deterministic=True))
    return replace(model, source=source, graphs=open_graphs(source, model.container, None))


def _is_old(name: str, sections: Sequence[GradientSection]) -> bool:
    """Return whether an op is of a gradient that is built anew."""
    return any(section.holds(name) for section in sections)


def _tensors(graph: Any, texts: Iterable[str]) -> list[Any]:
    return [graph.get_tensor_by_name(names.parse(text).full) for text in texts]


def _rebuild(graph: Any, section: GradientSection) -> Iterator[tuple[str, str]]:
    """Build one section anew, and send the readers of the old gradients to the new ones.

    Yields each op that made an old gradient, with the one that makes the new gradient.
    """
    scopes = map(GRADIENT_SCOPE.match, [op.name for op in graph.get_operations()])
    after = map(graph.get_operation_by_name, section.after)
    # An op of a loop or branch is no such op: gradients in it wait for its pivot.
    with graph.control_dependencies([op for op in after if not op._get_control_flow_context()]):
        built_gradients = gradients(
            _tensors(graph, section.losses),
            _tensors(graph, (built.variable for built in section.gradients)),
            _tensors(graph, section.upstream) or None,
            name=names.fresh(section.scope.name, {match[1] for match in scopes if match}),
            gate_gradients=True,
            colocate_gradients_with_ops=False,
        )
    for built, gradient in zip(section.gradients, built_gradients, strict=True):
        _check_gradient(built, gradient, section)
        new = {built.values: gradient}
        if built.indices:
            new = {built.values: gradient.values, built.indices: gradient.indices}
        for text, tensor in new.items():
            [old] = _tensors(graph, [text])
            tensor = tf.cast(tf.convert_to_tensor(tensor), old.dtype.base_dtype)
            readers = [op for op in old.consumers() if not section.holds(op.name)]
            redirect([reader for reader in readers if reader is not tensor.op], old, tensor)
            yield old.op.name, tensor.op.name


def _check_gradient(built: BuiltGradient, gradient: Any, section: GradientSection) -> None:
    """Raise PatchError where nothing flows, or the optimizer cannot take what flows."""
    loss = ", ".join(section.losses)
    if gradient is None:
        raise PatchError(
            f"in the patched graph no gradient of {loss} flows to {built.variable}, which the "
            f"optimizer updates; @freeze(scope=...) takes variables out of the update instead (a "
            f"gradient of zero is not the same: Adam and momentum go on moving them)"
        )
    if built.indices and not isinstance(gradient, tf.IndexedSlices):
        updates = f"the optimizer updates {built.variable} by a sparse gradient"
        raise PatchError(f"{updates}, and in the patched graph it is dense")


def _warn_of_untrained(graph: Any, sections: Sequence[GradientSection]) -> None:
    """Say which trainable variables get a gradient now, and have no update, as they had none.

    The gradients are built in `graph`, which has been exported.
    """
    trained = {names.op_of(built.variable) for section in sections for built in section.gradients}
    trainable = graph.get_collection("trainable_variables")
    variables = [variable for variable in trainable if variable.op.name not in trained]
    losses = _tensors(graph, (text for section in sections for text in section.losses))
    flowing = gradients(losses, variables, name="untrained") if variables else []
    pairs = zip(variables, flowing, strict=True)
    if reached := [variable.op.name for variable, new in pairs if new is not None]:
        it = "it" if len(reached) == 1 else "them"
        warnings.warn(
            f"nothing updates {short(reached, MOST_NAMED)}: no gradient came to {it} when the "
            f"optimizer was built, so there is no update to rebuild, though in the patched graph a "
            f"gradient flows there; to train {it}, patch where the graph is built "
            f"(graphpatch.building) and make the optimizer there, or patch_graph before `minimize`",
            stacklevel=3,
        )


def _merge(
    meta: Any, live: Any, sections: Sequence[GradientSection], instead: Mapping[str, str]
) -> None:
    """Put into the file's MetaGraphDef what is new: nodes, inputs, functions, contexts.

    What did not change stays the NodeDef that it was.
    """
    before = {node.name: node for node in meta.graph_def.node}
    needed = _needed_names(live.graph_def.node, sections)
    places = {located(name): located(name) for name in needed}
    places |= {located(old): located(new) for old, new in instead.items() if old not in needed}
    nodes = []
    for node in live.graph_def.node:
        if node.name not in needed:
            continue
        old = before.get(node.name)
        if old is None and "MatMul" in node.op:
            for key in HINTS:  # which TensorFlow 1.15 would refuse, and which compute nothing
                node.attr.pop(key, None)
        nodes.append(old if old is not None and list(old.input) == list(node.input) else node)
        if COLOCATION in nodes[-1].attr:
            # What runs where an old gradient was made runs where the new one is.
            classes = nodes[-1].attr[COLOCATION].list.s
            moved = [places.get(text, b"") if text.startswith(LOC) else text for text in classes]
            classes[:] = list(filter(None, moved))
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(nodes)
    functions = {function.signature.name for function in meta.graph_def.library.function}
    added = (f for f in live.graph_def.library.function if f.signature.name not in functions)
    meta.graph_def.library.function.extend(added)
    meta.meta_info_def.stripped_op_list.CopyFrom(live.meta_info_def.stripped_op_list)
    without_ops(meta, live, needed)


def _needed_names(nodes: Iterable[Any], sections: Sequence[GradientSection]) -> set[str]:
    """Return the names of all ops but those of the old sections that nothing else reads."""
    inputs = {node.name: [names.op_of(text) for text in node.input] for node in nodes}
    return set(reached((n for n in inputs if not _is_old(n, sections)), inputs.__getitem__))


def _warn_of_old(nodes: Iterable[Any], sections: Sequence[GradientSection]) -> None:
    """Say which old gradients are still there, since something else reads them."""
    for section in sections:
        pairs = {
            names.op_of(text): f"{node.name} reads {names.op_of(text)}"
            for node in nodes
            if not section.holds(node.name)
            for text in node.input
            if section.holds(names.op_of(text))
        }
        if pairs:
            warnings.warn(
                f"{section.scope}: gradients that were built before stay for what reads them "
                f"besides updates of variables: {short(list(pairs.values()), MOST_NAMED)}",
                stacklevel=3,
            )
