"""Ops that no gradient reaches, since tf.custom_gradient leads it past them.

tf.custom_gradient leaves an IdentityN with a key of its own (`CustomGradient-2`). It reads first
the results of the wrapped function, then what that function was given: arguments and variables. Its
gradient is None for the results, and what the user's function says for the others (the same in 1.15
and 2.21). So nothing flows back into the ops that compute the results, `tf.nn.swish` is one case.
"""

from __future__ import annotations

from graphpatch import names
from graphpatch.differentiation import flow
from graphpatch.differentiation.flow import CUSTOM, override_key
from graphpatch.graph.check import GRADIENT_SCOPE
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses


def hidden_ops(body: Body) -> dict[int, int]:
    """Return the ops that lie behind a tf.custom_gradient on all paths, with its IdentityN."""
    identities = body.by_type.get("IdentityN", ())
    customs = {n: _result_count(body, n) for n in identities if _is_custom(Node(body, n))}
    open_uses: dict[int, int] = {}
    hidden: dict[int, int] = {}
    todo = [(index, slot, index) for index, count in customs.items() for slot in range(count)]
    while todo:
        reader, slot, by = todo.pop()
        index = body.by_name.get(names.op_of(body.heads.inputs[reader][slot]))
        if index is None:
            continue
        if index not in open_uses:
            open_uses[index] = _open_uses(body, index, customs)
        open_uses[index] -= 1
        if not open_uses[index]:
            hidden[index] = by
            node = Node(body, index)
            slots = range(customs.get(index, 0), len(node.data_inputs))
            todo += [(index, slot, by) for slot in slots if _leads_back(node, slot, customs)]
    return hidden


def is_in_gradients(node: Node) -> bool:
    """Return whether tf.gradients added an op."""
    return GRADIENT_SCOPE.match(node.name) is not None


def is_swish(node: Node) -> bool:
    """Return whether an IdentityN with such a key is that of tf.nn.swish, as far as a graph tells.

    Its function computes x * sigmoid(x), or x * sigmoid(beta * x), of what the IdentityN reads
    behind the result. TensorFlow's gradient of it is that of these ops. What grad_pass_through and
    recompute_grad leave is what an author's leaves, op for op.
    """
    reads = list(map(names.parse, node.data_inputs))
    if not _is_custom(node) or len(reads) not in (2, 3):
        return False
    gate = _producer(node.body, _other_factor(node.body, reads[0], reads[1]))
    if gate is None or gate.op != "Sigmoid":
        return False
    scaled = names.parse(gate.data_inputs[0])
    if len(reads) == 2:
        return scaled == reads[1]
    return _other_factor(node.body, scaled, reads[1]) == reads[2]


def _producer(body: Body, tensor: names.TensorName | None) -> Node | None:
    index = None if tensor is None else body.by_name.get(tensor.op)
    return None if index is None else Node(body, index)


def _other_factor(
    body: Body, product: names.TensorName, factor: names.TensorName
) -> names.TensorName | None:
    """Return what the Mul that gives a product reads besides a factor; None for another op."""
    node = _producer(body, product)
    factors = list(map(names.parse, node.data_inputs)) if node and node.op == "Mul" else []
    if factor not in factors:
        return None
    factors.remove(factor)
    return factors[0]


def _is_custom(node: Node) -> bool:
    return (override_key(node) or "").startswith(CUSTOM)


def _result_count(body: Body, index: int) -> int:
    """Return how many of its inputs are results: nothing reads the outputs for the others.

    Nothing but tf.gradients, which makes zeros of their shapes. A result that nothing reads either
    has the Identity beside it, unless the graph was pruned.
    """
    node, ops, readers = Node(body, index), body.heads.ops, body.readers
    read = [
        body.heads.inputs[reader][slot]
        for reader, slot in readers.get(node.name, ())
        if not flow.reads_shape_alone(ops[reader])
    ]
    read += [body.ret[key] for key in body.returned.get(node.name, ())]
    places = [names.parse(text).index for text in read if not text.startswith("^")]
    ops_read = list(map(names.op_of, node.data_inputs))
    idle = {
        op: any(_is_idle_identity(Node(body, reader)) for reader, _ in readers[op])
        for op in set(ops_read)
    }
    places += [slot for slot, op in enumerate(ops_read) if idle[op]]
    return 1 + max(places, default=0)


def _is_idle_identity(node: Node) -> bool:
    """Return whether nothing reads an Identity: tf.custom_gradient leaves such ones."""
    is_read = node.body.returned.get(node.name) or node.body.readers.get(node.name)
    return node.op == "Identity" and not is_read


def _open_uses(body: Body, index: int, customs: dict[int, int]) -> int:
    """Count the uses of an op by which a gradient may come back to it, or would but for these."""
    name = body.heads.names[index]
    uses = (_leads_back(Node(body, n), slot, customs) for n, slot, _ in data_uses(body, name))
    return sum(uses) + len(body.returned.get(name, ()))


def _leads_back(node: Node, slot: int, customs: dict[int, int]) -> bool:
    """Return whether a gradient can come back by an input of an op: it leads to a loss."""
    if node.index in customs:
        return True
    if is_in_gradients(node) or flow.is_none(node, slot) or _is_idle_identity(node):
        return False
    outputs = node.outputs
    return outputs is None or any(flow.is_asked_for(arg) for arg in outputs)
