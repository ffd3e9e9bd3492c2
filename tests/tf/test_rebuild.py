"""Training graphs whose gradients are built already, patched with these built anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.runtime.tf_gradients import control_flow

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

KEY = "ReversedInTrainingGraphs"
STEPS, SEED, SIZE = 20, 3, 6
REVERSED = {"filter_gradient": {"reverse": {"strength": 0.3}}}
RULES = [{"match": {"name": "features"}, "patch": REVERSED, "expect": 1}]


# What predicts; the rules reverse the gradient at its `features`.


def net(x: Any, weights: list[Any], identity: Callable[[Any], Any]) -> Any:
    hidden = tf.nn.bias_add(tf.matmul(x, weights[0]), weights[1])
    features = identity(tf.tanh(hidden))
    return tf.matmul(features, weights[2]) + 0.1 * tf.reduce_sum(hidden, 1, keepdims=True)


def looped(x: Any, weights: list[Any], identity: Callable[[Any], Any]) -> Any:
    """The same with a v1 loop before the features."""

    def body(step: Any, x: Any) -> tuple[Any, Any]:
        return step + 1, tf.tanh(tf.matmul(x, weights[0]))

    _, after = tf.while_loop(lambda step, _: step < 3, body, [0, x])
    return net(after, weights, identity)


def embedded(x: Any, weights: list[Any], identity: Callable[[Any], Any]) -> Any:
    """The same, rows of a variable looked up: its gradient is sparse."""
    rows = tf.cast(tf.abs(x), tf.int32) % SIZE
    return net(tf.reduce_mean(tf.nn.embedding_lookup(weights[0], rows), 1), weights, identity)


# What trains it.


def descent() -> Any:
    return tf1.train.GradientDescentOptimizer(0.05)


def adam(loss: Any, weights: list[Any]) -> Any:
    """All gradients clipped by their norm together."""
    optimizer = tf1.train.AdamOptimizer(0.05)
    gradients, wrt = zip(*optimizer.compute_gradients(loss, weights), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    return optimizer.apply_gradients(zip(clipped, wrt, strict=True))


def by_hand(loss: Any, weights: list[Any]) -> Any:
    gradients = tf1.gradients(loss, weights)
    # A reference variable may be changed while another gradient still reads it.
    with tf.control_dependencies(gradients):
        read = [tf.identity(dw) for dw in gradients]
    return tf.group(*(tf1.assign_sub(w, 0.05 * dw) for w, dw in zip(weights, read, strict=True)))


def averages_of_gradients(loss: Any, weights: list[Any]) -> Any:
    """The optimizer reads moving averages of the gradients, whose variables are named as these."""
    pairs = descent().compute_gradients(loss, weights)
    average = tf1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([average.apply([gradient for gradient, _ in pairs])]):
        return descent().apply_gradients([(average.average(g), v) for g, v in pairs])


def accumulated(loss: Any, weights: list[Any]) -> Any:
    """Gradients are summed in variables; each second step is one of Adam, in a branch."""
    optimizer = tf1.train.AdamOptimizer(0.05)
    pairs = optimizer.compute_gradients(loss, weights)
    sums = [tf1.Variable(tf.zeros(v.shape), trainable=False) for _, v in pairs]
    added = [tf1.assign_add(total, g) for total, (g, _) in zip(sums, pairs, strict=True)]
    with tf.control_dependencies(added):
        count = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)

    def update() -> Any:
        read = [(total * 1.0, v) for total, v in zip(sums, weights, strict=True)]
        with tf.control_dependencies([optimizer.apply_gradients(read)]):
            return tf.group(*(tf1.assign(total, tf.zeros(total.shape)) for total in sums))

    with tf.control_dependencies([count]):
        return tf.cond(tf.equal(count % 2, 0), update, tf.no_op)


def towers(loss: Any, weights: list[Any]) -> Any:
    """Two towers with half of the batch each; their gradients are averaged."""
    named = tf1.get_default_graph().get_tensor_by_name
    x, label, pairs = named("x:0"), named("label:0"), []
    for place in range(2):
        with tf1.name_scope(f"tower_{place}"):
            hidden = tf.tanh(tf.nn.bias_add(tf.matmul(x[place::2], weights[0]), weights[1]))
            error = tf.square(tf.matmul(hidden, weights[2]) - label[place::2])
            pairs.append(descent().compute_gradients(tf.reduce_mean(error) + 0.5 * loss, weights))
    means = [
        (tf.reduce_mean(tf.stack([gradient for gradient, _ in both]), 0), both[0][1])
        for both in zip(*pairs, strict=True)
    ]
    return descent().apply_gradients(means)


def loss_scale(loss: Any, weights: list[Any]) -> Any:
    """The loss is scaled by a variable that grows as long as all gradients are finite."""
    scale = tf1.Variable(8.0, trainable=False, name="scale")
    pairs = descent().compute_gradients(loss * scale, weights)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient, _ in pairs])
    done = descent().apply_gradients([(gradient / scale, v) for gradient, v in pairs])
    with tf.control_dependencies([done]):
        return tf1.assign(scale, tf.cond(finite, lambda: scale * 2.0, lambda: scale / 2.0))


def two_players(loss: Any, weights: list[Any]) -> Any:
    """As of a GAN: the first updates one variable, the second the others, by other losses."""
    with tf.control_dependencies([adam(loss, weights[:1])]):
        second = tf.reduce_mean(tf.abs(weights[1])) - 0.5 * loss
        return descent().minimize(second, var_list=weights[1:])


def in_turn(loss: Any, weights: list[Any]) -> Any:
    """Gradients by the last variables are taken after the update of the first."""
    with tf.control_dependencies([adam(loss, weights[:1])]):
        return descent().minimize(loss, var_list=weights[1:])


def penalty(loss: Any, weights: list[Any]) -> Any:
    """A gradient penalty: the loss is computed from a gradient."""
    [dx] = tf.gradients(loss, tf1.get_default_graph().get_tensor_by_name("x:0"))
    return descent().minimize(loss + 0.1 * tf.reduce_sum(tf.square(dx)), var_list=weights)


def unregistered(loss: Any, weights: list[Any]) -> Any:
    """A key of another program, as contrib.quantize puts on batch norms."""
    done = adam(loss, weights)
    loss.op._set_attr("_gradient_op_type", tf1.AttrValue(s=b"OfAnotherProgram"))
    return done


def logged(loss: Any, weights: list[Any]) -> Any:
    """The gradient of something inside is read by who does not train."""
    pairs = descent().compute_gradients(loss, [*weights, loss.op.inputs[0]])
    tf.norm(pairs[-1][0], name="logged")
    return descent().apply_gradients(pairs[:-1])


def built(forward: Any, optimize: Any, use_resource: bool = True, key: str = "") -> bytes:
    """The MetaGraphDef; `key` overrides the gradient of `features` as it is built."""
    random = np.random.default_rng(SEED)
    sizes = {"one": (SIZE, SIZE), "bias": (SIZE,), "two": (SIZE, 1)}
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(SEED)
        weights = [
            tf1.Variable(np.float32(random.normal(size=size)), name=name, use_resource=use_resource)
            for name, size in sizes.items()
        ]
        x = tf1.placeholder(tf.float32, [None, SIZE], name="x")
        label = tf1.placeholder(tf.float32, [None, 1], name="label")

        def identity(x: Any) -> Any:
            with graph.gradient_override_map({"Identity": key} if key else {}):
                return tf.identity(x, name="features")

        error = tf.square(forward(x, weights, identity) - label)
        tf.group(optimize(tf.reduce_mean(error, name="loss"), weights), name="train")
        tf.group(tf1.global_variables_initializer(), name="start")
        return bytes(tf1.train.export_meta_graph(graph=graph).SerializeToString())


def losses(meta: bytes) -> list[bytes]:
    """The bits of the loss before each step.

    TensorFlow does not order the update of a reference variable and other ops that read it. So
    one run in many differs from the others: what two of them agree on is given.
    """
    runs = [_losses(meta)]
    while b"VariableV2" in meta:
        runs.append(_losses(meta))
        if runs[-1] in runs[:-1]:
            break
        assert len(runs) < 5, "no two runs agree"
    return runs[-1]


def _losses(meta: bytes) -> list[bytes]:
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    random, losses = np.random.default_rng(SEED), []
    with tf1.Graph().as_default() as graph, tf1.Session(config=config) as session:
        tf1.train.import_meta_graph(tf1.MetaGraphDef.FromString(meta))
        session.run(graph.get_operation_by_name("start"))
        train = graph.get_operation_by_name("train")
        for _ in range(STEPS):
            x = random.normal(size=(4, SIZE)).astype(np.float32)
            feeds = {"x:0": x, "label:0": x.sum(1, keepdims=True)}
            losses.append(session.run(["loss:0", train], feeds)[0].tobytes())
    return losses


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    tf.RegisterGradient(KEY)(lambda op, dy: -0.3 * dy)
    with control_flow(False):
        yield


def patched(meta: bytes, folder: Path, rules: Any = RULES) -> graphpatch.Model:
    (folder / "training.meta").write_bytes(meta)
    return graphpatch.apply(rules, folder / "training.meta").model


TRAINED = [
    *((net, optimize) for optimize in (adam, by_hand, averages_of_gradients, accumulated)),
    *((net, optimize) for optimize in (towers, loss_scale, two_players)),
    *((forward, adam) for forward in (looped, embedded)),
]


@pytest.mark.every(4)
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
@pytest.mark.parametrize(("forward", "optimize"), TRAINED, ids=lambda part: part.__name__)
def test_training_is_that_of_a_graph_built_so(
    forward: Any, optimize: Any, use_resource: bool, tmp_path: Path
) -> None:
    """Bit for bit, over 20 steps, beside gradient_override_map as the graph was built."""
    plain = built(forward, optimize, use_resource)
    wanted, before = losses(built(forward, optimize, use_resource, KEY)), losses(plain)
    model = patched(plain, tmp_path)
    for saved, expected in ((model, before), (graphpatch.rebuild_gradients(model), wanted)):
        saved.save(tmp_path / "saved.meta")
        assert losses((tmp_path / "saved.meta").read_bytes()) == expected
    assert before != wanted


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_a_gradient_that_waits_for_an_update_still_does(use_resource: bool, tmp_path: Path) -> None:
    model = patched(built(net, in_turn, use_resource), tmp_path)
    for trained in (model, graphpatch.rebuild_gradients(model)):
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            tf1.train.import_meta_graph(trained.meta_graph_def())
            [first, *_] = tf1.trainable_variables()
            session.run("start")
            before = session.run(first)
            descents = (op for op in graph.get_operations() if "ApplyGradientDescent" in op.type)
            fed = {"x:0": np.ones((2, SIZE)), "label:0": np.ones((2, 1))}
            session.run([op.inputs[-1] for op in descents], fed)
            assert not np.array_equal(session.run(first), before)


STOPPED = [{"match": {"op": "Mean"}, "patch": {"stop_gradient": True}}]
# What trains, the rules, the losses that are named, and what is said.
REFUSED: dict[str, tuple[Any, Any, list[str], str]] = {
    "a penalty": (penalty, RULES, [], "gradients_1: its loss is computed from gradients that"),
    "no training": (
        lambda loss, weights: tf.no_op(), RULES, [], "found no gradients that update a variable"
    ),
    "no gradient": (adam, STOPPED, [], "no gradient of loss flows to one, which the optimizer"),
    "no such key": (unregistered, RULES, [], "anew .graphpatch doctor says where .*: LookupError"),
    "no such loss": (adam, RULES, ["lost"], "--loss: there is no tensor lost"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_anew_is_refused(name: str, tmp_path: Path) -> None:
    optimize, rules, named, says = REFUSED[name]
    with pytest.raises(PatchError, match=says):
        graphpatch.rebuild_gradients(patched(built(net, optimize), tmp_path, rules), named)


def test_old_gradients_that_stay_are_named(run_cli: Any, rules_file: Any, tmp_path: Path) -> None:
    model = patched(built(net, logged), tmp_path)
    with pytest.warns(UserWarning, match="besides updates of variables: .* reads gradients/"):
        graphpatch.rebuild_gradients(model)
    words = ("-o", tmp_path / "new.meta", "--rebuild-gradients")
    ran = run_cli("apply", rules_file(*RULES), tmp_path / "training.meta", *words)
    assert ran.code == 0, ran.stderr
    assert "note: gradients: gradients that were built before stay" in ran.stdout
    assert "UserWarning" not in ran.stderr


def test_the_command(run_cli: Any, rules_file: Any, tmp_path: Path) -> None:
    plain, out = tmp_path / "training.meta", tmp_path / "new.meta"
    plain.write_bytes(built(looped, adam))
    words = ("apply", rules_file(*RULES), plain, "-o", out)
    assert "(--rebuild-gradients) builds those of an optimizer anew" in run_cli(*words).stdout
    ran = run_cli(*words, "--rebuild-gradients", "--loss", "loss")
    assert ran.code == 0, ran.stderr
    assert "gradients: the gradients of loss by one, bias, two were built anew" in ran.stdout
    assert "that were built before" not in ran.stdout
    assert losses(out.read_bytes()) == losses(built(looped, adam, key=KEY))
    scopes = {name.partition("/")[0] for name in graphpatch.load(out).graphs[0].main.heads.names}
    assert ("gradients_1" in scopes, "gradients" in scopes) == (True, False)
    wrong = run_cli("apply", rules_file(*RULES), plain, "--loss", "loss")
    assert (wrong.code, "--loss goes with --rebuild-gradients" in wrong.stderr) == (2, True)


REAL = {
    "musicnn_MTT_vgg/model.meta": ["metrics/add"],
    "lstm_crf_ner.meta": ["Mean"],
    "dl4j/train_iris.pb": [
        "softmax_cross_entropy_loss/value",
        "softmax_cross_entropy_loss_1/value",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_training_graphs(name: str, models_folder: Path) -> None:
    """The loss is found, and what was built anew imports, without the old gradients."""
    from graphpatch.analysis.training import gradient_sections

    model = graphpatch.load(models_folder / name)
    sections = gradient_sections(model.graphs[0].main)
    assert [loss for section in sections for loss in section.losses] == REAL[name]
    new = graphpatch.rebuild_gradients(model)
    names = set(new.graphs[0].main.heads.names)
    old = {made.values.partition(":")[0] for section in sections for made in section.gradients}
    assert not old & names
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(new)
        assert names <= {op.name for op in graph.get_operations()}  # and a Saver, where it has none


def rounded(path: Path) -> Path:
    """A graph whose first layer has no gradient, and so no update; sign(v) / |v| is a match."""
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [4, 3], name="x")
        w, v = (
            tf1.get_variable(name, initializer=tf.ones([3, width]), use_resource=False)
            for name, width in (("w", 3), ("v", 1))
        )
        size = tf.abs(v, name="size")
        binary = tf.sign(tf.divide(v, size, name="share"), name="sign")
        y = tf.matmul(tf.round(tf.matmul(x, w), name="r"), tf.multiply(binary, size, name="out"))
        tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(y - 1), name="loss"))
        tf1.train.export_meta_graph(str(path))
    return path


PATTERN = "x:_ -> size:Abs; x -> share:RealDiv:0 -> Sign -> out:Mul; size -> share:1; size -> out"


@pytest.mark.parametrize("patch", [
    {"straight_through": {"input": "x"}},
    {"surrogate_gradient": "x"},
    {"override_gradient": {"formula": "dy"}},
])  # fmt: skip
def test_variables_without_an_update_and_matches_that_old_gradients_read(
    patch: dict[str, Any], tmp_path: Path
) -> None:
    binary = {"match": {"pattern": PATTERN}, "patch": {**patch, "on": "match"}}
    straight = {"match": {"op": "Round"}, "patch": {"straight_through": True}}
    model = graphpatch.apply([straight, binary], rounded(tmp_path / "r.meta")).model
    with pytest.warns(UserWarning, match="nothing updates w: no gradient came to it when"):
        new = graphpatch.rebuild_gradients(model)
    assert any(name.endswith("ApplyAdam") for name in new.graphs[0].main.heads.names)
