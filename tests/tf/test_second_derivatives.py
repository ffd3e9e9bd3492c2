"""Second derivatives: of gradient ops that have none in TensorFlow, and of gradients that we carry.

The former are checked by finite differences, the latter against closed form.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch import opdefs
from graphpatch.gradients.op_gradients import SECOND
from tests.examples import ROOT
from tests.tf import tensorflow1
from tests.tf.consumer import differentiate, imported, save, taped
from tests.tf.test_linear import CASES as CONSTRUCTIONS
from tests.tf.test_linear import rule_of

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.array([-1.5, -0.2, 0.3, 2.0], np.float32)


def derivative(function: Any, x: Any) -> Any:
    """The gradient on a tape."""
    return taped(function, x)[1]


def drawn(*shape: int) -> Any:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def distinct(*shape: int) -> Any:
    """Numbers that are far from each other, so that no small step changes which is the largest."""
    return (
        np.random.default_rng(0)
        .permutation(np.arange(np.prod(shape), dtype=np.float32))
        .reshape(shape)
    )


RAW = tf.raw_ops
POOL: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}
LIKE = np.zeros([2, 3, 5, 2], np.float32)
BOXES = np.array([[0.1, 0.2, 0.71, 0.83], [0.3, 0.07, 0.9, 0.6]], np.float32)


def resized(kind: str, **attrs: Any) -> Any:
    raw = getattr(RAW, f"Resize{kind}Grad")
    return lambda grads: raw(grads=grads, original_image=LIKE, **attrs), (drawn(2, 6, 7, 2),)


def pooled(batch_in_index: bool) -> Any:
    def build(x: Any, grad: Any) -> Any:
        attrs = {**POOL, "include_batch_in_index": batch_in_index}
        places = RAW.MaxPoolWithArgmax(input=x, **attrs).argmax
        return RAW.MaxPoolGradWithArgmax(input=x, grad=grad, argmax=places, **attrs)

    return build, (distinct(2, 3, 4, 2), drawn(2, 3, 4, 2))


def pooled_again(x: Any, grad: Any) -> Any:
    y = RAW.MaxPoolV2(input=x, **POOL)
    return RAW.MaxPoolGradGradV2(orig_input=x, orig_output=y, grad=grad, **POOL)


def normalized(**attrs: Any) -> Any:
    def build(grads: Any, x: Any) -> Any:
        y = RAW.LRN(input=x, **attrs)
        return RAW.LRNGrad(input_grads=grads, input_image=x, output_image=y, **attrs)

    return build, (drawn(1, 2, 3, 5), drawn(1, 3, 2, 5).transpose(0, 2, 1, 3))


def segmented(kind: str) -> Any:
    attrs = {"indices": [0, 3, 1, 3], "segment_ids": [0, 0, 1, 2], "output_dim0": 5}
    raw = getattr(RAW, f"SparseSegment{kind}Grad")
    return lambda grad: raw(grad=grad, **attrs), (drawn(3, 2),)


def fake_quantized(kind: str, low: Any, high: Any) -> Any:
    """The range is nudged, so that 0 is a level of it; its ends get what is outside."""

    def build(gradients: Any) -> Any:
        inputs = tf.constant([[-9, -0.9], [-1.3, 4.4], [2, 5.2]])
        raw = getattr(RAW, f"FakeQuantWithMinMaxVars{kind}Gradient")
        parts = raw(gradients=gradients, inputs=inputs, min=low, max=high, num_bits=4)
        return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)

    return build, (drawn(3, 2),)


# fmt: off
# What computes the gradient op of float placeholders, and their values.
GRADIENT_OPS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "CropAndResizeGradImage": (
        lambda grads, boxes: RAW.CropAndResizeGradImage(
            grads=grads, boxes=boxes, box_ind=[1, 0], image_size=[2, 6, 7, 3], T=tf.float32),
        (drawn(2, 4, 3, 3), BOXES)),
    "FakeQuantWithMinMaxArgsGradient": (
        lambda gradients: RAW.FakeQuantWithMinMaxArgsGradient(
            gradients=gradients, inputs=tf.constant([-9.0, -2.0, 0.5, 3.0, 7.0])),
        (drawn(5),)),
    "FakeQuantWithMinMaxVarsGradient": fake_quantized("", -1.2, 4.5),
    "FakeQuantWithMinMaxVarsGradient, of zero": fake_quantized("", 0.0, 0.0),
    "FakeQuantWithMinMaxVarsPerChannelGradient": fake_quantized(
        "PerChannel", [-1.2, 0.0], [4.5, 5.0]),
    "LRNGrad": normalized(depth_radius=1, bias=1.5, alpha=0.3, beta=0.75),
    "LRNGrad, defaults": normalized(),
    "MaxPoolGradGradV2": (pooled_again, (distinct(2, 3, 4, 2), drawn(2, 3, 4, 2))),
    "MaxPoolGradWithArgmax": pooled(False),
    "MaxPoolGradWithArgmax, of the batch": pooled(True),
    "ResizeBicubicGrad": resized("Bicubic", half_pixel_centers=True),
    "ResizeBilinearGrad": resized("Bilinear"),
    "ResizeBilinearGrad, corners": resized("Bilinear", align_corners=True),
    "ResizeNearestNeighborGrad": (
        lambda grads: RAW.ResizeNearestNeighborGrad(grads=grads, size=[3, 5]),
        (drawn(2, 6, 7, 2),)),
    "ScaleAndTranslateGrad": (
        lambda grads: RAW.ScaleAndTranslateGrad(
            grads=grads, original_image=LIKE, scale=[2.0, 1.5], translation=[0.5, -0.25],
            kernel_type="triangle", antialias=False),
        (drawn(2, 6, 7, 2),)),
    "SoftsignGrad": (
        lambda g, x: RAW.SoftsignGrad(gradients=g, features=x),
        (drawn(4), drawn(2, 2).reshape(4))),
    **{f"SparseSegment{kind}Grad": segmented(kind) for kind in ("Mean", "SqrtN", "Sum")},
}
# fmt: on


def test_every_gradient_op_has_its_differences() -> None:
    assert {name.partition(",")[0] for name in GRADIENT_OPS} == set(SECOND)


NOT_OF_NUMBERS = frozenset(
    "BroadcastGradientArgs RaggedTensorToVariantGradient SendTPUEmbeddingGradients StopGradient"
    " SparseMatrixSoftmaxGrad".split()
)


def test_the_page_names_each_gradient_op_without_a_gradient() -> None:
    """Of those that the files of TensorFlow call in which gradients are registered."""
    table = (ROOT / "docs/stored-gradients.md").read_text().partition("| op | TensorFlow |")[2]
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()[2:]]
    verdicts = {op: row[1:] for row in rows for op in row[0].split(", ")}
    texts = map(Path.read_text, Path(tf.__file__).parent.glob("python/**/*.py"))
    called = {
        call.replace("_", "")
        for text in texts
        if "RegisterGradient(" in text
        for call in re.findall(r"\w+(?=\()", text)
    }
    lacking = {
        op
        for op in opdefs.op_types()
        if re.search("Grad|Backprop", op)
        and op.lower() in called
        and opdefs.lookup(op).gradient != "registered"
    }
    assert lacking - NOT_OF_NUMBERS <= verdicts.keys()
    by_recipe = {op for op, (*_, last) in verdicts.items() if not last.startswith("no")}
    assert by_recipe == set(SECOND)


def written(name: str, folder: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """The graph of a loss of a gradient op, what it is fed, and what it is differentiated by."""
    build, values = GRADIENT_OPS[name]
    feeds = {f"x{place}": value for place, value in enumerate(values)}
    with tf1.Graph().as_default():
        y = build(*(tf1.placeholder(tf.float32, value.shape, x) for x, value in feeds.items()))
        weights = np.random.default_rng(9).normal(size=y.shape).astype(np.float32)
        tf.reduce_sum(y * weights, name="loss")
        meta = tf1.train.export_meta_graph(strip_default_attrs=True)  # 1.15 has not all
    path = folder / "model.pb"
    path.write_bytes(meta.graph_def.SerializeToString())
    return (path, feeds, ["x1:0"] if name.startswith("MaxPool") else [f"{x}:0" for x in feeds])


def differences(graph: bytes, feeds: dict[str, Any], name: str, step: float) -> Any:
    """The loss is linear, or smooth: the error of a central difference is of the step's square."""
    slopes = np.zeros(feeds[name].shape)
    graph_def = tf.compat.v1.GraphDef.FromString(graph)
    with tf.compat.v1.Graph().as_default(), tf.compat.v1.Session() as session:
        [loss] = tf.graph_util.import_graph_def(graph_def, return_elements=["loss:0"], name="")
        for index in np.ndindex(slopes.shape):
            moved = []
            for sign in (1, -1):
                value = feeds[name].copy()
                value[index] += sign * step
                given = {f"{key}:0": feed for key, feed in {**feeds, name: value}.items()}
                moved.append(float(session.run(loss, given)))
            slopes[index] = (moved[0] - moved[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize("runtime", ["2.x", pytest.param("1.15", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GRADIENT_OPS)
def test_a_gradient_op_has_its_true_gradient(name: str, runtime: str, tmp_path: Path) -> None:
    path, feeds, by = written(name, tmp_path)
    patched = graphpatch.apply("@second_derivatives", path).model
    patched.save(tmp_path / "patched.pb")
    graph = (tmp_path / "patched.pb").read_bytes()
    if runtime == "2.x":
        given = {f"{key}:0": value for key, value in feeds.items()}
        found = dict(
            zip(by, differentiate(tmp_path / "patched.pb", "loss:0", by, given), strict=True)
        )
    elif name == "SparseSegmentSumGrad":
        pytest.skip("TensorFlow 1.15 does not have it")
    else:
        asked = ["--gradients", "loss:0", *by]
        fetched = tensorflow1.fetch(graph, feeds, asked, tmp_path)
        found = {tensor: fetched[f"gradient:{tensor}"] for tensor in by}
    for tensor in by:
        step = 2e-3 if tensor == "x1:0" and name.startswith("Crop") else 0.02
        expected = differences(path.read_bytes(), feeds, tensor[:-2], step)
        np.testing.assert_allclose(found[tensor], expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", ["LRNGrad", "ResizeBilinearGrad"])
def test_without_it_tensorflow_raises_or_gives_none_and_doctor_offers_it(
    name: str, tmp_path: Path
) -> None:
    path, _, by = written(name, tmp_path)
    if name == "LRNGrad":
        with pytest.raises(LookupError, match="No gradient defined"):
            differentiate(path, "loss:0", by, {})
    else:
        assert differentiate(path, "loss:0", by, {}) == [None]
    diagnosis = graphpatch.diagnose(path, "x0", "loss", fix=True)
    assert "@second_derivatives" in diagnosis.pairs[0].findings[0].remedy
    patched = graphpatch.apply(diagnosis.rules, path).model
    assert graphpatch.diagnose(patched, "x0", "loss", run=True).ok


SECOND_OF_TANH = -2 * np.tanh(X) * (1 - np.tanh(X) ** 2)
# How it is stored, whether the program calls register_gradients, and what it gives or raises.
STORED: dict[tuple[str, bool], Any] = {
    ("construction", False): "no_second_derivative",
    ("construction", True): "no_second_derivative",
    ("function", False): "SymbolicGradient",
    ("function", True): SECOND_OF_TANH,
    ("attr", True): SECOND_OF_TANH,
}


@pytest.mark.parametrize(("emit", "is_registered"), STORED)
def test_second_derivatives_in_a_session(emit: str, is_registered: bool, tmp_path: Path) -> None:
    """As the table of docs/stored-gradients.md says."""
    factor = 2 if is_registered else 3  # a key of its own
    formula = {"formula": f"dy * (1 - y * y) * {factor}"}
    rule = {"match": {"op": "Tanh"}, "patch": {"override_gradient": formula}, "emit": emit}
    path = tmp_path / "patched.pb"
    model = save(lambda: tf.tanh(tf1.placeholder(tf.float32, [4], "x"), "y"), tmp_path / "model.pb")
    graphpatch.apply([rule], model).model.save(path)
    if is_registered:
        graphpatch.register_gradients(path)
    with imported(path).as_default() as graph, tf1.Session() as session:
        x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
        [dx] = tf1.gradients(y, x)
        np.testing.assert_allclose(
            session.run(dx, {x: X}), factor * (1 - np.tanh(X) ** 2), rtol=2e-6
        )
        expected = STORED[emit, is_registered]
        if isinstance(expected, str):
            with pytest.raises(LookupError, match=expected):
                tf1.gradients(dx, x)
            written = graphpatch.load(graph)
            diagnosis = graphpatch.diagnose(written, "x", dx.name, fix=True)
            kinds = {finding.kind for finding in diagnosis.pairs[0].findings}
            assert ("construction" in kinds) == (emit == "construction")
            assert diagnosis.rules == []
            with pytest.raises(graphpatch.GraphpatchError, match="match"):
                graphpatch.apply("@second_derivatives", written)
            return
        [second] = tf1.gradients(dx, x)  # y has the new gradient there, too
        np.testing.assert_allclose(
            session.run(second, {x: X}), factor * factor * expected, rtol=1e-5, atol=1e-6
        )


# Constructions in which no gradient flows through what multiplies dy.
FIXED = "scale, filter, constants, choice by a parameter, fixed matrix, forward of dy"


@pytest.mark.parametrize("name", [name for name, case in CONSTRUCTIONS.items() if case.is_linear])
def test_of_a_construction_it_is_right_or_raises(name: str, tmp_path: Path) -> None:
    """With respect to x, and to the upstream gradient v."""
    case, feeds = CONSTRUCTIONS[name], {"x": np.float32([-0.7, 0.2, 0.4])}

    def build() -> None:
        tf.identity(case.build(tf1.placeholder(tf.float32, [3], "x")), "y")

    path = save(build, tmp_path / "model.pb")
    result = graphpatch.apply([rule_of(case, "construction")], path)
    result.model.save(tmp_path / "patched.pb")
    notes = [note for note in result.report["notes"] if "second derivatives" in note]
    with imported(tmp_path / "patched.pb").as_default() as graph:
        x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
        feeds["v"] = drawn(*y.shape)
        v = tf1.placeholder(tf.float32, y.shape, "v")
        [dx] = tf1.gradients(y, x, v)
        loss = tf.reduce_sum(dx * [1.0, -2.0, 0.5], name="loss")
        if name not in FIXED.split(", "):
            assert len(notes) == 1
            with pytest.raises(LookupError, match="no_second_derivative"):
                tf1.gradients(loss, [x, v])
            return
        assert not notes
        seconds = tf1.gradients(loss, [x, v], unconnected_gradients="zero")
        with tf1.Session() as session:
            values = session.run(seconds, {f"{key}:0": value for key, value in feeds.items()})
        for key, value in zip("xv", values, strict=True):
            expected = differences(graph.as_graph_def().SerializeToString(), feeds, key, 0.02)
            np.testing.assert_allclose(value, expected, rtol=4e-3, atol=2e-3)


# Who asks, how the recipe is given, and of what there is a gradient penalty.
PENALTIES: dict[str, tuple[str, Any]] = {
    "22208": ("in place", lambda x: tf1.image.resize_nearest_neighbor(x, [6, 6])),
    "33751": ("building", lambda x: tf1.image.resize_bilinear(x, [6, 6])),
    "22825": ("in place", tf.nn.lrn),
    "cbfinn/maml 50": (
        "building",
        lambda x: tf.image.crop_and_resize(x, [[0.1, 0.2, 0.8, 0.9]], [0], [3, 3]),
    ),
    "11435, 6294": ("TensorFlow has it", lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID")),
}


@pytest.mark.parametrize("threads", PENALTIES)
def test_a_gradient_penalty_in_a_live_graph(threads: str) -> None:
    way, function = PENALTIES[threads]
    value = distinct(1, 4, 4, 1) / 4
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        x = tf1.placeholder(tf.float32, value.shape, "x")
        with graphpatch.building("@second_derivatives") if way == "building" else nullcontext():
            [dx] = tf1.gradients(function(x) ** 3 / 3, x)
        if way == "in place":
            graphpatch.patch_graph("@second_derivatives", graph, in_place=True)
        loss = tf.nn.l2_loss(dx, name="loss")
        [second] = session.run(tf1.gradients(loss, x), {x: value})
    expected = differences(graph.as_graph_def().SerializeToString(), {"x": value}, "x", 0.02)
    limit = 2e-3 * np.abs(expected).max()
    np.testing.assert_allclose(second, expected, rtol=4e-3, atol=limit)


def test_43648_nested_tapes_in_a_function() -> None:
    """Of x ** 3 / 3 in an enlarged image: each element of x is in four places."""

    @tf.function
    def slope(x: Any) -> Any:
        net = lambda x: tf.keras.layers.UpSampling2D(2)(x) ** 3 / 3  # noqa: E731
        with graphpatch.building("@second_derivatives"):
            return derivative(lambda x: tf.nn.l2_loss(derivative(net, x)), x)

    x = distinct(1, 2, 2, 1)
    np.testing.assert_allclose(slope(tf.constant(x)), 32 * x**3, rtol=1e-6)
