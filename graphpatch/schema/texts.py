"""What the schema says of each property, with an example that is legal there."""

from __future__ import annotations

from typing import Any

# The name of the type in the schema and of its property; the description, and an example.
TEXTS: dict[str, tuple[str, Any]] = {
    "RulesFile.$schema": (
        "The path of this schema, for editors; graphpatch does not read it.",
        "graphpatch.schema.json",
    ),
    "RulesFile.version": ("The version of the rule language.", 1),
    "RulesFile.rules": (
        "The rules, applied in order, each on the result of the one before.",
        [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
    ),
    "Rule.name": ("What reports and errors call the rule.", "guided backprop"),
    "Rule.match": (
        "Which ops: all keys must hold.",
        {"op": ["Relu", "Relu6"], "name": "head/**"},
    ),
    "Rule.patch": (
        "What happens to each matched op: exactly one kind of patch.",
        {"override_gradient": "guided_relu"},
    ),
    "Rule.expect": (
        "How often the rule must match: a number, or bounds. Default: at least once.",
        {"min": 1, "max": 4},
    ),
    "Rule.emit": (
        "How the file stores the new gradient. Default: auto, or --emit of the command.",
        "function",
    ),
    "Expect.min": ("The least number of matches; 0 allows none.", 1),
    "Expect.max": ("The largest number of matches. Default: any.", 4),
    "Match.op": ("The op type, or several, or a glob.", ["Relu", "*Relu*"]),
    "Match.name": (
        "The op's name, or several, or a glob: `*` stays within one scope, `**` crosses `/`.",
        "resnet/**/conv*",
    ),
    "Match.name_regex": (
        "A regular expression (RE2) that must match the whole name.",
        r"block\d+/relu",
    ),
    "Match.attr": (
        "Attrs by name: a value; one of several with `in`; true if there, false if not there.",
        {"T": "float32", "padding": {"in": ["SAME", "VALID"]}},
    ),
    "Match.dtype": ("The dtype of output 0, or several.", "float32"),
    "Match.inputs": (
        "What the ops that give the inputs must be: by input number, or any, all, none.",
        {"0": {"op": "Conv2D"}},
    ),
    "Match.consumers": (
        "What the ops that read the outputs must be: by output number, or any, all, none.",
        {"any": {"op": "BiasAdd"}},
    ),
    "Match.value": (
        "The op is a Const of this value.",
        {"near": 0.5, "tolerance": 1e-6},
    ),
    "Match.between": (
        "The op lies on a path between these tensors.",
        {"from": ["images"], "to": ["logits"]},
    ),
    "Match.upstream_of": ("The op computes one of these tensors.", "logits"),
    "Match.downstream_of": ("The op is computed from one of these tensors.", ["images"]),
    "Match.body": ("`main`, or functions by name or glob. Default: all.", "main"),
    "Match.shape": ("The static shape of output 0: sizes, rank or number of elements.", [-1, 8]),
    "Match.class": ("A class of ops, or several.", "activation"),
    "Match.inside": ("The op lies in a loop or in a branch.", "loop"),
    "Match.taken": (
        "Whether an earlier rule patched the op: true, false, or the name of that rule.",
        "guided backprop",
    ),
    "Match.nth": ("Which of the ops that match, counted from 0; -1 is the last.", 0),
    "Match.any": ("At least one of these matches holds.", [{"op": "Relu"}, {"name": "head/**"}]),
    "Match.all": ("Each of these matches holds.", [{"op": "Relu"}, {"name": "head/**"}]),
    "Match.not": ("This match does not hold.", {"name": "head/**"}),
    "Match.pattern": (
        "A small graph: text, a ready one by name, an object, or several of these.",
        "conv:Conv2D -> bias:BiasAdd -> act:Relu|Relu6",
    ),
    "Match.control": (
        "Follow control edges too, for the keys beside it that follow edges. Default: false.",
        True,
    ),
    "OneOf.in": ("The attr has one of these values.", ["SAME", "VALID"]),
    "Near.near": ("The value, a number or a list of them.", 0.5),
    "Near.tolerance": ("How far each element may differ from it. Default: 1e-6.", 0.001),
    "Between.from": ("Tensors at which paths start.", ["images"]),
    "Between.to": ("Tensors at which paths end.", ["logits"]),
    "Compared.>": ("Each number is above this one.", 0),
    "Compared.<": ("Each number is below this one.", 2),
    "Compared.>=": ("Each number is at least this one.", 1),
    "Compared.<=": ("Each number is at most this one.", 8),
    "Compared.!=": ("Each number is not this one.", 0),
    "OneOf.>": ("Each number is above this one.", 0),
    "OneOf.<": ("Each number is below this one.", 2),
    "OneOf.>=": ("Each number is at least this one.", 1),
    "OneOf.<=": ("Each number is at most this one.", 8),
    "OneOf.!=": ("Each number is not this one.", 0),
    "Near.>": ("Each number is above this one.", 0),
    "Near.<": ("Each number is below this one.", 2),
    "Near.>=": ("Each number is at least this one.", 1),
    "Near.<=": ("Each number is at most this one.", 8),
    "Near.!=": ("Each number is not this one.", 0),
    "Shape.rank": ("The number of dimensions.", 4),
    "Shape.elements": ("The number of elements.", {"<": 100}),
    "Shape.sizes": ("The sizes; -1 is any.", [-1, 8]),
    "Inside.loop": ("Loops, by name or glob.", "rnn/while*"),
    "Inside.branch": ("Conds, by name or glob.", "cond*"),
    "Inside.when": ("Which branch: where the predicate is true, or false.", True),
    "Nth.at": ("A number, first, last, a list of numbers, or a slice.", ":-1"),
    "Nth.by": ("The order in which they are counted. Default: graph.", "name"),
    "Between.within": ("Paths lead only through such ops.", {"class": "elementwise"}),
    "Between.stop_at": ("Paths lead through no such op.", {"op": "MaxPool"}),
    "Between.ends": ("Whether the ops at both ends match too. Default: true.", False),
    "Walk.of": ("Tensors where the walk starts.", "logits"),
    "Walk.within": ("The walk leads only through such ops.", {"class": "elementwise"}),
    "Walk.stop_at": ("The walk ends at such ops.", {"op": "MaxPool"}),
    "Pattern.nodes": (
        "Names for the ops, and what each must be.",
        {"bias": {"op": "BiasAdd"}, "act": {"op": ["Relu", "Relu6"]}},
    ),
    "Pattern.edges": (
        "Which op reads which: names of the source and of the target, and how they are linked.",
        [["bias", "act", {"input": 0}]],
    ),
    "Pattern.tensors": ("Names of tensors that are read from outside.", ["x"]),
    "Pattern.optional": ("Names of ops that may be missing.", ["bias"]),
    "Pattern.absent": ("Names of ops that must not be there.", ["clip"]),
    "Pattern.closed": (
        "No op outside the match reads these ops: all of them (true), or those named.",
        True,
    ),
    "Link.input": ("Which input of the target. Default: any.", 0),
    "Link.output": ("Which output of the source. Default: any.", 0),
    "Link.repeat": ("The target stands for a run of one or more ops. Default: false.", True),
    "Link.control": ("The target runs after the source and reads nothing of it.", True),
    "Patch.override_gradient": (
        "The gradient of the op is replaced by this one.",
        "guided_relu",
    ),
    "Patch.filter_gradient": (
        "What flows back through the op's outputs, or `at`, passes through this gradient.",
        {"clip": {"min": -0.1, "max": 0.1}},
    ),
    "Patch.stop_gradient": ("Nothing flows back.", True),
    "Patch.straight_through": (
        "On the way back the op counts as the identity of its input: 0, or the one named.",
        {"input": 0},
    ),
    "Patch.surrogate_gradient": (
        "On the way back the op counts as this formula of its inputs.",
        "tanh(4 * x)",
    ),
    "Patch.backward_as": (
        "On the way back the op, and what follows it up to `until`, is computed from this input.",
        {"input": 0, "until": ["z"]},
    ),
    "Patch.at": (
        "Which side: outputs (default), inputs, or one, as output:0 or input:1.",
        "inputs",
    ),
    "Patch.on": (
        'Which ops of the match\'s pattern, by name, or "match" for all as one. '
        "Default: the last one.",
        "act",
    ),
    "Input.input": ("The number of the input. Default: 0.", 1),
    "Until.input": ("The number of the input. Default: 0.", 0),
    "Until.until": (
        "The tensors at which the noise-free path ends. Default: the outputs of the graph.",
        ["z"],
    ),
    "Gradient.registered": (
        "A gradient that the program that loads the file registers under this name.",
        "MyGrad",
    ),
    "Gradient.formula": (
        "A formula of dy, inputs x0, x1, ... and outputs y0, ...; a list has one for each input.",
        "where(dy > 0, dy, 0)",
    ),
    "Gradient.python": (
        "A Python function (op, *grads); it runs only with --allow-python.",
        "mine.gradients:clipped",
    ),
}
