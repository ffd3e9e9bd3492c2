"""Contexts of v1 loops and branches, rebuilt for graphs that were frozen.

What TensorFlow wrote when it built the graph is the oracle: message by message, and the gradients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.control_flow.rebuilt import with_contexts
from graphpatch.errors import GraphpatchError, MatchError, ModelError, PatchError
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import EXITS
from graphpatch.graph.wire import Source
from graphpatch.runtime.tf_gradients import control_flow
from tests.draws import quick
from tests.tf import loop_graphs, tensorflow1
from tests.tf.consumer import same_bits

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Build = Callable[[Any, Any, Any], Any]
KINDS = {"while_context": "WhileContextDef", "cond_context": "CondContextDef"}
IN_BRIEF = ("nested", "branch_in_loop")
LOOPS = [build for build in loop_graphs.GRAPHS if "branch" not in build.__name__]


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    with control_flow(False):
        yield


@pytest.fixture(params=loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def build(request: pytest.FixtureRequest) -> Build:
    found: Build = request.param
    return found


def contexts(meta: Any) -> dict[str, list[Any]]:
    from tensorflow.core.protobuf import control_flow_pb2

    return {
        key: [getattr(control_flow_pb2, kind).FromString(raw) for raw in held.bytes_list.value]
        for key, kind in KINDS.items()
        if (held := meta.collection_def.get(key)) is not None
    }


def rebuilt(graph_def: Any) -> Any:
    data = graph_def.SerializeToString()
    graph, fields = with_contexts(ModelGraph.open(Source(data), 0, len(data)))
    assert len(graph.main) == len(graph_def.node)  # nothing was pruned
    return tf1.MetaGraphDef.FromString(fields)


def frozen(meta: Any, path: Path) -> Path:
    """What freezing leaves of a graph: the ops that y needs, without contexts."""
    kept = tf1.graph_util.extract_sub_graph(meta.graph_def, ["y"])
    path.write_bytes(kept.SerializeToString())
    return path


def expected(meta: Any) -> list[Any]:
    with tf1.Graph().as_default() as graph:
        tf1.train.import_meta_graph(meta)
    found: list[Any] = loop_graphs.answers(tf1, graph)
    return found


def imported(model: Any, **options: Any) -> list[Any]:
    with tf1.Graph().as_default() as graph:
        graphpatch.import_model(model, **options)
    found: list[Any] = loop_graphs.answers(tf1, graph)
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        same_bits(np.asarray(a), np.asarray(b))
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    )


def test_they_are_those_that_tensorflow_wrote_wherever_exits_stand(build: Build) -> None:
    """The file may list them last to first: TensorFlow pairs them with the loop's variables."""
    meta = loop_graphs.built(tf1, build)
    turned = tf1.GraphDef()
    turned.CopyFrom(meta.graph_def)
    exits = [place for place, node in enumerate(turned.node) if node.op in EXITS]
    for place, other in zip(exits, reversed(exits), strict=True):
        turned.node[place].CopyFrom(meta.graph_def.node[other])
    assert contexts(meta)
    assert contexts(rebuilt(meta.graph_def)) == contexts(rebuilt(turned)) == contexts(meta)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs as TensorFlow 1.15 builds them."""
    folder = tmp_path_factory.mktemp("built")
    tensorflow1.ran(*script("write", folder), cwd=folder)
    return folder


def script(job: str, folder: Path) -> list[str]:
    """What builds or differentiates in a process of its own, in which there is no graphpatch."""
    return [str(Path(loop_graphs.__file__)), job, str(folder)]


def test_they_are_those_that_tensorflow_1_wrote(build: Build, old: Path) -> None:
    meta = tf1.MetaGraphDef.FromString((old / f"{build.__name__}.meta").read_bytes())
    assert contexts(meta)
    assert contexts(rebuilt(meta.graph_def)) == contexts(meta)


@pytest.mark.every(4)
def test_a_frozen_graph_has_the_gradients_of_the_one_it_was(build: Build, tmp_path: Path) -> None:
    meta = loop_graphs.built(tf1, build)
    assert same(imported(frozen(meta, tmp_path / "model.pb")), expected(meta))


@pytest.mark.slow
def test_the_meta_that_apply_writes_needs_no_graphpatch(tmp_path: Path) -> None:
    wanted, folder = {}, tmp_path / "written"
    folder.mkdir()
    nothing = {"match": {"op": "None"}, "patch": {"stop_gradient": True}, "expect": {"min": 0}}
    for build in loop_graphs.GRAPHS:
        meta = loop_graphs.built(tf1, build)
        wanted[build.__name__] = expected(meta)
        result = graphpatch.apply([nothing], frozen(meta, tmp_path / "model.pb"))
        result.model.save(folder / f"{build.__name__}.meta")
    for python in filter(None, [sys.executable, os.environ.get(tensorflow1.VARIABLE)]):
        tensorflow1.ran(*script("answer", folder), cwd=folder, executable=python)
        found = np.load(folder / "answers.npz")
        assert set(found) == wanted.keys()
        for name, values in wanted.items():
            # Another TensorFlow has other kernels: the last bits may differ.
            np.testing.assert_allclose(found[name], values, rtol=3e-6, err_msg=name)


BODIES = quick(
    ((build, emit) for build in loop_graphs.GRAPHS for emit in ("auto", "function")),
    lambda build, emit: (build.__name__, emit) == ("branch_in_loop", "function"),
)


@pytest.mark.parametrize(("build", "emit"), BODIES)
def test_a_patch_in_a_body_means_the_same_by_way_of_a_pb(
    build: Build, emit: str, tmp_path: Path
) -> None:
    """The contexts of a patched GraphDef, rebuilt, are as good as those that a .meta kept."""
    meta = loop_graphs.built(tf1, build)
    (tmp_path / "model.meta").write_bytes(meta.SerializeToString())
    patch = {"filter_gradient": {"scale": 0.5}}
    rule = {"match": {"op": ["Tanh", "Sin", "Mul"]}, "patch": patch, "emit": emit}
    wanted = graphpatch.apply([rule], tmp_path / "model.meta").model
    found = graphpatch.apply([rule], frozen(meta, tmp_path / "model.pb")).model
    assert same(imported(found), imported(wanted))
    found.save(tmp_path / "patched.meta")
    assert same(imported(tmp_path / "patched.meta"), imported(wanted))
    assert not same(imported(found), expected(meta))


@pytest.mark.slow
@pytest.mark.parametrize("build", LOOPS, ids=lambda build: build.__name__)
def test_a_patch_at_the_borders_of_a_loop(build: Build, tmp_path: Path) -> None:
    path = frozen(meta := loop_graphs.built(tf1, build), tmp_path / "model.pb")
    patch = {"filter_gradient": {"registered": "Identity"}}
    types, done = ["Enter", "Exit", "Merge", "Switch", "NextIteration"], 0
    for at in ("inputs", "outputs"):
        for op in types:
            rule = {"match": {"op": op, "dtype": "float32"}, "patch": {**patch, "at": at}}
            try:
                found = graphpatch.apply([rule], path).model
            except (MatchError, PatchError):
                continue  # there is no such op, or no patch can stand there
            done += 1
            assert same(imported(found), expected(meta)), (op, at)
    assert done >= 3


@pytest.mark.every(2)
@pytest.mark.parametrize("with_contexts_in_file", [True, False])
def test_a_saved_model_keeps_them_or_has_them_rebuilt(
    with_contexts_in_file: bool, tmp_path: Path
) -> None:
    meta = loop_graphs.built(tf1, loop_graphs.branch_in_loop)
    held = tf1.MetaGraphDef.FromString(meta.SerializeToString())
    held.meta_info_def.tags.append("serve")
    if not with_contexts_in_file:
        held.collection_def.clear()
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[held])
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(saved.SerializeToString())
    patch = {"filter_gradient": {"registered": "Identity"}}
    result = graphpatch.apply([{"match": {"op": "Tanh"}, "patch": patch}], tmp_path / "saved")
    result.model.save(tmp_path / "patched")
    with tf1.Session(graph=tf1.Graph()) as session:
        tf1.saved_model.load(session, ["serve"], str(tmp_path / "patched"))
        assert same(loop_graphs.answers(tf1, session.graph), expected(meta))
    assert same(imported(tmp_path / "saved"), expected(meta))


@pytest.mark.parametrize("build", quick(loop_graphs.GRAPHS, lambda b: b.__name__ in IN_BRIEF))
def test_7404_what_is_read_instead_gets_the_gradient(build: Build, tmp_path: Path) -> None:
    # 7404, 1758: a loop that reads tensors of the graph that it is imported into.
    meta = loop_graphs.built(tf1, build)
    path, want = frozen(meta, tmp_path / "model.pb"), expected(meta)
    for name in ("", "net"):
        with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
            x, w = (tf1.placeholder(tf.float32, [], f"mine/{key}") for key in "xw")
            doubled = tf1.get_variable("doubled", [], initializer=tf1.zeros_initializer())
            graphpatch.import_model(path, name=name, input_map={"x": x, "w:0": w + doubled})
            y = graph.get_tensor_by_name(f"{name}/y:0".lstrip("/"))
            fetches = [y, *tf1.gradients(y, [x, w]), *tf1.gradients(y, doubled)]
            session.run(doubled.initializer)
            feeds = [{x: one, w: other} for one, other in loop_graphs.FEEDS]
            found = [session.run(fetches, one) for one in feeds]
        assert same([one[:3] for one in found], want)
        assert all(one[3] == one[2] for one in found)


def test_what_input_map_names_must_be_there(tmp_path: Path) -> None:
    path = frozen(loop_graphs.built(tf1, loop_graphs.counted), tmp_path / "model.pb")
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float32, [])
        with pytest.raises(ModelError, match="input_map: there is no tensor xx; nearest: x"):
            graphpatch.import_model(path, input_map={"xx": x})
        with pytest.raises(ModelError, match="does not import it"):
            graphpatch.import_model(path, input_map={"x": tf.cast(x, tf.int32)})


def test_a_loop_of_which_an_optimiser_left_little(tmp_path: Path) -> None:
    """Identities gone, and Switches that read the same made one."""
    for build in (loop_graphs.branch_in_loop, loop_graphs.branches_in_branches_in_loop):
        meta = loop_graphs.built(tf1, build)
        kept = tf1.graph_util.extract_sub_graph(meta.graph_def, ["y"])
        merged = without_duplicates(kept)
        assert len(merged.node) < len(kept.node)
        (tmp_path / "model.pb").write_bytes(merged.SerializeToString())
        assert same(imported(tmp_path / "model.pb"), expected(meta))


def without_duplicates(graph_def: Any) -> Any:
    """The graph with equal Switches made one, as optimisers do."""
    first: dict[str, str] = {}
    merged = {
        node.name: first.setdefault(f"{list(node.input)}", node.name)
        for node in graph_def.node
        if node.op == "Switch"
    }
    left = (node for node in graph_def.node if merged.get(node.name, node.name) == node.name)
    found = tf1.GraphDef(versions=graph_def.versions, node=left)
    for node in found.node:
        for slot, text in enumerate(node.input):
            op, colon, output = text.partition(":")
            node.input[slot] = merged.get(op, op) + colon + output
    return found


def test_it_is_told_where_gradients_need_another_switch_of_tensorflow(tmp_path: Path) -> None:
    path = frozen(loop_graphs.built(tf1, loop_graphs.recurrent), tmp_path / "model.pb")
    tf1.enable_control_flow_v2()
    with tf1.Graph().as_default(), pytest.warns(UserWarning, match="disable_control_flow_v2"):
        graphpatch.import_model(path)


def test_it_is_told_where_there_is_no_graph_to_import_into(tmp_path: Path) -> None:
    path = frozen(loop_graphs.built(tf1, loop_graphs.counted), tmp_path / "model.pb")
    with pytest.raises(GraphpatchError, match=r"with tf.Graph\(\).as_default\(\)"):
        graphpatch.import_model(path)
    with tf1.Graph().as_default(), pytest.raises(GraphpatchError, match="must choose one"):
        graphpatch.import_model(path, tags="serve")
