"""Differentiate the files of `matrix.py` in every way that the TensorFlow of this process has.

    matrix_consumer.py FOLDER OUTPUT.json

FOLDER/files.json lists the files. OUTPUT.json gets, for each file and way, one word: `right`,
`default` (TensorFlow's own gradient, silently), `zeros`, `none`, `wrong`, `forward differs`, or
`raises ErrorType`. Runs under TensorFlow 1.13 to 2.21 and needs nothing of graphpatch.
"""

import json
import os
import sys
import warnings
from typing import Any, Callable, Dict, Tuple

import numpy as np

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")

# The exit status of a process that has more to do: TensorFlow gives the branches and bodies of a
# process one table of names, so that files with loops meet one another in it.
AGAIN = 75
X = np.array([-0.7, 0.2, 0.5], np.float32)


def v1() -> Any:
    """Return the v1 API, which 1.13 has at its top as well."""
    import tensorflow as tf

    return getattr(getattr(tf, "compat", tf), "v1", tf)


def graph_def(path: str) -> Any:
    """Return the GraphDef of a `.pb` or `.pbtxt`."""
    from google.protobuf import text_format

    found = v1().GraphDef()
    with open(path, "rb") as source:  # noqa: PTH123
        data = source.read()
    if path.endswith(".pbtxt"):
        text_format.Parse(data.decode(), found)
    else:
        found.ParseFromString(data)
    return found


def pair_of(y: Any, dx: Any, session: Any, feeds: Dict[Any, Any]) -> Tuple[Any, Any]:
    if dx is None:
        return session.run(y, feeds), None
    forward, gradient = session.run([y, dx], feeds)
    return forward, gradient


def in_session(found: Any) -> Tuple[Any, Any]:
    """Find y and its gradient by x, of a GraphDef, by tf.gradients and a Session."""
    tf1 = v1()
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.import_graph_def(found, name="")
        x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
        return pair_of(y, tf1.gradients(y, x)[0], session, {x: X})


def session(path: str) -> Tuple[Any, Any]:
    return in_session(graph_def(path))


def meta_graph(path: str) -> Tuple[Any, Any]:
    tf1 = v1()
    if hasattr(tf1, "disable_control_flow_v2"):
        tf1.disable_control_flow_v2()
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(path)
        x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
        return pair_of(y, tf1.gradients(y, x)[0], session, {x: X})


def saved_in_session(path: str) -> Tuple[Any, Any]:
    tf1 = v1()
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        meta = tf1.saved_model.loader.load(session, ["serve"], path)
        signature = meta.signature_def["serving_default"]
        x = graph.get_tensor_by_name(signature.inputs["x"].name)
        y = graph.get_tensor_by_name(signature.outputs["y"].name)
        return pair_of(y, tf1.gradients(y, x)[0], session, {x: X})


def wrapped(path: str) -> Callable[[Any], Any]:
    """Return a function of a tensor, made of a GraphDef by wrap_function."""
    tf1 = v1()
    found = graph_def(path)

    def imported() -> None:
        tf1.import_graph_def(found, name="")

    function = tf1.wrap_function(imported, [])
    return function.prune("x:0", "y:0")  # type: ignore[no-any-return]


def taped(function: Callable[[Any], Any]) -> Tuple[Any, Any]:
    import tensorflow as tf

    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    dx = tape.gradient(y, x)
    return y.numpy(), None if dx is None else dx.numpy()


def tape(path: str) -> Tuple[Any, Any]:
    return taped(wrapped(path))


def jit(path: str) -> Tuple[Any, Any]:
    """XLA around the imported graph; the tape is outside."""
    import tensorflow as tf

    function = wrapped(path)
    return taped(tf.function(lambda x: function(x), jit_compile=True))


def keras_lambda(path: str) -> Tuple[Any, Any]:
    """import_graph_def within a Lambda layer."""
    import tensorflow as tf

    found = graph_def(path)

    def call(x: Any) -> Any:
        return tf.graph_util.import_graph_def(found, {"x": x}, ["y:0"])[0]

    layer = tf.keras.layers.Lambda(call, output_shape=(3,))
    return taped(tf.function(lambda x: layer(x)))


def saved_on_tape(path: str) -> Tuple[Any, Any]:
    import tensorflow as tf

    function = tf.saved_model.load(path).signatures["serving_default"]
    return taped(lambda x: function(x=x)["y"])


def grappler_graph(path: str) -> Any:
    """Return the GraphDef as an offline optimiser leaves it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.grappler import tf_optimizer

    tf1 = v1()
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(graph_def(path), name="")
        collection = tf1.GraphKeys.TRAIN_OP
        graph.add_to_collection(collection, graph.get_tensor_by_name("y:0"))
        meta = tf1.train.export_meta_graph(graph=graph)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    return tf_optimizer.OptimizeGraph(config, meta)


def grappler(path: str) -> Tuple[Any, Any]:
    """Return an offline optimiser, before the gradients are built."""
    return in_session(grappler_graph(path))


def optimize_for_inference(path: str) -> Tuple[Any, Any]:
    from tensorflow.python.tools import optimize_for_inference_lib

    tf1 = v1()
    return in_session(
        optimize_for_inference_lib.optimize_for_inference(
            graph_def(path), ["x"], ["y"], tf1.float32.as_datatype_enum
        )
    )


def strip_unused(path: str) -> Tuple[Any, Any]:
    from tensorflow.python.tools import strip_unused_lib

    kind = v1().float32.as_datatype_enum
    return in_session(strip_unused_lib.strip_unused(graph_def(path), ["x"], ["y"], kind))


def without_training_nodes(path: str) -> Any:
    return v1().graph_util.remove_training_nodes(graph_def(path), ["x", "y"])


def remove_training_nodes(path: str) -> Tuple[Any, Any]:
    return in_session(without_training_nodes(path))


def extract_sub_graph(path: str) -> Tuple[Any, Any]:
    return in_session(v1().graph_util.extract_sub_graph(graph_def(path), ["y"]))


def tflite(path: str) -> Tuple[Any, Any]:
    """Convert the model, which has no gradient then: that it converts counts, and its bits."""
    tf1 = v1()
    converter = tf1.lite.TFLiteConverter.from_frozen_graph(path, ["x"], ["y"], {"x": [3]})
    interpreter = tf1.lite.Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), "converts"


WAYS = {
    "pb": {
        "Session": session,
        "tape": tape,
        "jit": jit,
        "Keras Lambda": keras_lambda,
        "Grappler offline": grappler,
        "optimize_for_inference": optimize_for_inference,
        "strip_unused": strip_unused,
        "remove_training_nodes": remove_training_nodes,
        "extract_sub_graph": extract_sub_graph,
        "TFLite": tflite,
    },
    "pbtxt": {"Session": session},
    "meta": {"Session": meta_graph},
    "saved_model": {"Session": saved_in_session, "tape": saved_on_tape},
    # A Session has no gradient through a While in a function, of the unpatched model neither.
    "saved_model of loops": {"tape": saved_on_tape},
}  # type: Dict[str, Dict[str, Callable[[str], Tuple[Any, Any]]]]

# Of TensorFlow 2 alone; jit_compile came with 2.5.
TWO = {"tape", "jit", "Keras Lambda"}


def is_offered(way: str) -> bool:
    import tensorflow as tf

    major, minor = map(int, tf.__version__.split(".")[:2])
    if way == "jit":
        return (major, minor) >= (2, 5)
    return way not in TWO or major == 2


def word(found: Tuple[Any, Any], file: Dict[str, Any]) -> str:
    """Return what came of it, beside what should."""
    forward, gradient = found
    if np.asarray(forward).tobytes() != np.array(file["forward"], np.float32).tobytes():
        return "forward differs"
    if gradient is None:
        return "none"
    if isinstance(gradient, str):
        return gradient
    for name in ("right", "default"):
        if file[name] is not None and np.allclose(gradient, file[name], atol=1e-6):
            return name
    return "wrong" if np.any(gradient) else "zeros"


def outcome(way: Callable[[str], Tuple[Any, Any]], folder: str, file: Dict[str, Any]) -> str:
    try:
        return word(way(os.path.join(folder, file["path"])), file)  # noqa: PTH118
    except Exception as error:
        print(file["path"], way.__name__, type(error).__name__, str(error)[:500], file=sys.stderr)
        return "raises " + type(error).__name__


def fill(folder: str, output: str, document: Dict[str, Any]) -> None:
    """Add what is not known yet; what is under way stands as `aborts` until it has ended.

    Ends the process with AGAIN after a way of a file that is to be `alone` in it.
    """

    def keep(name: str, way: str, found: str) -> None:
        document["rows"].setdefault(name, {})[way] = found
        with open(output, "w") as target:  # noqa: PTH123
            json.dump(document, target, indent=1)

    with open(os.path.join(folder, "files.json")) as source:  # noqa: PTH118, PTH123
        files = json.load(source)
    for file in files:
        for way, run in WAYS[file["kind"]].items():
            if is_offered(way) and way not in document["rows"].get(file["name"], {}):
                keep(file["name"], way, "aborts")
                keep(file["name"], way, outcome(run, folder, file))
                if file["alone"]:
                    sys.exit(AGAIN)


def main(folder: str, output: str) -> None:
    import importlib

    import tensorflow as tf

    if tf.__version__.startswith("1."):
        # In a fresh process 1.x has no gradient of While before this is imported.
        try:
            importlib.import_module("tensorflow.python.ops.while_v2")
        except ImportError:
            print("no while_v2 in", tf.__version__, file=sys.stderr)
    document = {"tensorflow": tf.__version__, "python": sys.version.split()[0], "rows": {}}
    if os.path.exists(output):  # noqa: PTH110
        with open(output) as source:  # noqa: PTH123
            document = json.load(source)
    fill(folder, output, document)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
