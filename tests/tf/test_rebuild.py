"""Training graphs whose gradients are built already, patched with these built anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.runtime.tf_gradients import control_flow
from tests.tf import training_graphs as training

tf = pytest.importorskip("tensorflow")

from tests.tf import between  # noqa: E402

KEY = "ReversedInTrainingGraphs"
FORWARD = {"net": training.net, "loop": training.looped, "sparse": training.embedded}
OPTIMIZE = {
    "descent": training.descent,
    "momentum": training.momentum,
    "adam": training.adam,
    "by hand": training.by_hand,
}


def both(loss: Any, held: list[Any]) -> Any:
    """As of a GAN: the first updates one variable, the second the others, by other losses."""
    one = training.adam(loss, held[:1])
    second = tf.reduce_mean(tf.abs(held[1])) - 0.5 * loss
    with tf.control_dependencies([one]):
        descent = tf.compat.v1.train.GradientDescentOptimizer(0.05)
        return descent.minimize(second, var_list=held[1:])


BETWEEN = (
    between.of_weights,
    between.of_gradients,
    between.accumulated,
    between.towers,
    between.loss_scale,
    between.two_losses,
    both,
)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    tf.RegisterGradient(KEY)(lambda op, dy: -0.3 * dy)
    with control_flow(False):
        yield


@pytest.fixture
def patched(tmp_path: Path) -> Callable[[bytes], graphpatch.Model]:
    def patch(meta: bytes) -> graphpatch.Model:
        (tmp_path / "training.meta").write_bytes(meta)
        return graphpatch.apply(training.RULES, tmp_path / "training.meta").model

    return patch


def losses(model: graphpatch.Model, folder: Path) -> Any:
    model.save(folder / "saved.meta")
    return training.losses((folder / "saved.meta").read_bytes())


def check_rebuilt(patched: Any, folder: Path, *parts: Any) -> None:
    """Bit for bit, over 20 steps, beside gradient_override_map as the graph was built."""
    plain, wanted = training.built(*parts), training.losses(training.built(*parts, KEY))
    model = patched(plain)
    before = training.losses(plain)
    assert losses(model, folder) == before != wanted
    assert losses(graphpatch.rebuild_gradients(model), folder) == wanted


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "use_resource", [pytest.param(False, marks=pytest.mark.slow), True], ids=["ref", "resource"]
)
@pytest.mark.parametrize("optimize", OPTIMIZE)
@pytest.mark.parametrize("forward", FORWARD)
def test_training_is_that_of_a_graph_built_so(
    patched: Any, tmp_path: Path, forward: str, optimize: str, use_resource: bool
) -> None:
    if forward == "sparse" and optimize == "by hand":
        pytest.skip("assign_sub takes no sparse gradient")
    check_rebuilt(patched, tmp_path, FORWARD[forward], OPTIMIZE[optimize], use_resource)


@pytest.mark.every(5)
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("optimize", BETWEEN, ids=lambda one: one.__name__)
def test_what_lies_between_gradient_and_update_stays(
    patched: Any, tmp_path: Path, optimize: Any, use_resource: bool
) -> None:
    check_rebuilt(patched, tmp_path, training.net, optimize, use_resource)


def test_a_loss_that_is_computed_from_gradients_is_refused(patched: Any) -> None:
    plain = training.built(training.net, between.penalty, True)
    with pytest.raises(PatchError, match="gradients_1: its loss is computed from gradients that"):
        graphpatch.rebuild_gradients(patched(plain))


def test_old_gradients_that_stay_are_named(
    patched: Any, run_cli: Any, rules_file: Any, tmp_path: Path
) -> None:
    model = patched(training.built(training.net, between.logged, True))
    with pytest.warns(UserWarning, match="besides updates of variables: .* reads gradients/"):
        graphpatch.rebuild_gradients(model)
    words = ("-o", tmp_path / "new.meta", "--rebuild-gradients")
    ran = run_cli("apply", rules_file(*training.RULES), tmp_path / "training.meta", *words)
    assert ran.code == 0, ran.stderr
    assert "note: gradients: gradients that were built before stay" in ran.stdout
    assert "UserWarning" not in ran.stderr


def test_old_gradients_are_left_out(patched: Any) -> None:
    plain = training.built(training.looped, training.adam, True)
    model = graphpatch.rebuild_gradients(patched(plain))
    names = model.graphs[0].main.heads.names
    assert not [name for name in names if name.startswith("gradients/")]
    assert [name for name in names if name.startswith("gradients_1/")]


def test_a_model_that_is_not_trained_is_refused(patched: Any) -> None:
    plain = training.built(training.net, lambda loss, held: tf.no_op(), True)
    with pytest.raises(PatchError, match="found no gradients that update a variable"):
        graphpatch.rebuild_gradients(patched(plain))


def test_a_variable_that_nothing_reaches_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.meta").write_bytes(training.built(training.net, training.adam, True))
    rules = [{"match": {"op": "Mean"}, "patch": {"stop_gradient": True}}]
    model = graphpatch.apply(rules, tmp_path / "t.meta").model
    with pytest.raises(PatchError, match="no gradient of loss flows to one, which the optimizer"):
        graphpatch.rebuild_gradients(model)


def test_a_loss_can_be_named(patched: Any, tmp_path: Path) -> None:
    model = patched(training.built(training.net, training.adam, True))
    named, found = (
        losses(graphpatch.rebuild_gradients(model, to), tmp_path) for to in (["loss"], [])
    )
    assert named == found
    with pytest.raises(PatchError, match="--loss: there is no tensor lost"):
        graphpatch.rebuild_gradients(model, ["lost"])


def test_the_command(run_cli: Any, rules_file: Any, tmp_path: Path) -> None:
    plain = tmp_path / "training.meta"
    plain.write_bytes(training.built(training.net, training.adam, True))
    out = tmp_path / "new.meta"
    told = run_cli("apply", rules_file(*training.RULES), plain, "-o", out)
    assert "(--rebuild-gradients) builds those of an optimizer anew" in told.stdout
    ran = run_cli("apply", rules_file(*training.RULES), plain, "-o", out, "--rebuild-gradients")
    assert ran.code == 0, ran.stderr
    assert "gradients: the gradients of loss by one, bias, two were built anew" in ran.stdout
    assert "that were built before" not in ran.stdout
    wanted = training.losses(training.built(training.net, training.adam, True, KEY))
    assert training.losses(out.read_bytes()) == wanted
    wrong = run_cli("apply", rules_file(*training.RULES), plain, "--loss", "loss")
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
def test_real_training_graphs(name: str, models_folder: Path, tmp_path: Path) -> None:
    """The loss is found, and what was built anew imports, without the old gradients."""
    from graphpatch.analysis.training import gradient_sections

    model = graphpatch.load(models_folder / name)
    found = gradient_sections(model.graphs[0].main)
    assert [loss for section in found for loss in section.losses] == REAL[name]
    new = graphpatch.rebuild_gradients(model)
    names = set(new.graphs[0].main.heads.names)
    old = {built.values.partition(":")[0] for section in found for built in section.gradients}
    assert not old & names
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(new)
        assert names <= {op.name for op in graph.get_operations()}  # and a Saver, where it has none


def rounded(path: Path) -> Path:
    """A graph whose first layer has no gradient, and so no update; sign(v) / |v| is a match."""
    tf1 = tf.compat.v1
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


def test_variables_without_an_update_and_matches_that_old_gradients_read(tmp_path: Path) -> None:
    straight: dict[str, Any] = {"match": {"op": "Round"}, "patch": {"straight_through": True}}
    pattern = (
        "x:_ -> size:Abs; x -> share:RealDiv:0 -> Sign -> out:Mul; size -> share:1; size -> out"
    )
    binary = {"match": {"pattern": pattern}}
    for patch in (
        {"straight_through": {"input": "x"}},
        {"surrogate_gradient": "x"},
        {"override_gradient": {"formula": "dy"}},
    ):
        rules = [straight, {**binary, "patch": {**patch, "on": "match"}}]
        model = graphpatch.apply(rules, rounded(tmp_path / "r.meta")).model
        with pytest.warns(UserWarning, match="nothing updates w: no gradient came to it when"):
            new = graphpatch.rebuild_gradients(model)
        assert any(name.endswith("ApplyAdam") for name in new.graphs[0].main.heads.names)
