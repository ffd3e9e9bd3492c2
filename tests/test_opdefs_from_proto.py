from __future__ import annotations

import pytest
from google.protobuf import text_format

from graphpatch.opdefs import Arg, AttrDef, OpDef, from_proto
from graphpatch.protos import AttrValue
from graphpatch.protos import OpDef as OpDefProto


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
    assert from_proto(text_format.Parse(text, OpDefProto())) == OpDef(
        "f",
        inputs=(
            Arg("x", "float16"),
            Arg("rest", type_attr="T", number_attr="N", dtype_default="int64", number_default=0),
        ),
        outputs=(
            Arg("v", "float32", is_ref=True),
            Arg("all", type_list_attr="Ts", dtypes_default=()),
        ),
        attrs=(
            AttrDef("T", "type", "int64"),
            AttrDef("N", "int", 0),
            AttrDef("Ts", "list(type)", ()),
        ),
        stateful=True,
        known_to="library",
    )


@pytest.mark.parametrize(
    ("value", "default"),
    [
        ("b: false", False),
        ("f: 0.5", 0.5),
        ("f: inf", "inf"),
        ('s: ""', ""),
        (r's: "\377"', "\\xff"),
        ("shape { dim { size: 2 } dim { size: -1 } }", (2, -1)),
        ("shape {}", ()),
        ("shape { unknown_rank: true }", "unknown"),
        ("list { f: 1 f: 2 }", (1.0, 2.0)),
        ("list { shape { dim { size: 3 } } }", ((3,),)),
        ("tensor { dtype: DT_BOOL }", "dtype: DT_BOOL"),
        ('func { name: "g" }', 'name: "g"'),
        ("", None),
    ],
)
def test_defaults_of_a_message(value: str, default: object) -> None:
    proto = OpDefProto(name="f")
    attr = proto.attr.add(name="a", type="any")
    attr.default_value.CopyFrom(text_format.Parse(value, AttrValue()))
    assert from_proto(proto).attrs == (AttrDef("a", "any", default),)  # type: ignore[arg-type]
