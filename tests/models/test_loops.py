"""Gradients through the v1 loops and branches of real graphs, against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
import graphpatch.keras
from tests.models import catalogue, differences

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1
ZOO = "zoo/KonduitAI+dl4j-test-resources__"
COSTS = "zoo/NVIDIA+tensorflow__costs_graph_properties_testdata_"
RANDOM = np.random.RandomState(3)
Given = Callable[[Any], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Loops:
    """A graph, the outputs behind its loops, what is varied, and what is fed besides."""

    outputs: tuple[str, ...]
    given: Given = differences.constants
    feeds: Mapping[str, Any] = field(default_factory=dict)
    double: bool = True
    step: float = 1e-4


def these(**given: np.ndarray) -> Given:
    return lambda graph_def: given


def features(*shape: int) -> Given:
    """What the ops before give that decode sound, which have no gradient."""
    return lambda graph_def: {
        node.name: RANDOM.randn(*shape) for node in graph_def.node if node.op == "Mfcc"
    }


def proposal_net(graph_def: Any) -> Mapping[str, np.ndarray]:
    found = differences.constants(graph_def)
    return {name: value for name, value in found.items() if name.startswith("pnet/") and value.ndim}


def variables(graph_def: Any) -> Mapping[str, np.ndarray]:
    return {
        node.name: 0.3 * RANDOM.standard_normal([dim.size for dim in node.attr["shape"].shape.dim])
        for node in graph_def.node
        if node.op == "VariableV2"
    }


SENTENCES = {
    "word_ids": [[1, 2, 3], [4, 5, 0]],
    "sequence_lengths": [3, 2],
    "char_ids": [
        [[1, 2, 3, 4], [5, 6, 7, 0], [8, 9, 0, 0]],
        [[1] + [0] * 3, [2] * 4, [3] + [0] * 3],
    ],
    "word_lengths": [[4, 3, 2], [1, 4, 1]],
    "labels": [[1, 2, 0], [3, 4, 0]],
    "dropout": 1.0,
}
FACES = {
    "input": RANDOM.rand(40, 48, 3) * 255,
    "min_size": 20.0,
    "thresholds": [0.0] * 3,
    "factor": 0.709,
}
BOTH = ("concat:0", "concat_1:0")
MODELS = {
    "mtcnn.pb": Loops(
        tuple(f"pnet/TensorArrayConcatV3{end}:0" for end in ("", "_1", "_2")),
        *(proposal_net, FACES, True, 1e-6),
    ),
    "lstm_crf_ner.meta": Loops(("Mean:0",), variables, SENTENCES),
    "kws_basic_lstm_s.pb": Loops(("labels_softmax:0",), features(1, 49, 10)),
    f"{ZOO}basicrnncell_dynamic": Loops(BOTH),
    f"{ZOO}lstmcell_dynamic": Loops(BOTH),
    f"{ZOO}examples_simplewhile_0": Loops(
        ("output:0",), these(input_0=RANDOM.rand(2, 2), input_1=np.array(10.0))
    ),
    "dl4j/simplewhile_nested.pb": Loops(
        ("output:0",), these(input_0=RANDOM.rand(2, 2), input_1=RANDOM.rand(3, 3))
    ),
    f"{COSTS}nested_loop": Loops(("while/Exit_1:0",)),
}
RANDOM_OPS = {"lstm_crf_ner.meta"}  # of a dropout; a tape would draw twice, and is refused


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    tf1.disable_control_flow_v2()
    yield
    tf1.enable_control_flow_v2()


@dataclass(frozen=True)
class Prepared:
    """The part of a graph that its outputs need, and what its placeholders are fed."""

    path: Path
    case: Loops
    given: Mapping[str, np.ndarray]
    feeds: Mapping[str, Any]


def prepared(start: str, tmp_path: Path) -> Prepared:
    case, target = MODELS[start], tmp_path / "opened.pb"
    (graph_def,) = catalogue.graph_defs(catalogue.existing(start))
    given, outputs = case.given(graph_def), [name.partition(":")[0] for name in case.outputs]
    opened = differences.fed_part(graph_def, given, outputs, case.double)
    target.write_bytes(opened.SerializeToString())
    names = {node.name for node in opened.node}
    given = {name: value for name, value in given.items() if name in names}
    feeds = {name: value for name, value in case.feeds.items() if name in names}
    return Prepared(target, case, given, feeds)


def compared(start: str, tmp_path: Path) -> differences.Compared:
    part = prepared(start, tmp_path)
    case = part.case
    return differences.compared(
        part.path, case.outputs, part.given, part.feeds, case.double, case.step
    )


@pytest.mark.parametrize("start", MODELS)
def test_the_gradient_is_the_derivative(start: str, tmp_path: Path) -> None:
    found = compared(start, tmp_path)
    assert found.tells, found
    assert found.agrees, found


@pytest.mark.parametrize("start", [start for start in MODELS if start not in RANDOM_OPS])
def test_a_tape_gives_what_a_session_gives(start: str, tmp_path: Path) -> None:
    part = prepared(start, tmp_path)
    inputs, outputs = {**part.given, **part.feeds}, list(part.case.outputs)
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        graphpatch.import_model(part.path)
        fed = {graph.get_tensor_by_name(f"{name}:0"): value for name, value in inputs.items()}
        xs = list(fed)[: len(part.given)]
        ys = list(map(graph.get_tensor_by_name, outputs))
        dxs = [dx for dx in tf1.gradients(ys, xs) if dx is not None]
        expected = session.run(ys + list(map(tf.convert_to_tensor, dxs)), fed)
    tensors = [tf.constant(value, x.dtype) for x, value in fed.items()]
    tf1.enable_control_flow_v2()  # as it is in TensorFlow 2
    layer = graphpatch.keras.PatchedModel(part.path, list(inputs), outputs)
    with tf.GradientTape() as tape:
        tape.watch(tensors[: len(xs)])
        values = layer(tensors)
    values = values if len(outputs) > 1 else [values]
    gradients = [dx for dx in tape.gradient(values, tensors[: len(xs)]) if dx is not None]
    for value, expected_value in zip([*values, *gradients], expected, strict=True):
        scale = np.abs(expected_value).max()
        np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=1e-7 * scale)


def test_the_branches_of_a_batch_norm(tmp_path: Path) -> None:
    """FusedBatchNorm has no float64; the gradient must be that of the graph without branches."""
    (graph_def,) = catalogue.graph_defs(catalogue.existing("face_corrector.pb"))
    straight = without_branches(graph_def)
    feeds = {"img": RANDOM.rand(2, 50, 50, 3), "training": False}
    answers = []
    for name, one in (("branched", graph_def), ("straight", straight)):
        (tmp_path / name).write_bytes(one.SerializeToString())
        with tf1.Graph().as_default() as graph:
            graphpatch.import_model(tmp_path / name)
            x, image = graph.get_tensor_by_name("X:0"), graph.get_tensor_by_name("img:0")
            there = {op.name for op in graph.get_operations()}
            fed = {f"{name}:0": value for name, value in feeds.items() if name in there}
            with tf1.Session(graph=graph) as session:
                answers.append(session.run([x, *tf1.gradients(x, image)], fed))
    assert np.abs(answers[0][1]).max() > 1e-4
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-5)
    scale = np.abs(answers[1][1]).max()
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=1e-4, atol=1e-5 * scale)


def without_branches(graph_def: Any) -> Any:
    """The graph as it is where all predicates are false."""
    found = tf1.GraphDef.FromString(graph_def.SerializeToString())
    for node in found.node:
        kept = [text for text in node.input if not text.startswith("^")]
        if node.op in {"Switch", "Merge"}:
            node.op = "Identity"
            del node.input[:]
            node.input.append(kept[0])
            node.attr.pop("N", None)
            node.attr.pop("_output_shapes", None)
    return tf1.graph_util.extract_sub_graph(found, ["X"])


REFUSED = {
    f"{COSTS}merge_without_loops": "Merge 'cond/Merge' has what is there if",
    "zoo/graphcore+tensorflow__tests_graphdef2mlir_multiple-use-next-iteration": "has no LoopConds",
}


def test_of_all_graphs_with_loops_or_branches_two_odd_ones_are_refused() -> None:
    from graphpatch.control_flow.rebuilt import with_contexts

    if not catalogue.models():
        pytest.skip(f"no real models in {catalogue.folder()}")
    refused, rebuilt = {}, 0
    for name, path in catalogue.models().items():
        for graph in graphpatch.load(path).graphs:
            try:
                rebuilt += bool(with_contexts(graph)[1])
            except graphpatch.GraphpatchError as error:
                refused[name] = str(error)
    assert len(refused) == len(REFUSED)
    for start, reason in REFUSED.items():
        (said,) = [text for name, text in refused.items() if name.startswith(start)]
        assert reason in said
    assert rebuilt >= 30
