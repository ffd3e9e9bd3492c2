"""The pages on the library of gradients: a table of all, then a page for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from graphpatch.cli.gradients import gradient_call, gradient_formula
from graphpatch.gradients.library import LIBRARY, Entry

# What plots and examples give parameters that have no default.
GIVEN: Mapping[str, Mapping[str, float]] = {
    "scale": {"factor": 0.5},
    "clip": {"min": -1, "max": 1},
    "clip_by_norm": {"norm": 2},
    "clip_by_global_norm": {"norm": 2},
    "gradient_noise": {"stddev": 0.2},
    "lsq": {"low": -128, "high": 127},
}
# What the examples match of gradients that are for several ops as one.
PATTERNS = {
    "lsq": "RealDiv -> Round -> Mul",
    "pact": "Relu -> Minimum",
    "reveal_cancel_batch": "MatMul -> BiasAdd -> Relu",
    "reveal_cancel_conv_batch": "Conv2D -> BiasAdd -> Relu",
    "reveal_cancel_depthwise_batch": "DepthwiseConv2dNative -> BiasAdd -> Relu",
    "lrp_alpha_beta_bias": "MatMul -> BiasAdd -> Relu?",
    "lrp_alpha_beta_bias_conv": "Conv2D -> BiasAdd -> Relu?",
    "lrp_alpha_beta_bias_depthwise": "DepthwiseConv2dNative -> BiasAdd -> Relu?",
}
FORMULA_SHOWN = 64  # characters of a formula that a table has room for
CALLED = re.compile(r"^\| `((\w+)[^`]*)` \|", re.M)


def table() -> str:
    """All gradients, one line each, with links to their pages."""
    return CALLED.sub(r"| [`\1`](gradients/\2.md) |", _library_table())


def _library_table() -> str:
    lines = ["| gradient | formula | for |", "|---|---|---|"]
    for entry in LIBRARY.values():
        text = gradient_formula(entry)
        shown = (
            f"`{text}`" if len(text) <= FORMULA_SHOWN else f"`graphpatch gradients {entry.name}`"
        )
        lines.append(f"| `{gradient_call(entry)}` | {shown} | {entry.purpose} |")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the page of each gradient, by its name."""
    return {name: _page(entry) for name, entry in LIBRARY.items()}


def _page(entry: Entry) -> str:
    formula = f"```text\ndx = {gradient_formula(entry)}\n```"
    example = f"```json\n{json.dumps(_rule(entry))}\n```"
    parts = [f"# {entry.name}", _sentence(entry.purpose), formula, _facts(entry)]
    back = f"`graphpatch gradients {entry.name}` prints this. [All gradients](../gradients.md)"
    return "\n\n".join([*parts, "A rule with it:", example, back]) + "\n"


def _facts(entry: Entry) -> str:
    ops = ", ".join(f"`{name}`" for name in entry.ops) or "any with one input and one output"
    ops = f"`{PATTERNS[entry.name]}` as one op" if entry.name in PATTERNS else ops
    facts = [
        ("For op types", ops),
        *(("Parameter", _parameter(entry, place)) for place in range(len(entry.parameters))),
        ("Do not use it when", entry.avoid),
        ("Differs from the source", entry.differs),
        ("Source", entry.source),
    ]
    return "\n".join(f"- **{title}**: {text}" for title, text in facts if text)


def _rule(entry: Entry) -> dict[str, Any]:
    """At the op types that it is for; what is computed of dy alone, where the user names an op."""
    given, pattern = GIVEN.get(entry.name, {}), PATTERNS.get(entry.name)
    needed = {parameter.name for parameter in entry.parameters if parameter.default is None}
    if lacking := sorted(needed - given.keys()):
        raise LookupError(
            f"the page of {entry.name} needs an example of {', '.join(lacking)}, which has no "
            f"default: add it to GIVEN in scripts/pages/gradients.py"
        )
    spec = {entry.name: dict(given)} if given else entry.name
    if pattern:
        return {
            "match": {"pattern": pattern},
            "patch": {"override_gradient": spec, "on": "match"},
        }
    if entry.ops:
        op = entry.ops[0] if len(entry.ops) == 1 else list(entry.ops)
        return {"match": {"op": op}, "patch": {"override_gradient": spec}}
    return {"match": {"name": "encoder/features"}, "patch": {"filter_gradient": spec}}


def _parameter(entry: Entry, place: int) -> str:
    parameter = entry.parameters[place]
    default = "" if parameter.default is None else f". Default: {parameter.default:g}"
    legal = f". Legal: `{parameter.legal}`" if parameter.legal else ""
    return f"`{parameter.name}`, {parameter.does}{default}{legal}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
