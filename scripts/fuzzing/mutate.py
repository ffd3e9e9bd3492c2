"""Models and texts, mutated: their bytes, the fields of their messages, their structure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from graphpatch.protos import GraphDef, MetaGraphDef

NUMBERS = (0, 1, -1, 2, 7, 99, 127, 2**31 - 1, -(2**31), 2**62, -(2**63))
NAMES = (
    "", "^", ":", "a:", ":0", "^^a", "x:99", "x:-1", "x:0:0", "relu:activations:0", "^x:0", "a//b",
    "/a", "a\x1b[31mred\x07", "\u202eabc", "n" * 300, "é", "_x", "x" * 5_000, "a\nb", "%s", "{}",
    "_graphpatch", "relu", "x", "f", "main", "*", "a b", "../../up", "a\x00b", "__proto__",
    "</script><script>alert(1)</script>", "<!--<img src=x onerror=alert(1)>",
)  # fmt: skip
BYTES = (
    b"\xff", b"loc:@x", b"loc:@\xff", b"loc:@none", b"loc:@", b"\xc3(", b"", b"a\x1b[2J",
)  # fmt: skip
TYPES = (
    "Relu", "Mul", "AddN", "Const", "Identity", "PartitionedCall", "While", "StatelessIf", "Switch",
    "Merge", "Enter", "Exit", "NextIteration", "IdentityN", "f", "g", "NoOp", "Placeholder",
    "Split",
    "ReadFile", "Nonsense", "", "SymbolicGradient", "Case", "ConcatV2", "LoopCond", "_Arg",
    "_Retval",
)  # fmt: skip

Change = Callable[[Any, Random], None]


def model(raw: bytes, suffix: str, rng: Random) -> bytes:
    """Return the model with some of its bytes, fields or structure changed."""
    if suffix == ".pbtxt" or rng.random() < 0.3:
        return changed_bytes(raw, rng)
    if rng.random() < 0.02:
        return repeated(raw, rng)
    message: Any = MetaGraphDef() if suffix == ".meta" else GraphDef()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return changed_bytes(raw, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        graph = message.graph_def if suffix == ".meta" else message
        change = rng.choice(FIELDS if rng.random() < 0.4 else STRUCTURE)
        target = message if change is any_field else graph
        if graph.node:
            change(target, rng)
    return bytes(message.SerializeToString())


def changed_bytes(raw: bytes, rng: Random) -> bytes:
    """Bytes flipped, put in, taken out, repeated; or the end cut off."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(found) + 1)
        length = min(rng.choice((1, 1, 2, 4, 16, 64)), len(found) - at)
        how = rng.randrange(6)
        if how == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(found):
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how == 2:
            found[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif how == 3:
            del found[at : at + length]
        elif how == 4:
            found[at:at] = found[at : at + length] * rng.choice((1, 2, 50))
        elif rng.random() < 0.3:
            del found[at:]
    return bytes(found)


def repeated(raw: bytes, rng: Random) -> bytes:
    """Add a field, empty or small, so often that a reader of each has much to do."""
    field = bytes((rng.choice((1, 2, 3, 4, 5, 8)) << 3 | 2,))
    content = rng.choice((b"", b"", b"\x0a\x00", b"\x12\x00", b"\x1a\x00", b"\x0a\x01a"))
    field += bytes((len(content),)) + content
    return raw + field * (rng.choice((10_000, 100_000, 500_000)) // len(field))


def text(value: str, words: tuple[str, ...], rng: Random) -> str:
    """Return a text with words or letters put in, taken out, repeated or swapped."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(value) + 1)
        end = at + rng.choice((0, 1, 2, 4, 10))
        put = (
            rng.choice(words)
            if rng.random() < 0.8
            else chr(rng.choice((0, 27, 127, 233, 0x202E, 48)))
        )
        if rng.random() < 0.15:
            put = (put or "(") * rng.choice((2, 20, 300, 3_000))
        value = value[:at] + put + value[end:]
    return value[:20_000]


def a_node(graph: Any, rng: Random) -> Any:
    """Return a node of the graph or of one of its functions."""
    every = [graph.node, *(one.node_def for one in graph.library.function)]
    return rng.choice(rng.choice([one for one in every if one]))


def any_field(message: Any, rng: Random) -> None:
    """Change some field of some message within: another value, gone, or there twice."""
    while True:
        fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
        field = rng.choice(fields)
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if rng.random() < 0.15:
            message.ClearField(field.name)
            return
        if is_map:
            entry = field.message_type.fields_by_name["value"]
            if entry.message_type is None or not value:
                return
            message = value[rng.choice(sorted(value))]
        elif hasattr(value, "extend"):
            if field.message_type is None:
                _any_scalars(value, field, rng)
                return
            if not value or rng.random() < 0.1:
                value.add()
                return
            if rng.random() < 0.1:
                value.append(rng.choice(value))
                return
            message = rng.choice(value)
        elif field.message_type is not None:
            message = value
        else:
            setattr(message, field.name, scalar(field, rng))
            return


def _any_scalars(values: Any, field: Any, rng: Random) -> None:
    put = scalar(field, rng)
    if values and rng.random() < 0.5:
        values[rng.randrange(len(values))] = put
    else:
        values.extend([put] * rng.choice((1, 1, 3)))


def scalar(field: Any, rng: Random) -> Any:
    """Return a value of a field's type that nobody expects."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        name = rng.choice(NAMES)
        return rng.choice((name.encode(), *BYTES)) if field.type == field.TYPE_BYTES else name
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 3e38))
    if kind == field.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 7, 19, 101, 120))
    number = rng.choice(NUMBERS)
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    unsigned = kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    return number % 2**bits if unsigned else (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def rename(graph: Any, rng: Random) -> None:
    node, name = a_node(graph, rng), rng.choice(NAMES)
    if rng.random() < 0.5:
        for other in graph.node:
            for place, read in enumerate(other.input):
                if read == node.name:
                    other.input[place] = name
    node.name = name


def shuffle(graph: Any, rng: Random) -> None:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def twice(graph: Any, rng: Random) -> None:
    node = graph.node.add()
    node.CopyFrom(a_node(graph, rng))
    if rng.random() < 0.5:
        node.name += "_copy"


def cut_inputs(graph: Any, rng: Random) -> None:
    node = a_node(graph, rng)
    del node.input[rng.randrange(len(node.input) + 1) :]


def swap_inputs(graph: Any, rng: Random) -> None:
    node = a_node(graph, rng)
    inputs = list(node.input)
    rng.shuffle(inputs)
    node.input[:] = inputs


def put_input(graph: Any, rng: Random) -> None:
    node, other = a_node(graph, rng), a_node(graph, rng)
    mark = rng.choice(
        ("{}", "^{}", "{}:0", "{}:1", "{}:99", "{}:output:0", "{}:output:99", "^{}:0")
    )
    read = rng.choice((mark.format(other.name), mark.format(other.name), rng.choice(NAMES)))
    node.input.insert(rng.randrange(len(node.input) + 1), read)


def retype(graph: Any, rng: Random) -> None:
    a_node(graph, rng).op = rng.choice(TYPES)


def swap_attrs(graph: Any, rng: Random) -> None:
    one, two = a_node(graph, rng), a_node(graph, rng)
    for key in rng.sample(sorted(one.attr), min(len(one.attr), 2)):
        two.attr[key].CopyFrom(one.attr[key])


# Attrs that TensorFlow or graphpatch gives a meaning, and those that ops have.
RESERVED = (
    "T", "N", "_graphpatch", "_gradient_op_type", "f", "_class", "_class", "value", "shape",
    "dtype", "shared_name", "container", "data_format", "padding", "_output_shapes", "frame_name",
    "is_constant", "_XlaCompile", "_XlaScope", "_noinline", "Tin", "Tout", "branches", "cond",
    "body", "then_branch", "else_branch", "parallel_iterations", "_num_original_outputs", "_pred",
)  # fmt: skip


def odd_attr(graph: Any, rng: Random) -> None:
    node = a_node(graph, rng)
    value = node.attr[rng.choice((*sorted(node.attr), *RESERVED))]
    if rng.random() < 0.3:
        value.list.s[:] = rng.sample(BYTES, rng.choice((0, 1, 2, 3)))
        return
    setattr(value, *rng.choice((
        ("s", rng.choice(NAMES).encode()), ("i", rng.choice(NUMBERS)), ("type", 1), ("b", True),
        ("type", 19), ("f", float("nan")), ("placeholder", "T"), ("s", rng.choice(BYTES)),
    )))  # fmt: skip
    if rng.random() < 0.2:
        value.func.name = rng.choice(("f", "g", "none", ""))


def forge(graph: Any, rng: Random) -> None:
    """Provenance that nobody wrote."""
    node = a_node(graph, rng)
    old = bytes(node.attr["_graphpatch"].s) or rng.choice((
        b"{}", b"[]", b'[{"rule":"r","did":"x"}]', b'{"version":1}', b"\xff", b"[" * 400, b"1",
    ))  # fmt: skip
    node.attr["_graphpatch"].s = changed_bytes(old, rng)


def call_itself(graph: Any, rng: Random) -> None:
    """Functions that call themselves or each other."""
    functions = graph.library.function
    if not functions:
        return
    one, two = rng.choice(functions), rng.choice(functions)
    node = one.node_def.add(name="again", op=two.signature.name)
    node.input.extend([arg.name for arg in one.signature.input_arg])
    if rng.random() < 0.5:
        node.op = "PartitionedCall"
        node.attr["f"].func.name = two.signature.name


def odd_function(graph: Any, rng: Random) -> None:
    functions = graph.library.function
    if not functions:
        return
    one = rng.choice(functions)
    how = rng.randrange(8)
    if how == 0:
        one.signature.name = rng.choice(NAMES)
    elif how == 1:
        one.ret[rng.choice([*one.ret, "b"])] = rng.choice([*NAMES, "r:99", "Add:output:99"])
    elif how == 2:
        functions.add().CopyFrom(one)
    elif how == 3:
        one.signature.input_arg.add(name=rng.choice(NAMES), type=1)
    elif how == 4:
        del one.node_def[:1]
    elif how == 5:
        del rng.choice((one.signature.input_arg, one.signature.output_arg))[:1]
    elif how == 6:
        one.ret.pop(rng.choice([*one.ret, "b"]), None)
    else:
        one.signature.output_arg.add(name=rng.choice([*one.ret, "c"]), type=rng.choice((1, 10)))


def call_another(graph: Any, rng: Random) -> None:
    """Add an op that calls a function which takes and gives something else."""
    functions, nodes = graph.library.function, [*graph.node]
    nodes += [node for one in functions for node in one.node_def]
    calls = [(node, key) for node in nodes for key in node.attr if node.attr[key].HasField("func")]
    if calls:
        node, key = rng.choice(calls)
        node.attr[key].func.name = rng.choice([*(one.signature.name for one in functions), "none"])


def wide(graph: Any, rng: Random) -> None:
    """Add an op that reads thousands of inputs."""
    node = a_node(graph, rng)
    count, read = rng.choice((3_000, 6_000)), [one for one in node.input if one[:1] != "^"][:1]
    node.op, node.input[:] = "AddN", (read or [a_node(graph, rng).name]) * count
    node.attr["N"].i = count


def long_list(graph: Any, rng: Random) -> None:
    """Add an op whose attr says how many outputs or inputs it has."""
    node = a_node(graph, rng)
    node.op, key = rng.choice((("Split", "num_split"), ("Unpack", "num"), ("AddN", "N")))
    node.attr[key].i = rng.choice((60_000, 65_536, 65_537, 1 << 26, (1 << 63) - 1, -1))


FIELDS: tuple[Change, ...] = (any_field,)
STRUCTURE: tuple[Change, ...] = (
    rename, shuffle, twice, cut_inputs, swap_inputs, put_input, put_input, retype, swap_attrs,
    odd_attr, odd_attr, forge, call_itself, odd_function, odd_function, call_another, wide,
    long_list,
)  # fmt: skip
