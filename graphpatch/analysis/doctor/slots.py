"""Into which inputs of an op TensorFlow's own gradient of it flows: what was measured on 2.21."""

from __future__ import annotations

from graphpatch.dtypes import DIFFERENTIABLE

# A gradient flows into float and complex inputs, and into no others. The exceptions, by slot:
NOTHING_INTO: dict[str, frozenset[int]] = {
    op: frozenset(map(int, slots.split()))
    for op, slots in {
        "ArgMax": "0",
        "ArgMin": "0",
        "Betainc": "0 1",
        "Ceil": "0",
        "CopyToMeshGrad": "1",
        "Floor": "0",
        "FloorDiv": "0 1",
        "FusedBatchNorm": "3 4",
        "FusedBatchNormGrad": "3 4",
        "FusedBatchNormGradV2": "3 4",
        "FusedBatchNormGradV3": "3 4 5",
        "FusedBatchNormV2": "3 4",
        "FusedBatchNormV3": "3 4",
        "MatrixDiagPartV2": "2",
        "MatrixDiagPartV3": "2",
        "MatrixDiagV2": "4",
        "MatrixDiagV3": "4",
        "PadV2": "2",
        "Polygamma": "0",
        "QuantizeAndDequantizeV2": "1 2",
        "QuantizeAndDequantizeV3": "1 2",
        "RelayoutLike": "1",
        "Rint": "0",
        "Round": "0",
        "ScaleAndTranslate": "2 3",
        "SparseAdd": "6",
        "TruncateDiv": "0 1",
        "Zeta": "0",
    }.items()
}
# Of these, only the first input: those behind it are printed, not differentiated.
FIRST_ALONE = frozenset({"Print"})

# Handles of variables, and lists of tensors, stand for the floats that they hold.
HANDLES = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd CompositeTensorVariantToComponents"
    " RaggedTensorFromVariant TensorListConcat TensorListConcatV2 TensorListGather"
    " TensorListGetItem TensorListPopBack TensorListPushBack TensorListResize"
    " TensorListScatterIntoExistingList TensorListSetItem TensorListStack Switch RefSwitch Merge"
    " RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration Identity IdentityN"
    " AddN".split()
)

# The gradient is there, and is zero wherever it is defined.
ZERO = frozenset({"Sign"})


def takes(op: str, slot: int, dtype: str | None) -> bool:
    """Whether a gradient that comes to an op of this type flows on into one of its inputs."""
    if dtype not in DIFFERENTIABLE:
        return op in HANDLES and dtype in {"resource", "variant"}
    return slot not in NOTHING_INTO.get(op, ()) and not (slot and op in FIRST_ALONE)
