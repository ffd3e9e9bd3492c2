from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

import graphpatch.opdefs
from graphpatch import opdefs, protos
from graphpatch.errors import ModelError
from graphpatch.opdefs import (
    DIFFERENTIABLE,
    DTYPE_NAMES,
    Arg,
    FlatArg,
    FlatArgs,
    OpDef,
    flatten,
    from_proto,
    is_ref,
    lookup,
    tensor_index,
)
from graphpatch.protos import POOL, AttrValue
from graphpatch.protos import OpDef as OpDefProto
from tests.examples import ROOT

TABLE = Path(graphpatch.opdefs.__file__).with_name("data") / "opdefs.json"


def known(op_type: str) -> OpDef:
    found = lookup(op_type)
    assert found is not None, op_type
    return found


def attrs(**texts: str) -> Callable[[str], AttrValue | None]:
    """A node's attrs, each as the text of its AttrValue."""
    return {key: text_format.Parse(text, AttrValue()) for key, text in texts.items()}.get


# The table


def test_an_op_as_it_is_described() -> None:
    features, activations = (Arg(name, type_attr="T") for name in ("features", "activations"))
    relu = known("Relu")
    assert (relu.inputs, relu.outputs) == ((features,), (activations,))
    assert [(attr.name, attr.type) for attr in relu.attrs] == [("T", "type")]
    assert (relu.gradient, relu.keeps_shape) == ("registered", (0,))
    assert lookup("NoSuchOp") is None


def test_the_table_has_an_op_a_line_in_order_and_stays_small() -> None:
    first, *lines, last = TABLE.read_text(encoding="utf-8").splitlines()
    assert (first[-7:], last) == ('"ops":{', "}}")
    names = [json.loads(line.partition(":")[0]) for line in lines]
    assert opdefs.op_types() == names == sorted(set(names))
    assert all(known(name).name == name for name in names)
    assert len(names) > 2000
    assert TABLE.stat().st_size + TABLE.with_suffix(".bin").stat().st_size < 500_000


def test_flags() -> None:
    versions = [known(op).known_to for op in ("Relu", "TensorMapErase", "Resampler")]
    assert versions == ["both", "2", "1"]
    ops = ("AddV2", "Mul", "Equal", "Add", "Sub")  # Add also joins strings
    assert [known(op).commutative for op in ops] == [True, True, True, False, False]


# What keeps the shape


@pytest.mark.parametrize(
    ("inputs", "broadcasts", "ops"),
    [
        ((0,), False, "Relu Relu6 Elu Round Floor Ceil Rint Sign Identity StopGradient Tanh Exp"),
        ((0,), False, "FakeQuantWithMinMaxVars QuantizeAndDequantizeV2 Snapshot OnesLike Print"),
        ((0,), False, "Cast Softmax Cumsum ClipByValue Bucketize IdentityN Switch IsNan"),
        ((0, 1), False, "AddN ReluGrad"),
        ((1, 2), False, "Select"),
        ((0, 1), True, "Mul Add AddV2 Sub RealDiv Maximum Less LogicalAnd FloorMod Pow"),
        ((0, 1, 2), True, "SelectV2"),
    ],
)
def test_ops_that_keep_the_shape(inputs: tuple[int, ...], broadcasts: bool, ops: str) -> None:
    for op in ops.split():
        assert (known(op).keeps_shape, known(op).broadcasts) == (inputs, broadcasts), op


def test_ops_that_do_not() -> None:
    others = (
        "MatMul Sum ArgMax Conv2D MaxPool Pad Tile Transpose Reshape Squeeze Bitcast ConcatV2 Pack"
        " Split Slice GatherV2 OneHot Shape Merge Where Const Placeholder PartitionedCall RFFT"
        " MatrixDiag SegmentSum BroadcastTo XlaSpmdFullToShardShape TPUPartitionedInputV2"
    )
    for op in map(known, others.split()):
        assert (op.keeps_shape, op.broadcasts) == ((), False), op.name


# The tensors of a node

FLOAT, INT, FLOAT_REF = "type: DT_FLOAT", "type: DT_INT32", "type: DT_FLOAT_REF"

TENSORS = [
    ("inputs", "Relu", {"T": FLOAT}, "features:0 float32"),
    ("inputs", "Relu", {}, "features:0 None"),
    ("inputs", "Relu", {"T": "type: 99"}, "features:0 None"),
    ("inputs", "LeakyRelu", {}, "features:0 float32"),
    ("inputs", "Identity", {"T": FLOAT_REF}, "input:0 float32 ref"),
    ("inputs", "Assign", {"T": FLOAT}, "ref:0 float32 ref, value:0 float32"),
    ("inputs", "ConcatV2", {"N": "i: 1", "T": FLOAT}, "values:0 float32, axis:0 int32"),
    ("inputs", "AddN", {"N": "i: 0", "T": FLOAT}, ""),
    ("inputs", "PartitionedCall", {"Tin": "list { type: [DT_FLOAT, DT_INT32_REF] }"},
     "args:0 float32, args:1 int32 ref"),
    ("inputs", "Print", {"T": FLOAT, "U": "list {}"}, "input:0 float32"),
    ("outputs", "TopKV2", {"T": FLOAT}, "values:0 float32, indices:0 int32"),
    ("outputs", "Unpack", {"num": "i: 2", "T": INT}, "output:0 int32, output:1 int32"),
    ("outputs", "Assert", {}, ""),
]  # fmt: skip


def flat(text: str) -> FlatArg:
    """A tensor that is written as `name:index dtype`, with `ref` behind it."""
    name, dtype, *ref = text.split()
    name, _, index = name.partition(":")
    return FlatArg(name, int(index), None if dtype == "None" else dtype, bool(ref))


@pytest.mark.parametrize(("which", "op", "node", "expected"), TENSORS)
def test_tensors_of_a_node(which: str, op: str, node: dict[str, str], expected: str) -> None:
    tensors = flatten(known(op), getattr(known(op), which), attrs(**node))
    assert tensors == [flat(one) for one in expected.split(", ") if one]


def test_a_length_that_the_node_leaves_to_the_default() -> None:
    op = known("ParseSingleSequenceExample")
    names = [flat.name for flat in flatten(op, op.inputs, attrs(Ncontext_dense="i: 2"))]
    assert (names.count("context_dense_keys"), names.count("context_sparse_keys")) == (2, 0)
    proto = OpDefProto(name="f", input_arg=[{"name": "x", "type_list_attr": "T"}])
    default = text_format.Parse("list { type: [DT_INT32, DT_STRING] }", AttrValue())
    proto.attr.add(name="T", type="list(type)", default_value=default)
    listed = from_proto(proto)
    assert [flat.dtype for flat in flatten(listed, listed.inputs, attrs())] == ["int32", "string"]


@pytest.mark.parametrize(
    ("op", "node", "words"),
    [
        ("AddN", {"T": FLOAT}, ["'N'", "missing", "no default", "'inputs'"]),
        ("AddN", {"N": "i: -1"}, ["'N'", "-1", "0 or more"]),
        ("AddN", {"N": 's: "2"'}, ["'N'", '"2"', "int"]),
        ("AddN", {"N": 'placeholder: "N"'}, ["'N'", "placeholder"]),
        ("IdentityN", {}, ["'T'", "missing", "list of dtypes", "'input'"]),
        ("IdentityN", {"T": FLOAT}, ["'T'", "DT_FLOAT", "list of dtypes"]),
    ],
)
def test_a_length_that_cannot_be_known(op: str, node: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        flatten(known(op), known(op).inputs, attrs(**node))
    assert [word for word in (*words, "it must be") if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_a_tensor_of_a_list_is_counted_to_and_not_searched() -> None:
    names = ["before", *["out"] * 1000, "behind"]
    tensors = FlatArgs(FlatArg(name, 0, "float32", False) for name in names)
    assert list(tensors.first.items()) == [("behind", 1001), ("out", 1), ("before", 0)]
    assert tensor_index(tensors, "out", 999) == 1000
    assert tensor_index(tensors, "behind", 0) == 1001
    assert tensor_index(tensors, "out", 1000) is None
    assert tensor_index(tensors, "other", 0) is None
    assert [tensor_index(list(tensors), name, 0) for name in ("out", "other")] == [1, None]


def test_a_signature_as_an_op_type() -> None:
    text = """
        name: "f" is_stateful: true
        input_arg { name: "x" type: DT_HALF }
        input_arg { name: "rest" type_attr: "T" number_attr: "N" }
        output_arg { name: "v" type: DT_FLOAT_REF }
        output_arg { name: "all" type_list_attr: "Ts" }
        attr { name: "T" type: "type" default_value { type: DT_INT64 } }
        attr { name: "N" type: "int" default_value { i: 0 } }
        attr { name: "Ts" type: "list(type)" default_value { list {} } }
    """
    proto = text_format.Parse(text, OpDefProto())
    assert from_proto(proto) == OpDef(
        "f",
        inputs=(Arg("x", "float16"), Arg("rest", type_attr="T", number_attr="N")),
        outputs=(Arg("v", "float32", is_ref=True), Arg("all", type_list_attr="Ts")),
        attrs=tuple(proto.attr),
        defaults={"T": "int64", "N": 0, "Ts": []},
        stateful=True,
        known_to="library",
    )


@pytest.mark.parametrize(
    ("value", "default"),
    [
        ("b: false", False),
        ("f: 0.5", 0.5),
        ("f: inf", float("inf")),
        ("f: 0.2", struct.unpack("f", struct.pack("f", 0.2))[0]),
        ('s: ""', ""),
        (r's: "\377"', "\\xff"),
        ("shape { dim { size: 2 } dim { size: -1 } }", [2, -1]),
        ("shape {}", []),
        ("shape { unknown_rank: true }", None),
        ("list { f: 1 f: 2 }", [1.0, 2.0]),
        ("list { shape { dim { size: 3 } } }", [[3]]),
        ("tensor { dtype: DT_BOOL }", {"tensor": "bool", "shape": []}),
        ('func { name: "g" }', "g"),
        ("", None),
    ],
)
def test_defaults_of_a_message(value: str, default: object) -> None:
    proto = OpDefProto(name="f")
    attr = proto.attr.add(name="a", type="any")
    attr.default_value.CopyFrom(text_format.Parse(value, AttrValue()))
    assert from_proto(proto).defaults == {"a": default}


SPELLED_OTHERWISE = {"float": "float32", "double": "float64", "half": "float16"}


def test_every_number_of_the_enum_has_its_name() -> None:
    for key, number in EnumTypeWrapper(POOL.FindEnumTypeByName("tensorflow.DataType")).items():
        if key != "DT_INVALID":
            spelled = key.removeprefix("DT_").removesuffix("_REF").lower()
            assert DTYPE_NAMES[number] == SPELLED_OTHERWISE.get(spelled, spelled), key
            assert is_ref(number) == key.endswith("_REF"), key
    assert set(DTYPE_NAMES.values()) >= DIFFERENTIABLE


# The messages of models: their descriptors, and the pool that they are in.


def test_the_messages_are_those_of_tensorflow_in_a_pool_of_their_own() -> None:
    """Both classes live in one process, and each reads what the other wrote."""
    tf = pytest.importorskip("tensorflow")
    from make_protos import OUTPUT, descriptors

    stored = protos.FileDescriptorSet.FromString(OUTPUT.read_bytes())
    assert {file.name for file in stored.file} == {file.name for file in descriptors().file}
    message = protos.GraphDef(node=[protos.NodeDef(name="x", op="Placeholder")])
    theirs = tf.compat.v1.GraphDef.FromString(message.SerializeToString())
    assert type(theirs) is not protos.GraphDef
    assert protos.GraphDef.FromString(theirs.SerializeToString()) == message


def test_nothing_of_tensorboard_is_imported_or_required() -> None:
    program = "import sys, graphpatch.protos, graphpatch.page.events; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not {"tensorboard", "tensorflow", "grpc"} & set(done.stdout.split())
    assert "tensorboard" not in (ROOT / "setup.cfg").read_text()
    sources = list((ROOT / "graphpatch").rglob("*.py"))
    assert [path for path in sources if "tensorboard.compat" in path.read_text()] == []
