"""Methods on real models, each by one recipe: forward bits as they were, and a finite gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import GraphpatchError, MatchError
from tests.models import catalogue, sessions

tf = pytest.importorskip("tensorflow")

MODELS = {
    "convolutional net": "mobilenet_v1_0.25_128_frozen.pb",
    "super-resolution": "zoo/Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb",
    "face corrector": "face_corrector.pb",
    "LSTM": "kws_basic_lstm_s.pb",
    "digits by LSTM": "dl4j/lstm_mnist.pb",
    "detector": "mtcnn.pb",
    "text tagger": "lstm_crf_ner.meta",
}
RECIPES = ("@guided_backprop", "@deconvnet", "@lrp_epsilon", "@lrp_composite", "@deeplift")
PLAIN = "as it is"


GUESSES = ((2, (2, 16, 16, 1)), *sessions.GUESSES)


def runs_with(path: Any) -> tuple[int, tuple[int, ...]]:
    """The first guess of sizes with which a model runs; TensorFlow's error where none does."""
    reason: Exception | None = None
    for guess in GUESSES:
        try:
            answers(path, guess)
        except (tf.errors.OpError, ValueError) as error:
            reason = error
        else:
            return guess
    assert reason is not None
    raise reason


def answers(model: Any, guess: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last float outputs of a model, and the gradients of the last by the float inputs."""
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(model)
        feeds = dict(sessions._feeds(graph, *guess))
        variables = dict(sessions._variables(graph, *guess))
        output = list(sessions.float_tensors(graph))[-1]
        by = [graph.get_tensor_by_name(name) for name in feeds]
        floats = [tensor for tensor in by if tensor.dtype.is_floating]
        found = tf.compat.v1.gradients(graph.get_tensor_by_name(output), floats)
        asked = {x.name: dx for x, dx in zip(floats, found, strict=True) if dx is not None}
        # Grappler folds a convolution and the op that reads it, where no construction stands
        # between (docs/stored-gradients.md): the file's own ops are what is compared.
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            sessions._assign(graph, session, variables)
            return session.run([{output: output}, asked], feeds)  # type: ignore[no-any-return]


def table(name: str) -> dict[str, str]:
    """For each recipe what became of it: a word, or why not."""
    path = catalogue.models()[name]
    guess = runs_with(path)
    before, plain = answers(path, guess)
    told = {PLAIN: "runs" if plain else "no gradient by an input"}
    for recipe in RECIPES:
        try:
            result = graphpatch.apply(recipe, path)
        except MatchError:
            told[recipe] = "nothing to patch"
            continue
        try:
            after, found = answers(result.model, guess)
        except ValueError:
            if recipe != "@deeplift":
                raise
            # The file has a batch of one, which has no two halves: TensorFlow says so as it loads.
            told[recipe] = "needs a batch of two"
            continue
        same = all(before[key].tobytes() == after[key].tobytes() for key in before)
        finite = all(np.isfinite(value).all() for value in found.values())
        assert found.keys() == plain.keys()
        moved = any(np.any(found[key] != plain[key]) for key in found)
        told[recipe] = ("runs" if moved else "same") if same and finite else "wrong"
    return told


@pytest.mark.slow
@pytest.mark.parametrize("label", MODELS)
def test_each_method_runs_by_one_recipe(label: str) -> None:
    name = MODELS[label]
    if name not in catalogue.models():
        pytest.skip(f"no {name} in {catalogue.folder()}")
    tf.compat.v1.disable_control_flow_v2()
    try:
        found = table(name)
    except (tf.errors.OpError, LookupError, GraphpatchError, ValueError) as error:
        pytest.skip(f"{name} does not run on seeded inputs: {str(error).splitlines()[0]}")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    assert "wrong" not in found.values(), found
