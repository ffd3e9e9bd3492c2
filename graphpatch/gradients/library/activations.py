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

from graphpatch.gradients.library.entry import GUIDED_BACKPROP, Entry

_GUIDED_AVOID = (
    "the map must tell classes apart: it shows edges whatever the weights are"
    " (Adebayo et al., Sanity Checks for Saliency Maps, 2018)"
)
_GUIDED = {
    "Relu": ("guided_relu", "where(x > 0 and dy > 0, dy, 0)"),
    "Relu6": ("guided_relu6", "where(0 < x < 6 and dy > 0, dy, 0)"),
    "LeakyRelu": ("guided_leaky_relu", "where(dy > 0, where(x > 0, dy, attr.alpha * dy), 0)"),
    "Elu": ("guided_elu", "where(dy > 0, where(y < 0, dy * (y + 1), dy), 0)"),
    "Selu": (
        "guided_selu",
        "where(dy > 0, dy * where(y < 0, y + 1.7580993408473768, 1.0507009873554805), 0)",
    ),
    "Softplus": ("guided_softplus", "where(dy > 0, dy * sigmoid(x), 0)"),
}

# Of each op type which units are blocked, and where dy pushes these further out.
_REDIRECTED = {
    "Relu": ("redirected_relu", "x < 0", "x < 0 and dy > 0"),
    "Relu6": ("redirected_relu6", "x < 0 or x > 6", "x < 0 and dy > 0 or x > 6 and dy < 0"),
}

ACTIVATION_GRADIENTS = (
    *(
        Entry(
            name,
            text,
            "guided backpropagation: the op's own gradient where dy is positive, else 0",
            _GUIDED_AVOID,
            GUIDED_BACKPROP,
            ops=(op_type,),
            by_op_type={}
            if op_type != "Relu"
            else {key: guided for key, (guided, _) in _GUIDED.items() if key != "Relu"},
            differs=""
            if op_type == "Relu"
            else "the paper has only Relu; here the op's own gradient of the positive part of dy",
        )
        for op_type, (name, text) in _GUIDED.items()
    ),
    Entry(
        "deconv_relu",
        "relu(dy)",
        purpose="deconvnet: only the positive part of dy, whatever the input was",
        avoid=_GUIDED_AVOID,
        source="Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014",
        ops=tuple(_GUIDED),
        differs="the paper has only Relu; this gradient does not read x, so it fits the whole "
        "family",
        whole=True,
    ),
    *(
        Entry(
            name,
            f"where(max(abs(where({blocked}, 0, dy)), from_axis=1, keepdims=true) > 0,"
            f" where({blocked}, 0, dy), where({against}, 0, dy))",
            purpose="feature visualization by descent: an example that would get no gradient at"
            " all gets the part that pushes its inputs back into the active range",
            avoid="you train a network: this is for optimizing its input",
            source="lucid, redirected_relu_grad.py, 2018 (Olah, Mordvintsev and Schubert, 2017)",
            ops=(op_type,),
            by_element=False,
            by_op_type={"Relu6": "redirected_relu6"} if op_type == "Relu" else {},
            differs="lucid stops this after 16 global steps; a file has no global step. Both decide"
            " for each example of a batch; lucid's tf.compat.v2.where is right only for a batch of"
            " one. It refuses tensors without a batch axis",
        )
        for op_type, (name, blocked, against) in _REDIRECTED.items()
    ),
)
