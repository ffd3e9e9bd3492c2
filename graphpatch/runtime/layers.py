"""Layers for Keras: their classes are made once for each Keras, so that each has one identity.

`PatchedModel` is a patched graph as a function that any tape differentiates, and that can be saved.
A key in a file is registered once for all ops, and tf.saved_model.save asks for its gradient
without telling the op. So each patched op of the main graph gets its gradient as functions on
tensors have theirs, by tf.custom_gradient, once the graph is imported.

TensorFlow differentiates v1 loops and branches in a tf.Graph alone. Where there are any, the
gradient is built there, as for a Session, and the whole of it becomes a function of its own.
"""

from __future__ import annotations

import base64
import importlib
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from graphpatch.application import apply
from graphpatch.control_flow.contexts import has_control_flow, inside_control_flow
from graphpatch.errors import ModelError, OutputError, RulesError
from graphpatch.formats import Model
from graphpatch.formats.destination import Export
from graphpatch.formats.load import model_from, opened
from graphpatch.formats.saved_model import ExportedTensor, exported
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import GradientSpec, LibraryGradient
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.functions import Extract, Fed
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import op_of, parse
from graphpatch.opdefs import DTYPE_NAMES
from graphpatch.rules import Rule
from graphpatch.runtime import tf
from graphpatch.runtime.functions import (
    as_tensor,
    backward_as,
    filter_gradient,
    gradient_meant,
    library_gradient,
    surrogate,
    unconverted,
    with_gradient,
)
from graphpatch.runtime.gradient_functions import (
    GradientFunction,
    dense,
    formula_value,
    gradient_of,
)
from graphpatch.runtime.graph_run import nodes_in
from graphpatch.runtime.imported import redirect, rename_calls, spliced
from graphpatch.runtime.register import (
    import_model,
    overridden_ops,
    register_gradients,
    register_keys,
)
from graphpatch.runtime.tf_gradients import control_flow, gradients
from graphpatch.runtime.values import full_tensor_name

SCOPE = "graphpatch_layer"
_NUMBERS = itertools.count()

TensorFunction = Callable[..., Sequence[Any]]

# keras.layers.Layer, of the Keras that a class is made for.
KerasLayer: Any = object


class UnchangedLayer(KerasLayer):  # type: ignore[misc]
    """A layer that passes values on as they are: not cast to the dtype of a mixed policy."""

    keras: Any  # the Keras that the class was built for

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"autocast": False, **options})
        self.supports_masking = True


class GradientFilter(UnchangedLayer):
    """Return the input unchanged; pass the gradient that flows back to it through `gradient`.

    Forward: the input, bit for bit, in the same dtype, also under a mixed precision policy.
    Backward: what `gradient` computes of the upstream gradient, of the shape and dtype of the
    input. Input: a floating tensor of any shape, or a structure of them; masks are passed on.

    Args:
        gradient: A gradient as a rules file has it: a name of the library (`"reverse"`), a name
            with parameters (`{"clip": {"min": -0.1, "max": 0.1}}`, `{"scale": 0.5}`), or a formula
            of `dy` and `x` (`{"formula": "where(x > 0, dy, 0)"}`).
        adjustable: Whether the parameters are non-trainable weights, which `adjust` changes during
            training without tracing the model again. They are saved with the other weights.
            Default: False.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        RulesError: There is no such gradient, or a parameter is wrong; or `adjustable`, and the
            gradient has no parameters.
        FormulaError: The formula is not valid.
        TypeError: When called: the input is not a floating tensor.

    When not to use it: on a path that no gradient takes, such as integer inputs.

    Example:
        >>> layer = graphpatch.keras.GradientFilter({"reverse": 0.5})
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * layer(x)
        >>> tape.gradient(y, x).numpy()
        array([-1.5, -1.5], dtype=float32)
    """

    def __init__(self, gradient: GradientSpec, adjustable: bool = False, **options: Any) -> None:
        super().__init__(**options)
        meant = gradient_meant("GradientFilter", gradient)
        self.gradient = gradient
        self.adjustable = adjustable
        self._entry, self._numbers = "", {}
        if adjustable and isinstance(meant, LibraryGradient):
            self._entry, self._numbers = meant.name, dict(meant.parameters)
        self._weights_of: dict[str, Any] = {}
        if adjustable and not self._numbers:
            raise RulesError(f"GradientFilter: {gradient!r} has no parameters to adjust")

    def build(self, input_shape: Any) -> None:
        """Make the weights of an adjustable filter."""
        for name, value in self._numbers.items():
            initializer = self.keras.initializers.Constant(value)
            self._weights_of[name] = self.add_weight(
                name=name, shape=(), dtype="float32", initializer=initializer, trainable=False
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return the inputs, with the filtered gradient."""

        def filtered(x: Any) -> Any:
            if not self._weights_of:
                return filter_gradient(x, self.gradient)
            return library_gradient("GradientFilter", x, self._entry, self._weights_of)

        return tf.nest.map_structure(filtered, inputs)

    def adjust(self, **parameters: float) -> None:
        """Change parameters of an adjustable filter, which are float32 scalars.

        Forward nothing changes; backward the filter has the new values. Raises RulesError for a
        parameter that it does not have or a value that is not legal, and where the layer is not
        adjustable or has not been built.

        Example:
            >>> layer = graphpatch.keras.GradientFilter({"reverse": 0.0}, adjustable=True)
            >>> same = layer(tf.constant([1.0, 2.0]))
            >>> layer.adjust(strength=0.5)
        """
        if not self._weights_of:
            why = "has not been called yet" if self.adjustable else "is not adjustable"
            raise RulesError(f"GradientFilter: {self.gradient!r} {why}, so it cannot be adjusted")
        now = {name: float(weight.numpy()) for name, weight in self._weights_of.items()}
        for name, value in LIBRARY[self._entry].checked({**now, **parameters}).items():
            self._weights_of[name].assign(value)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return that of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the gradient as a rules file has it."""
        own = {"gradient": self.gradient, "adjustable": self.adjustable}
        return {**super().get_config(), **own}


class Surrogate(UnchangedLayer):
    """Compute one expression forward, and take the gradient of another backward.

    Forward: `forward(x)`, bit for bit. Backward: the gradient of `backward(x)`, which Keras and
    TensorFlow differentiate; variables of `backward` are trained. Input: a floating tensor, of the
    shape and dtype that the expressions take. Both expressions are computed in training; the shape
    of `backward(x)` must be that of `forward(x)`, or broadcast to it.

    Args:
        forward: A formula of `x` (`"sign(x)"`), a Keras layer, or a function of a tensor that is
            registered with keras.saving.register_keras_serializable. It may be random.
        backward: Likewise.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        FormulaError: A formula is not valid.
        TypeError: `forward` or `backward` is neither of the three.
        ValueError: When called: the shapes do not fit, or `forward` has trainable variables that
            `backward` does not read, which would never be trained.

    When not to use it: where the gradient itself is known, not a function that has it:
    `graphpatch.override_gradient` takes the gradient.

    Example:
        >>> layer = graphpatch.keras.Surrogate("sign(x)", "tanh(4 * x)")
        >>> layer(tf.constant([-0.5, 0.5])).numpy()
        array([-1.,  1.], dtype=float32)
    """

    def __init__(self, forward: Any, backward: Any, **options: Any) -> None:
        super().__init__(**options)
        self.forward, self.backward = forward, backward
        self._values = _callable_of(forward), _callable_of(backward)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the forward expression with the gradient of the other; `training` is Keras's."""
        return surrogate(*self._values, inputs)

    def get_config(self) -> dict[str, Any]:
        """Return formulas as text; layers and functions as Keras writes them."""
        own = {"forward": self._written(self.forward), "backward": self._written(self.backward)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Return the layer of a config."""
        read = {key: cls._read(config[key]) for key in ("forward", "backward")}
        return cls(**{**config, **read})

    def _written(self, expression: Any) -> Any:
        if isinstance(expression, str):
            return expression
        return self.keras.saving.serialize_keras_object(expression)

    @classmethod
    def _read(cls, written: Any) -> Any:
        if not isinstance(written, dict):
            return written
        saving, name = cls.keras.saving, written["config"]
        if written["class_name"] == "function" and (
            registered := saving.get_registered_object(name)
        ):
            return registered
        # tf_keras finds a layer of an .h5 file in its first way alone.
        old = cls.keras.__name__ == "tf_keras"
        read = cls.keras.layers.deserialize if old else saving.deserialize_keras_object
        return read(written)


def _callable_of(expression: Any) -> Callable[[Any], Any]:
    """Return what an expression computes of a tensor."""
    if callable(expression):
        return expression  # type: ignore[no-any-return]
    if not isinstance(expression, str):
        raise TypeError(
            f"Surrogate takes a formula of x, a Keras layer or a function, and found {expression!r}"
        )
    formula = Formula.parse(expression)

    @unconverted
    def computed(x: Any) -> Any:
        return formula_value(formula, [as_tensor("Surrogate", x)])

    return computed


class BackwardAs(UnchangedLayer):
    """Take a pair of tensors; return the first, with the gradient of the second.

    Forward: `noisy`, bit for bit. Backward: the upstream gradient flows to `clean` alone. Input: a
    list `[noisy, clean]` of floating tensors of one shape, or `clean` broadcasts to `noisy`.
    Output: a tensor of the shape and dtype of `noisy`. `options` are those of keras.layers.Layer.

    Raises:
        TypeError: One of the two is not a floating or complex tensor.
        ValueError: There are not two inputs, or the shapes do not fit.

    When not to use it: where one layer computes both: `Surrogate` does.

    Example:
        >>> z = graphpatch.keras.BackwardAs()([tf.constant([2.1, 2.9]), tf.constant([2.0, 3.0])])
        >>> z.numpy()
        array([2.1, 2.9], dtype=float32)
    """

    def call(self, inputs: Any) -> Any:
        """Return the first, with the gradient of the second."""
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            raise ValueError("BackwardAs takes a list of two tensors, [noisy, clean]")
        return backward_as(*inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return that of `noisy`."""
        return input_shape[0]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return that of `noisy`."""
        return mask[0] if isinstance(mask, list | tuple) and mask else None


class PatchedModel(UnchangedLayer):
    """Compute a graph file; its gradients are those that the rules of the file give.

    Forward: what the graph computes without the rules, op by op bit for bit. Backward: its
    gradients, with the overrides that the file carries and those of `rules`, wherever Keras and
    TensorFlow differentiate the layer; nothing is to be registered. In functions that the graph
    calls (PartitionedCall) TensorFlow raises NotFoundError. A gradient through v1 loops or branches
    computes the graph again; XLA compiles no such graph. The graph must hold its weights as
    constants, which the layer does not train. Input: a tensor of the dtype and shape of the graph's
    input, or of another floating dtype, as a mixed precision policy gives it, which is cast; for
    several inputs a list in the order of `inputs`, or a dict by the names in `inputs`. Output: a
    tensor, or a list in the order of `outputs`.

    Args:
        model: The path of a .pb, .pbtxt or .meta, its bytes, or a graphpatch.Model. The config of
            the layer holds the patched graph, weights included, so that a saved model needs no
            other file.
        inputs: The tensor that is given (`"image"`, `"split:1"`), or a list of them. One may lie
            inside of the graph: it is cut there.
        outputs: The tensor that is computed, or a list of them.
        rules: Rules to apply first: those of graphpatch.load_rules, or dicts. Default: none.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        ModelError: The file cannot be read, or is a TF2 SavedModel.
        OutputError: There is no such tensor, it is inside a v1 loop or branch, a placeholder is not
            among the inputs, or the graph holds variables or tables.
        RulesError: A rule is not valid.
        MatchError: A rule does not match as often as it expects.
        PatchError: A patch cannot be done.
        TypeError: `model` is of none of these kinds; when called: an input is of another dtype that
            is not cast.
        ValueError: When called: other inputs are given than those in `inputs`.

    When not to use it: to train the weights of the graph. In an .h5 file, which has no room for
    large configs: save as .keras.

    Example:
        >>> rules = graphpatch.load_rules("rules.json")
        >>> layer = graphpatch.keras.PatchedModel("model.pb", "x", "features", rules=rules)
        >>> layer(tf.zeros([1, 4, 4, 1])).shape
        TensorShape([1, 4, 4, 1])
    """

    def __init__(
        self,
        model: str | Path | bytes | Model,
        inputs: str | Sequence[str],
        outputs: str | Sequence[str],
        rules: Sequence[Rule | Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        self.outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        loaded = _loaded(model)
        if rules:
            loaded = apply(rules, loaded).model
        self._data = b"".join(map(piece_bytes, loaded.pieces()))
        reopened = opened(self._data, loaded.path)
        self._function, self._dtypes = graph_function(reopened, self.inputs, self.outputs)

    def call(self, inputs: Any) -> Any:
        """Return the outputs of the graph."""
        outputs = self._function(*self._ordered(inputs))
        return outputs[0] if len(self.outputs) == 1 else list(outputs)

    @unconverted
    def _ordered(self, inputs: Any) -> list[Any]:
        """Return the tensors that are given, in the order of `inputs` and of the graph's dtypes."""
        values = list(inputs) if isinstance(inputs, list | tuple | dict) else [inputs]
        by_name = (
            inputs if isinstance(inputs, dict) else dict(zip(self.inputs, values, strict=False))
        )
        if len(values) != len(self.inputs) or by_name.keys() != set(self.inputs):
            what = sorted(inputs) if isinstance(inputs, dict) else len(values)
            raise ValueError(f"PatchedModel takes inputs {list(self.inputs)}, and found {what}")
        tensors = []
        for name, dtype in zip(self.inputs, self._dtypes, strict=True):
            tensor = tf.convert_to_tensor(by_name[name], dtype_hint=dtype)
            is_floating = tensor.dtype.is_floating and dtype.is_floating
            if tensor.dtype != dtype and not is_floating:
                raise TypeError(
                    f"PatchedModel: {name} is {dtype.name} in the graph, and found "
                    f"{tensor.dtype.name}"
                )
            tensors.append(tf.cast(tensor, dtype))
        return tensors

    def get_config(self) -> dict[str, Any]:
        """Return the patched graph, compressed, as text."""
        data = base64.b64encode(zlib.compress(self._data)).decode()
        own = {"model": data, "inputs": self.inputs, "outputs": self.outputs}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Return the layer of a config."""
        data = zlib.decompress(base64.b64decode(config["model"]))
        return cls(**{**config, "model": data})


def _loaded(model: str | Path | bytes | Model) -> Model:
    loaded = model_from("model", model)
    if len(loaded.graphs) != 1 or loaded.graphs[0].around.is_object_based:
        raise ModelError(
            f"{loaded.path}: a {loaded.format} that TensorFlow 2 wrote, or with several "
            f"MetaGraphDefs; PatchedModel takes one graph with its weights as constants. Load a "
            f"patched TF2 SavedModel with tf.saved_model.load"
        )
    return loaded


LAYERS = (BackwardAs, GradientFilter, PatchedModel, Surrogate)


def for_tensorflow() -> dict[str, type]:
    """Return the classes for tf.keras: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set.

    Raises ImportError where Keras 3 runs on another backend than TensorFlow.
    """
    return _classes_for(tf.keras.layers.Layer)


def for_legacy() -> dict[str, type]:
    """Return the classes for tf_keras. Raises ImportError where it is not installed."""
    import tf_keras

    return _classes_for(tf_keras.layers.Layer)


@cache
def _classes_for(layer: type) -> dict[str, type]:
    """Return the classes for the Keras whose layers are of this class, registered with it."""
    # `keras` itself: tf.keras lacks some of its modules.
    keras = importlib.import_module(layer.__module__.partition(".")[0])
    backend = getattr(keras.backend, "backend", lambda: "tensorflow")()
    if backend != "tensorflow":
        raise ImportError(
            f"the layers of graphpatch need the TensorFlow backend of Keras, and found "
            f"{backend!r}: set KERAS_BACKEND=tensorflow before Keras is imported"
        )
    register = keras.utils.register_keras_serializable(package="graphpatch")
    made = {}
    for base in LAYERS:
        fields = {"__doc__": base.__doc__, "__module__": f"graphpatch.{keras.__name__}"}
        made[base.__name__] = register(
            type(base.__name__, (base, layer), {**fields, "keras": keras})
        )
    return made


def graph_function(
    model: Model, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[TensorFunction, list[Any]]:
    """Return the function from the inputs of a graph to its outputs, and the dtypes of its inputs.

    Raises OutputError where a name is not that of a tensor outside of v1 loops and branches, an
    output needs a placeholder that is not among the inputs, or the graph holds what a function
    cannot: variables or tables.
    """
    graph = model.graphs[0]
    export = Export(tuple(inputs), tuple(outputs))
    signature = {tensor.tensor: tensor for tensor in exported(graph, export, True).inputs}
    inside = inside_control_flow(graph.main)
    for text in (*inputs, *outputs):
        if graph.main.node(op_of(text)).index in inside:
            raise OutputError(f"{text} is inside a v1 loop or branch; name a tensor outside of it")
    ordered = [signature[str(parse(text))] for text in inputs]
    fed = tuple(map(_fed_argument, ordered))
    extract = Extract(graph, fed, tuple(outputs))
    part = opened(b"".join(map(piece_bytes, extract.pieces())), model.path)
    graph_def, part_graph = part.graph_def(), part.graphs[0]
    specs = [
        tf.TensorSpec(cut.shape, cut.dtype, tensor.argument.name)
        for cut, tensor in zip(fed, ordered, strict=True)
    ]
    placeholders = [f"{name}:0" for name in extract.placeholders().values()]
    results, dtypes = list(map(full_tensor_name, outputs)), [spec.dtype for spec in specs]
    if has_control_flow(part_graph.main):

        def build(*tensors: Any) -> list[Any]:
            _refuse_random(part_graph)
            import_model(part, SCOPE, input_map=dict(zip(placeholders, tensors, strict=True)))
            default = tf.compat.v1.get_default_graph()
            return [default.get_tensor_by_name(f"{SCOPE}/{text}") for text in results]

        register_gradients(part)
        forward = _wrapped(_without_keys(graph_def), placeholders, results, specs)
        return _differentiated_in_a_graph(forward, build, specs), dtypes
    nodes = (node for node in overridden_ops(part_graph) if node.body.is_main)
    patched = {n.name: gradient for n in nodes if (gradient := gradient_of(n)) is not None}
    # TensorFlow looks keys up where it differentiates the bodies of While, If and calls.
    register_keys(part_graph, lambda node: not node.body.is_main)

    def override(tensors: list[Any]) -> list[Any]:
        """Give patched ops their gradients in the place of keys, once they are imported."""
        replaced: dict[str, Any] = {}
        for name, gradient in patched.items():
            op = tensors[0].graph.get_operation_by_name(f"{SCOPE}/{name}")
            op._clear_attr(OVERRIDE)
            replaced |= _with_new_gradient(op, gradient)
        return [replaced.get(tensor.name, tensor) for tensor in tensors]

    return _wrapped(graph_def, placeholders, results, specs, override), dtypes


def _wrapped(
    graph_def: Any,
    placeholders: Sequence[str],
    results: Sequence[str],
    specs: Sequence[Any],
    change: Callable[[list[Any]], list[Any]] = list,
) -> Any:
    """Return the concrete function from placeholders of a GraphDef to its tensors `results`."""
    # TensorFlow keeps the functions of all that runs eagerly in one library, and refuses a name
    # with another definition: that of the original beside the patched one, for example.
    suffix, library = f"_layer_{next(_NUMBERS)}", graph_def.library
    names = {name: f"{name}{suffix}" for name in (f.signature.name for f in library.function)}
    rename_calls(nodes_in(graph_def), names)
    for function in library.function:
        function.signature.name = names[function.signature.name]
    for gradient in library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)

    def imported(*tensors: Any) -> list[Any]:
        read = dict(zip(placeholders, tensors, strict=True))
        return change(spliced(graph_def, read, results, SCOPE))

    with tf.init_scope():
        return tf.compat.v1.wrap_function(imported, specs)


def _differentiated_in_a_graph(
    forward: Any, build: TensorFunction, specs: Sequence[Any]
) -> TensorFunction:
    """Return a concrete function with the gradient that tf.gradients builds in a tf.Graph.

    `build` puts what the function computes into the current graph. The gradient, which is built
    once it is asked for, computes that again; its own gradient is one in the same way.
    """
    outputs = forward.outputs
    places = [n for n, y in enumerate(outputs) if y.dtype.is_floating or y.dtype.is_complex]

    def build_gradient(*tensors: Any) -> list[Any]:
        """Put the gradients of inputs, followed by dy, into the current graph; None for none."""
        values, upstream = build(*tensors[: len(specs)]), tensors[len(specs) :]
        dxs = gradients([values[place] for place in places], tensors[: len(specs)], upstream)
        return [dx if dx is None else tf.identity(tf.convert_to_tensor(dx)) for dx in dxs]

    @cache
    def gradient() -> tuple[TensorFunction, list[int]]:
        """Return the gradients as a function of inputs and dy, and which inputs have one."""
        upstream = [tf.TensorSpec(outputs[place].shape, outputs[place].dtype) for place in places]
        all_specs = [*specs, *upstream]
        with tf.init_scope(), control_flow(False), tf.Graph().as_default() as graph:
            fed = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in all_specs]
            dxs = build_gradient(*fed)
        slots = [slot for slot, dx in enumerate(dxs) if dx is not None]
        graph_def, names = _without_keys(graph.as_graph_def()), [dxs[slot].name for slot in slots]
        function = _wrapped(graph_def, [tensor.name for tensor in fed], names, all_specs)

        def build_again(*tensors: Any) -> list[Any]:
            return [dx for dx in build_gradient(*tensors) if dx is not None]

        return _differentiated_in_a_graph(function, build_again, all_specs), slots

    def computed(*tensors: Any) -> list[Any]:
        # Nothing flows into the function: a tape would differentiate it at once.
        values = forward(*map(tf.stop_gradient, tensors))

        def by_input(op: Any, *upstream: Any) -> list[Any]:
            dys = [dense(values[place], upstream[place]) for place in places]
            function, slots = gradient()
            dxs = dict(zip(slots, function(*op.inputs, *dys), strict=True))
            return [dxs.get(slot) for slot in range(len(tensors))]

        return with_gradient(values, tensors, by_input)

    return computed


def _without_keys(graph_def: Any) -> Any:
    """Take off the keys of gradients: nobody differentiates it, and saving would ask for them."""
    for node in nodes_in(graph_def):
        node.attr.pop(OVERRIDE, None)
    return graph_def


def _refuse_random(graph: ModelGraph) -> None:
    """Raise ModelError for a random op: computed again, it would draw other numbers."""
    for node in (node for body in graph.bodies for node in body):
        if node.opdef is not None and any(attr.name == "seed" for attr in node.opdef.attrs):
            raise ModelError(
                f"{node} is random, in a graph with v1 loops or branches: a tape computes the "
                f"graph again for the gradient, which would be that of other numbers; name its "
                f"tensor among the inputs, or differentiate the graph in a Session "
                f"(graphpatch.import_model)"
            )


def _fed_argument(tensor: ExportedTensor) -> Fed:
    shape = None if tensor.shape.unknown_rank else [dim.size for dim in tensor.shape.dim]
    sizes = None if shape is None else [None if size < 0 else size for size in shape]
    return Fed(tensor.tensor, DTYPE_NAMES[tensor.argument.type], sizes)


def _with_new_gradient(op: Any, gradient: GradientFunction) -> dict[str, Any]:
    """Let whatever reads an op read its values with another gradient; these tensors by the old."""
    values = list(op.outputs)
    readers = [value.consumers() for value in values]
    new = with_gradient(values, op.inputs, gradient, type=op.type, get_attr=op.get_attr)
    for value, tensor, reading in zip(values, new, readers, strict=True):
        redirect(reading, value, tensor)
    return {value.name: tensor for value, tensor in zip(values, new, strict=True)}
