"""Recipes: ready rules by name, for whole methods: `@guided_backprop`, `@reverse(at=features)`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from graphpatch.errors import RulesError, did_you_mean
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.library.differences import one_active
from graphpatch.gradients.library.entry import ACTIVATIONS, ANCONA, GUIDED_BACKPROP
from graphpatch.gradients.library.relevance import BATCH_NORMS, LINEAR_OPS, OF_RELEVANCE
from graphpatch.gradients.op_gradients import NO_SECOND, SECOND
from graphpatch.gradients.ops import FLOATS
from graphpatch.graph.op_types import REF_VARIABLES, RESOURCE_VARIABLE
from graphpatch.names import is_glob

SIGN = "@"
RECIPE_ACTIVATIONS = (*ACTIVATIONS, "Softmax", "LogSoftmax", "Erf", "CRelu")
CONVOLUTIONS_2D = ("Conv2D", "DepthwiseConv2dNative")
_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]

SEVERAL = (
    "a call takes one recipe; apply one after the other, or put the rules of all into one rules"
    " file: `graphpatch recipes NAME --save FILE.json` writes those of one"
)

_SPELLED = re.compile(r"@([\w-]+)(?:\((.*)\))?", re.ASCII | re.DOTALL)
_ANOTHER = re.compile(rf"[,\s]{SIGN}\w")  # behind the first
HALF_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes typed that are not UTF-8

RulesJson = list[dict[str, Any]]


class Recipe(msgspec.Struct, frozen=True, eq=False):
    """A method as rules: what it is for, where it is from, what it takes and makes.

    `explains`: it is about activations, so that the report names those that it leaves alone.
    `example`: how a parameter that must be given is given. `needs`: op types without one of which a
    model has nothing for it, and what to do then.
    """

    name: str
    purpose: str
    source: str
    make: Callable[..., RulesJson]
    explains: bool = False
    example: str = ""
    needs: tuple[frozenset[str], str] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the default of each parameter; None where it must be given."""
        taken = inspect.signature(self.make).parameters.values()
        return {each.name: None if each.default is each.empty else each.default for each in taken}

    @property
    def spelled(self) -> str:
        """Return how it is called: `@reverse(at=, strength=1)`."""
        parameters = [f"{k}={'' if v is None else v}" for k, v in self.parameters.items()]
        return SIGN + self.name + (f"({', '.join(parameters)})" if parameters else "")


def rule(name: str, match: Any, patch: Any, at_least: int = 1) -> dict[str, Any]:
    """Return a rule as a rules file has it."""
    document = {"name": f"{SIGN}{name}", "match": match, "patch": patch}
    return document if at_least else {**document, "expect": {"min": 0}}


# Activations of several ops. A rule for single ops comes behind theirs, and leaves their ops alone.

RECTIFIERS = {
    "leaky and parametric ReLUs": (["@leaky_relu", "@prelu"], "x0 > 0, 1, x1", 1),
    "leaky ReLUs by Abs": ("@leaky_relu_by_abs", "x0 > 0, x1 + x2, x1 - x2", 2),
    "PReLUs of a negated slope": ("@prelu_of_negated_slope", "x0 > 0, 1, -x1", 1),
    "PReLUs of half a slope": ("@prelu_of_half_slope", "x0 > 0, 1, 2 * x1", 1),
}
"""By what they are called: the pattern, the slope as a choice, how many tensors it reads besides x.

What is read besides x gets no gradient.
"""

SMOOTH = {
    "swish": (
        "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul",
        "dy * sigmoid(x) * (1 + x * sigmoid(-x))",
    ),
    "hard_swish": ("@hard_swish", "dy * where(x < -3, 0, where(x > 3, 1, x / 3 + 0.5))"),
    "gelu": (
        "@gelu",
        "dy * (0.5 + 0.5 * erf(x * 0.7071067811865476)"
        " + x * exp(-0.5 * square(x)) * 0.3989422804014327)",
    ),
}
"""By what it is called: the pattern, which reads x alone, and its own gradient."""

OF_ANY_FORM = ("lrp_epsilon", "deeplift_batch", "identity")
"""Gradients for activations of any form: quotients of what these give and read, or dy."""

FORMULAS = {
    "guided_relu": "where(dy > 0, own(dy), 0)",
    **{
        name: str(LIBRARY[name].text)
        for name in ("deconv_relu", "rectified_gradient", *OF_ANY_FORM)
    },
}
"""By the gradient of single ops, what flows back to x; `own(dy)` is the activation's gradient."""

# Ops of a swish with a factor, and of a hard swish: they are left alone with it.
_INSIDE_OTHERS = [
    {"op": "Sigmoid", "inputs": {"0": {"op": "Mul"}}, "consumers": {"any": {"pattern": "@swish"}}},
    {
        "op": "Relu6",
        "inputs": {"0": {"op": ["Add", "AddV2"]}},
        "consumers": {"any": {"consumers": {"any": {"pattern": "@hard_swish"}}}},
    },
]
_SINGLE = {"taken": False, "not": {"any": _INSIDE_OTHERS}}


def several_ops(name: str, gradient: str, numbers: Mapping[str, Any]) -> RulesJson:
    """Return the rules of a recipe that give activations of several ops the like of a gradient."""
    forms: dict[str, tuple[Any, str, int]] = {
        kind: (pattern, f"dy * where({slope})", others)
        for kind, (pattern, slope, others) in RECTIFIERS.items()
    }
    if gradient in OF_ANY_FORM:
        forms |= {kind: (pattern, own, 0) for kind, (pattern, own) in SMOOTH.items()}
    constants = {parameter.name: parameter.default for parameter in LIBRARY[gradient].parameters}
    constants |= numbers
    rules = []
    for kind, (pattern, own, others) in forms.items():
        text = FORMULAS[gradient].replace("own(dy)", own)
        spec: dict[str, Any] = {"formula": [text, *[None] * others] if kind in RECTIFIERS else text}
        spec |= {"constants": constants} if constants else {}
        patch = {"override_gradient": spec, "on": "match"}
        rules.append(rule(f"{name}: {kind}", {"pattern": pattern}, patch, at_least=0))
    return rules


def _override_rule(name: str, gradient: Any, match: Any, at_least: int = 1) -> dict[str, Any]:
    return rule(name, match, {"override_gradient": gradient}, at_least)


def _activations(name: str, gradient: str, *more_ops: str, **numbers: float) -> RulesJson:
    """Return rules for activations of several ops, then for those of one.

    A gradient is for the ops of its family, and `more_ops`. That no rule matches is an error.
    """
    ops = list(dict.fromkeys([*LIBRARY[gradient].ops, *more_ops]))
    spec = {gradient: numbers} if numbers else gradient
    single = _override_rule(name, spec, {"op": ops, **_SINGLE}, 0)
    return [*several_ops(name, gradient, numbers), single]


def _of_family(name: str, gradient: str, **numbers: float) -> RulesJson:
    return _activations(name, gradient, *LIBRARY[gradient].by_op_type, **numbers)


Row = tuple[str, Any, Iterable[str], Any]  # what it is called, gradient, op types, inputs


def _by_inputs(name: str, of: str, *rows: Row) -> RulesJson:
    """Return rules for ops that read such inputs, give floats, and are no part of other matches."""
    rules = []
    for word, gradient, ops, inputs in rows:
        spec = gradient if isinstance(gradient, str) else {"formula": gradient}
        match = {"op": list(ops), "dtype": list(FLOATS), "inputs": inputs, "taken": False}
        rules.append(_override_rule(f"{name}: {word} from {of}", spec, match, 0))
    return rules


def _active(of: str) -> dict[str, Any]:
    """Return what is a tensor, or computed from it by way of floats: not of its shape alone."""
    walk = {"of": of, "within": {"dtype": list(FLOATS)}}
    return {"any": [{"name": of.partition(":")[0]}, {"downstream_of": walk}]}


def _deeplift(of: str = "") -> RulesJson:
    """Write the rules of DeepLIFT; `of` also takes ops that read tensors computed from that one."""
    *several, single = _of_family("deeplift", "deeplift_batch")
    if not of:
        return [*several, single]
    active, pairs = _active(of), LIBRARY["deeplift_pair_batch"].ops
    both, rest = {"0": active, "1": active}, {"not": active}
    rows: list[Row] = [
        ("products", "deeplift_product_batch", LIBRARY["deeplift_product_batch"].ops, both),
        ("pairs", "deeplift_pair_batch", pairs, both),
        ("first inputs", [one_active("x0"), None], pairs[1:], {"0": active, "1": rest}),
        ("second inputs", [None, one_active("x1")], pairs, {"0": rest, "1": active}),
    ]
    rows += [(op, [one_active("x0", slope)], [op], {"0": active}) for op, slope in _SLOPES.items()]
    return [*several, *_by_inputs("deeplift", of, *rows), single]


def _relevance(name: str, of: str) -> RulesJson:
    """Write rules of all ops but those that only move elements: relevance flows, no multiplier."""
    active = _active(of)
    reads = {"0": active}
    of_x0, of_x1 = (f"{x} * own(where(y == 0, 0, dy / y))" for x in ("x0", "x1"))
    rows: list[Row] = [
        ("batch norm", ["dy", *[None] * 4], BATCH_NORMS, reads),
        ("sums", [of_x0, of_x1], _SHIFTS[:3], {"all": active}),
        ("shifts", ["dy", None], _SHIFTS, {"0": active, "1": {"not": active}}),
        ("shifts", [None, "dy"], _SHIFTS, {"0": {"not": active}, "1": active}),
        ("terms", [of_x0, None], ["Sum"], reads),
        ("layers", [OF_RELEVANCE[name], None], LINEAR_OPS, {"0": active, "1": {"not": active}}),
    ]
    if name != "deep_taylor":  # whose means share in equal parts, as TensorFlow's gradient does
        rows += [("means", [of_x0, None], ["Mean"], reads), ("means", [of_x0], ["AvgPool"], reads)]
    rows.append(("activations", ["dy"], [*LIBRARY["deeplift_batch"].ops, "Neg"], reads))
    return [*several_ops(name, "identity", {}), *_by_inputs(name, of, *rows)]


def _lrp_composite(epsilon: float = 1e-4, first: str = "") -> RulesJson:
    """Write z-plus at convolutions, epsilon at activations; biases and batch norm get nothing."""
    name = "lrp_composite"
    convolution: dict[str, Any] = {"op": list(CONVOLUTIONS_2D)}
    # A bias is added to a convolution, and no other tensor.
    variable = {"op": ["Const", REF_VARIABLES[0], RESOURCE_VARIABLE]}
    read = {"op": ["Identity", "ReadVariableOp"], "inputs": {"0": variable}}
    bias = {"op": "BiasAdd", "inputs": {"0": convolution}}
    weights = {"any": [variable, read]}
    added = {"op": ["Add", "AddV2"], "inputs": {"0": convolution, "1": weights}}
    others = {"all": [convolution, {"not": {"name": first}}]} if first else convolution
    *several, single = _activations(name, "lrp_epsilon", epsilon=epsilon)
    # In this order: what a rule adds is never what a later one is for.
    rules = [
        _override_rule(f"{name}: biases", "lrp_pass", {"any": [bias, added]}, 0),
        _override_rule(f"{name}: batch norm", "lrp_pass", {"op": list(BATCH_NORMS)}, 0),
        *several,
        {**single, "name": f"@{name}: activations"},
        _override_rule(f"{name}: means", "lrp_zplus", {"op": "AvgPool"}, 0),
        _override_rule(f"{name}: z-plus", "lrp_zplus", others),
    ]
    return [*rules, _override_rule(f"{name}: first", "lrp_w2", {"name": first})] if first else rules


def _straight_through_rules(name: str = "") -> RulesJson:
    match: dict[str, Any] = {"op": list(_STEP_TYPES)}
    match |= {"not": {"dtype": _INTEGERS}}  # lengths of sequences are counted by Sign, as ints
    match |= {"name": name} if name else {}
    return [rule("straight_through", match, {"straight_through": True})]


def _reverse(at: str, strength: float = 1.0) -> RulesJson:
    """Reverse at all outputs of an op, or at one, which `at` names as a tensor: `features:0`."""
    op, colon, place = at.rpartition(":")
    patch: dict[str, Any] = {"filter_gradient": {"reverse": {"strength": strength}}}
    if colon and place.isdecimal():
        return [rule("reverse", {"name": op}, {**patch, "at": f"output:{place}"})]
    return [rule("reverse", {"name": at}, patch)]


def _freeze(scope: str) -> RulesJson:
    """Return a scope with all that is in it: FC1, and FC1/**; a glob as it is written."""
    scope = scope.rstrip("/")
    variable = {"op": list(_TRAINABLE), "name": scope if is_glob(scope) else [scope, f"{scope}/**"]}
    ops = ["Identity", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"]
    read = {"op": ops, "inputs": {"0": variable}}
    return [rule("freeze", read, {"freeze": True})]


def _second_derivatives() -> RulesJson:
    name = "second_derivatives"
    return [
        _override_rule(
            f"{name}: {op_type}",
            {"formula": list(texts)},
            {"op": op_type, "not": {"name": f"**/{NO_SECOND}*/**"}},
            0,
        )
        for op_type, texts in SECOND.items()
    ]


_SHIFTS = ("Add", "AddV2", "Sub", "Mul", "RealDiv")
_SLOPES = {"Exp": "y", "Log": "1 / x0", "Sqrt": "0.5 / y", "Rsqrt": "-0.5 * y / x0"}
_SLOPES |= {"Square": "2 * x0", "Reciprocal": "-y * y", "Abs": "sign(x0)", "Expm1": "1 + y"}
_SLOPES |= {"Log1p": "1 / (1 + x0)", "Erf": "1.1283791670955126 * exp(-x0 * x0)"}
_TRAINABLE = (*REF_VARIABLES, RESOURCE_VARIABLE)  # recipes name them in this order
_STEP_TYPES = ("Round", "Rint", "Floor", "Ceil", "Sign")
_NO_STEPS = (
    f"the model has no {', '.join(_STEP_TYPES)}; FakeQuant ops and functions of "
    f"tf.custom_gradient have a gradient of their own, and a comparison needs a surrogate_gradient"
)
_NO_VARIABLES = (
    "the model has no variables (in a frozen model they are constants), so there is nothing to "
    "train; to let no gradient pass a tensor: "
    '{"match": {"name": "TENSOR"}, "patch": {"stop_gradient": true}}'
)
_NO_CONVOLUTIONS = (
    f"the model has no convolution ({', '.join(CONVOLUTIONS_2D)}), which the z-plus rule is for: "
    "@lrp_epsilon is the rule for dense layers"
)

_NO_GRADIENT_OPS = (
    f"the model has no {', '.join(SECOND)}: ops that TensorFlow's first gradients add; build these "
    "first (tf.gradients), and patch the graph that has them"
)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                "guided_backprop",
                "guided backpropagation, for the whole ReLU family",
                GUIDED_BACKPROP,
                lambda: _of_family("guided_backprop", "guided_relu"),
                explains=True,
            ),
            Recipe(
                "deconvnet",
                "deconvnet: only the positive part of the gradient passes activations",
                "Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014",
                lambda: _of_family("deconvnet", "deconv_relu"),
                explains=True,
            ),
            Recipe(
                "rectified_gradient",
                "rectified gradient: of each layer the parts that matter most",
                LIBRARY["rectified_gradient"].source,
                lambda q=0.98: _of_family("rectified_gradient", "rectified_gradient", q=q),
                explains=True,
            ),
            Recipe(
                "deeplift",
                "DeepLIFT (rescale), max pooling and softmax as in DeepSHAP: feed examples and,"
                " behind them in the batch, as many references; of=INPUT: products of what depends"
                " on it, too",
                LIBRARY["deeplift_batch"].source,
                _deeplift,
                explains=True,
            ),
            Recipe(
                "lrp_epsilon",
                "layer-wise relevance propagation by the epsilon rule: input * gradient",
                ANCONA,
                lambda epsilon=1e-4: _activations("lrp_epsilon", "lrp_epsilon", epsilon=epsilon),
                explains=True,
            ),
            Recipe(
                "lrp_composite",
                "LRP with z-plus at convolutions and mean pooling, epsilon at activations, w-square"
                " at the op `first`; biases of convolutions and batch norm get no relevance",
                "Montavon et al., Layer-Wise Relevance Propagation: An Overview, 2019",
                _lrp_composite,
                explains=True,
                needs=(frozenset(CONVOLUTIONS_2D), _NO_CONVOLUTIONS),
            ),
            *(
                Recipe(
                    name,
                    f"{method} at all layers; of the tensor `of`, relevance is output * gradient",
                    LIBRARY[source].source,
                    partial(_relevance, name),
                    explains=True,
                    example="of=image",
                )
                for name, method, source in (
                    ("lrp_flat", "LRP by the flat rule", "lrp_flat"),
                    ("lrp_w2", "LRP by the w-square rule", "lrp_w2"),
                    ("deep_taylor", "deep Taylor decomposition: the z-plus rule", "lrp_w2"),
                )
            ),
            Recipe(
                "straight_through",
                "straight-through estimators: Round, Floor, Ceil, Sign count as the identity",
                LIBRARY["straight_through"].source,
                _straight_through_rules,
                needs=(frozenset(_STEP_TYPES), _NO_STEPS),
            ),
            Recipe(
                "reverse",
                "gradient reversal at a tensor, for domain-adversarial training",
                LIBRARY["reverse"].source,
                _reverse,
                example="at=features, strength=0.3",
            ),
            Recipe(
                "second_derivatives",
                "gradients of gradient ops for which TensorFlow has none, as of resized images:"
                " for gradient penalties and MAML, where the file has first gradients",
                "definition: most are linear, and have the forward op as their gradient",
                _second_derivatives,
                needs=(frozenset(SECOND), _NO_GRADIENT_OPS),
            ),
            Recipe(
                "freeze",
                "training leaves the variables of a scope as they are, or they get no gradient",
                "definition",
                _freeze,
                example="scope=backbone",
                needs=(frozenset(_TRAINABLE), _NO_VARIABLES),
            ),
        )
    }
)


def is_recipe(path: object) -> bool:
    """Return whether a path of a rules file is the call of a recipe."""
    return isinstance(path, str) and path.startswith(SIGN)


def recipe_of(rule: str) -> Recipe | None:
    """Return the recipe that makes a rule of this name, `@NAME` or `@NAME: ...`."""
    return RECIPES.get(rule[1:].partition(":")[0]) if is_recipe(rule) else None


def recipe_called(name: object) -> str:
    """Return a clause with the recipe that has this name; or nothing."""
    return f"; the recipe of this name is {SIGN}{name}" if str(name) in RECIPES else ""


def recipe_rules(spelled: str) -> dict[str, Any]:
    """Return the rules file of a recipe, as it is called: `@reverse(at=features, strength=0.3)`.

    Raises RulesError, with the nearest name, for one that does not exist, and for a parameter that
    it does not have, that is missing, or that is not of the kind of its default.
    """
    parts = _SPELLED.fullmatch(spelled)
    if _ANOTHER.search(spelled):
        raise RulesError(f"{spelled!r}: {SEVERAL}")
    if parts is None:
        raise RulesError(f"expected @NAME or @NAME(key=value, ...), found {spelled!r}")
    if HALF_SURROGATE.search(spelled):
        raise RulesError(f"{spelled!r} is not UTF-8, as the names of ops are")
    name, parameters = parts.groups("")
    if name not in RECIPES:
        near = did_you_mean(name, RECIPES) or f"; there are: {', '.join(RECIPES)}"
        raise RulesError(f"no recipe is called {name!r}{near}")
    recipe = RECIPES[name]
    return {"version": 1, "rules": recipe.make(**_with_parameters(recipe, parameters))}


def _with_parameters(recipe: Recipe, text: str) -> dict[str, Any]:
    defaults = recipe.parameters
    values = dict(defaults)
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign and len(values) == 1:
            key, value = next(iter(values)), key
        if key not in values:
            near = did_you_mean(key, values) or f"; it has: {', '.join(values) or 'none'}"
            raise RulesError(f"{SIGN}{recipe.name} has no parameter {key!r}{near}")
        try:
            values[key] = float(value) if isinstance(defaults[key], float) else value
        except ValueError:
            raise RulesError(f"{SIGN}{recipe.name}: {key} is {value!r}, not a number") from None
        if isinstance(values[key], float) and not math.isfinite(values[key]):
            raise RulesError(f"{SIGN}{recipe.name}: {key} is {value!r}, not a finite number")
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise RulesError(
            f"{SIGN}{recipe.name} needs {missing[0]}, which says where; for example: "
            f"'{SIGN}{recipe.name}({recipe.example})'"
        )
    return values
