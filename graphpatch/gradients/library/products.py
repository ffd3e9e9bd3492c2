"""The own gradients of products, written out: to start from where one of the two is to change."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry

_PURPOSE = "the op's own gradient as a formula: a start for your own"
_AVOID = "you do not change it: TensorFlow's own gradient is faster"


def _matmul(name: str, a: str, b: str, *ops: str) -> Entry:
    """The gradients of y = A B, where attrs `a` and `b` say that A and B stand transposed."""
    of_first = (
        f"where({a}, matmul(x1, dy, transpose_a={b}, transpose_b=true),"
        f" matmul(dy, x1, transpose_b=not {b}))"
    )
    of_second = (
        f"where({b}, matmul(dy, x0, transpose_a=true, transpose_b={a}),"
        f" matmul(x0, dy, transpose_a=not {a}))"
    )
    source = "Giles, Collected Matrix Derivative Results for Algorithmic Differentiation, 2008"
    texts = (of_first, of_second)
    return Entry(name, texts, _PURPOSE, _AVOID, source, ops=ops, elementwise=False)


PRODUCT_GRADIENTS = (
    Entry(
        "mul",
        ("dy * x1", "dy * x0"),
        _PURPOSE,
        _AVOID,
        "product rule",
        ops=("Mul",),
        elementwise=False,
    ),
    _matmul("matmul", "attr.transpose_a", "attr.transpose_b", "MatMul"),
    _matmul("batch_matmul", "attr.adj_x", "attr.adj_y", "BatchMatMul", "BatchMatMulV2"),
)
