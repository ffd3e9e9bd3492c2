"""Gradients of the ReLU family that make pictures of what a network looks at.

Regimes, by the signs of the input x and of the upstream gradient dy, for Relu:

|                 | x > 0, dy > 0 | x > 0, dy < 0 | x < 0, dy > 0 | x < 0, dy < 0 |
|-----------------|---------------|---------------|---------------|---------------|
| Relu's own      | dy            | dy            | 0             | 0             |
| guided_relu     | dy            | 0             | 0             | 0             |
| deconv_relu     | dy            | 0             | dy            | 0             |
| redirected_relu | dy            | dy            | 0             | dy            |
"""

from __future__ import annotations

from collections.abc import Mapping

from graphpatch.gradients.library import papers
from graphpatch.gradients.library.entry import Entry

_DECONV = "Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014"
_LUCID = "lucid, redirected_relu_grad.py, 2018 (Olah, Mordvintsev and Schubert, 2017)"

_GUIDED_PURPOSE = "guided backpropagation: the op's own gradient where dy is positive, else 0"
_GUIDED_AVOID = (
    "the map must tell classes apart: it shows edges whatever the weights are"
    " (Adebayo et al., Sanity Checks for Saliency Maps, 2018)"
)
_BEYOND_RELU = "the paper has only Relu; here the op's own gradient of the positive part of dy"

_LUCID_PURPOSE = (
    "feature visualization by descent: an example that would get no gradient at all gets the part"
    " that pushes its inputs back into the active range"
)
_LUCID_AVOID = "you train a network: this is for optimizing its input"
_LUCID_REACH = (
    "lucid stops this after 16 global steps; a file has no global step. Both decide for each"
    " example of a batch; lucid's tf.compat.v2.where is right only for a batch of one. It refuses"
    " tensors without a batch axis"
)

_FAMILY = {
    "Relu6": "guided_relu6",
    "LeakyRelu": "guided_leaky_relu",
    "Elu": "guided_elu",
    "Selu": "guided_selu",
    "Softplus": "guided_softplus",
}


def _guided(name: str, text: str, op_type: str) -> Entry:
    fields = (name, text, _GUIDED_PURPOSE, _GUIDED_AVOID, papers.GUIDED_BACKPROP)
    return Entry(*fields, ops=(op_type,), reach=_BEYOND_RELU)


def _redirected(
    name: str, blocked: str, against: str, op_type: str, by_op_type: Mapping[str, str]
) -> Entry:
    """Lucid's gradient, given which units are `blocked`, and where dy pushes further `against`."""
    own = f"where({blocked}, 0, dy)"
    some = f"max(abs({own}), from_axis=1, keepdims=true) > 0"
    text = f"where({some}, {own}, where({against}, 0, dy))"
    fields = (name, text, _LUCID_PURPOSE, _LUCID_AVOID, _LUCID, (), (op_type,))
    return Entry(*fields, by_element=False, by_op_type=by_op_type, reach=_LUCID_REACH)


ACTIVATION_GRADIENTS = (
    Entry(
        "guided_relu",
        "where(x > 0 and dy > 0, dy, 0)",
        _GUIDED_PURPOSE,
        _GUIDED_AVOID,
        papers.GUIDED_BACKPROP,
        ops=("Relu",),
        by_op_type=_FAMILY,
    ),
    _guided("guided_relu6", "where(0 < x < 6 and dy > 0, dy, 0)", "Relu6"),
    _guided(
        "guided_leaky_relu",
        "where(dy > 0, where(x > 0, dy, attr.alpha * dy), 0)",
        "LeakyRelu",
    ),
    _guided("guided_elu", "where(dy > 0, where(y < 0, dy * (y + 1), dy), 0)", "Elu"),
    _guided(
        "guided_selu",
        "where(dy > 0, dy * where(y < 0, y + 1.7580993408473768, 1.0507009873554805), 0)",
        "Selu",
    ),
    _guided("guided_softplus", "where(dy > 0, dy * sigmoid(x), 0)", "Softplus"),
    Entry(
        "deconv_relu",
        "relu(dy)",
        purpose="deconvnet: only the positive part of dy, whatever the input was",
        avoid=_GUIDED_AVOID,
        source=_DECONV,
        ops=("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"),
        reach="the paper has only Relu; this gradient does not read x, so it fits the whole family",
        whole=True,
    ),
    _redirected(
        "redirected_relu",
        "x < 0",
        "x < 0 and dy > 0",
        "Relu",
        {"Relu6": "redirected_relu6"},
    ),
    _redirected(
        "redirected_relu6",
        "x < 0 or x > 6",
        "x < 0 and dy > 0 or x > 6 and dy < 0",
        "Relu6",
        {},
    ),
)
