"""Rules that are right, and do not match, or cannot be applied to what they match."""

from __future__ import annotations

from provoking.case import Case, gradient, match, patch, rule, typed

MATCHES: tuple[Case, ...] = (
    match("an op type in lower case", op="relu"),
    match("a typo in an op type", op="Rleu"),
    match("an op type that is not in the model", op="Conv2D"),
    match("a typo in a name", name="dens/Relu"),
    match("a tensor where a name is expected", name="dense/Relu:0"),
    match("* where ** is meant", name="*Relu"),
    match("a regular expression of a part of the name", name_regex="Relu"),
    match("two keys that no op meets", op="MatMul", name="out/**"),
    match("an attr that no op has", attr={"strides": [1, 2, 2, 1]}),
    match("a value of an attr that no op has", attr={"data_format": "NCHW"}),
    match("a dtype that no op has", dtype="float16"),
    match("a value that no op has", value=0.25),
    match("an attr of another op type", op="Relu", attr={"data_format": "NHWC"}),
    match("a function that is not there", op="Relu", body="f"),
    match("a tensor that is not there", between={"from": ["x"], "to": ["logits"]}),
    match("upstream of nothing", upstream_of=["x"]),
    match("a pattern in the wrong order", pattern="BiasAdd -> MatMul"),
    match("a pattern of types that are not there", pattern="Conv2D -> BiasAdd -> Relu"),
    match("a pattern with another input slot", pattern="m:MatMul -> b:1"),
    match("an input that is not there", inputs={"3": {"op": "MatMul"}}),
    rule("more matches than expected", expect=1),
    rule("fewer matches than expected", expect=3),
    gradient("a gradient for other op types", "maxpool_uniform"),
    patch("a surrogate for an op of two inputs", surrogate_gradient="x * x1"),
    rule("straight through an input that is not there", patch={"straight_through": {"input": 3}}),
    rule(
        "a noise that does not end",
        match={"name": "round"},
        patch={"backward_as": {"input": 0, "until": ["nowhere"]}},
    ),
    typed("@freeze without its scope", "apply @freeze model.pb"),
    typed("@freeze of a frozen model", "apply @freeze(scope=dense/**) model.pb"),
    typed("a recipe without its @", "apply guided_backprop model.pb"),
    match("a glob without the scopes before it", name="nse/*"),
    match("an op type that stands for one op twice", pattern="x:_ -> Add:0; y:_ -> Add:1"),
    typed("a second method on a patched model", "apply @deconvnet guided.pb"),
    typed("the same rules again", "apply rules.json patched.pb"),
)
