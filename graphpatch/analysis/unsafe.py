"""Ops that do more than compute: what is run of somebody else's file must not hold them unasked.

TensorFlow's own advice (SECURITY.md): models are programs; one that is not trusted belongs into a
sandbox. This keeps the ops from running that reach files, the network or Python by design.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from graphpatch import opdefs
from graphpatch.errors import UnsafeError
from graphpatch.formats.model import meta_around
from graphpatch.graph.functions import called_functions
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import downstream, upstream
from graphpatch.names import TensorName, op_of
from graphpatch.shown import short

_FILES = """
    CSVDataset CSVDatasetV2 CacheDataset CacheDatasetV2 CalibrationStatisticsSaver
    CreateSummaryDbWriter CreateSummaryFileWriter DTensorRestoreV2 DatasetToTFRecord DebugIdentity
    DebugIdentityV2 DebugIdentityV3 DebugNanCount DebugNumericSummary DistributedSave DumpTensor
    ExperimentalCSVDataset ExperimentalDatasetToTFRecord ExperimentalLMDBDataset
    ExperimentalMatchingFilesDataset ExperimentalSqlDataset FileSystemSetConfiguration
    FixedLengthRecordDataset FixedLengthRecordDatasetV2 FixedLengthRecordReader
    FixedLengthRecordReaderV2 GenerateVocabRemapping ImmutableConst InitializeTableFromTextFile
    InitializeTableFromTextFileV2 LMDBDataset LMDBReader ListSnapshotChunksDataset
    LoadAndRemapMatrix LoadDataset MatchingFiles MatchingFilesDataset MergeV2Checkpoints ReadFile
    RecordInput Restore RestoreSlice RestoreV2 Save SaveDataset SaveDatasetV2 SaveSlices SaveV2
    SequenceFileDataset Skipgram SnapshotChunkDataset SnapshotDataset SnapshotDatasetReader
    SnapshotDatasetV2 SnapshotNestedDatasetReader SqlDataset TFRecordDataset TFRecordDatasetV2
    TFRecordReader TFRecordReaderV2 TextLineDataset TextLineReader TextLineReaderV2 WholeFileReader
    WholeFileReaderV2 WriteFile
"""
_NETWORK = """
    BigQueryReader BigtableClient DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3
    DataServiceDatasetV4 GcsConfigureBlockCache GcsConfigureCredentials
    GenerateBigQueryReaderPartitions IgniteDataset KafkaDataset KinesisDataset RegisterDataset
    RegisterDatasetV2 Rpc RpcClient RpcServer TryRpc
"""
_PROCESSES = "DecodeAudio DecodeAudioV2 DecodeVideo EncodeAudio EncodeAudioV2"  # they call ffmpeg
_GRAPHS = "DatasetFromGraph RemoteFusedGraphExecute"

UNSAFE = {
    **dict.fromkeys(_FILES.split(), "touches files"),
    **dict.fromkeys(_NETWORK.split(), "uses the network"),
    **dict.fromkeys(("EagerPyFunc", "PyFunc", "PyFuncStateless"), "runs Python"),
    **dict.fromkeys(_PROCESSES.split(), "starts another program"),
    **dict.fromkeys(_GRAPHS.split(), "runs a graph in a string, which graphpatch does not read"),
    "Abort": "ends the process",
}
"""Each op type, with what it does."""

# Of those, the ones by which a Saver writes variables to a checkpoint, and reads them.
SAVERS = frozenset(
    "MergeV2Checkpoints Restore RestoreSlice RestoreV2 Save SaveSlices SaveV2".split()
)

# Op types that touch files where an attr says so, with the values that don't.
BY_ATTR = {
    "DecodeProtoV2": ("descriptor_source", ("", "local://")),
    "EncodeProto": ("descriptor_source", ("", "local://")),
    "FixedUnigramCandidateSampler": ("vocab_file", ("",)),
    "PrintV2": (
        "output_stream",
        ("", "stderr", "stdout", "log(info)", "log(warning)", "log(error)"),
    ),
}


def unsafe_op(node: Node) -> str:
    """Return an op with what it does besides computing; nothing where it does nothing else."""
    if node.op in UNSAFE:
        return f"{node} {UNSAFE[node.op]}"
    if node.op in BY_ATTR:
        key, harmless = BY_ATTR[node.op]
        value = node.attr(key)
        text = "" if value is None else value.s.decode(errors="backslashreplace")
        if text not in harmless:
            return f"{node} touches files ({key} is {text!r})"
    return ""


def unsafe_ops(graph: ModelGraph, fetched: Iterable[str] | None = None) -> dict[Node, str]:
    """Return what ops do besides computing, of those that the tensors `fetched` need.

    Control inputs and called functions with their gradient functions count; so does the whole main
    graph where `fetched` is silent. Ops without a state count wherever they are: TensorFlow
    computes those of constants as it imports a graph, to know shapes (measured with ReadFile).
    """
    at_import = (
        Node(body, index)
        for body in graph.bodies
        for op in (UNSAFE.keys() | BY_ATTR) & body.by_type.keys()
        if (known := opdefs.lookup(op)) is not None and not known.stateful
        for index in body.by_type[op]
    )
    return _unsafe_of([*_with_called_ops(graph, _needed_ops(graph.main, fetched)), *at_import])


def refuse_unsafe(graph: ModelGraph, allow: bool, fetched: Iterable[str] | None = None) -> None:
    """Raise UnsafeError where what is to be run holds ops that do more than compute.

    Looked at is what `unsafe_ops` looks at. `allow`: the model is trusted.
    """
    _refuse({} if allow else unsafe_ops(graph, fetched))


def refuse_unsafe_load(graph: ModelGraph, allow: bool) -> None:
    """Raise UnsafeError where loading a TF2 SavedModel, or calling it, would do more than compute.

    All counts but what its saver alone needs: loaders restore variables by ops of their own.
    """
    meta = meta_around(graph)
    ends = (meta.saver_def.save_tensor_name, meta.saver_def.restore_op_name)
    saver = _needed_ops(graph.main, [text for text in ends if op_of(text) in graph.main.by_name])
    spared = set(_with_called_ops(graph, saver))
    restored = meta.object_graph_def.concrete_functions
    nodes = (node for body in graph.bodies for node in body)
    counted = [n for n in nodes if n not in spared or n.body.label in restored]
    _refuse({} if allow else _unsafe_of(_with_called_ops(graph, counted)))


def apart_from_savers(graph: ModelGraph, fetched: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tensors that need no op of a Saver, and those that do."""
    savers = [node for node in unsafe_ops(graph, fetched) if node.op in SAVERS]
    ends = [  # of an op without outputs, what waits for it
        TensorName(node.name, place)
        for node in savers
        for place in range(max(1, len(node.outputs or ())))
    ]
    marks = downstream(graph.main, ends, control=True)
    for node in savers:
        marks[node.index] = 1
    saved = {name for name in fetched if marks[graph.main.by_name[op_of(name)]]}
    return [name for name in fetched if name not in saved], sorted(saved)


def _refuse(unsafe: Mapping[Node, str]) -> None:
    if unsafe:
        raise UnsafeError(
            f"running it would do more than compute: {short(list(unsafe.values()), by='; ')}; if "
            f"you trust the model, --allow-unsafe-ops lets it run (in Python: "
            f"allow_unsafe_ops=True)"
        )


def _unsafe_of(nodes: Iterable[Node]) -> dict[Node, str]:
    return {node: does for node in nodes if (does := unsafe_op(node))}


def _needed_ops(body: Body, fetched: Iterable[str] | None) -> list[Node]:
    if fetched is None:
        return list(body)
    marks = upstream(body, [TensorName(op_of(text)) for text in fetched], control=True)
    return [Node(body, index) for index, mark in enumerate(marks) if mark]


def _with_called_ops(graph: ModelGraph, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield these ops, and those of the functions that they call."""
    visited: set[str] = set()
    todo = [list(nodes)]
    while todo:
        for node in todo.pop():
            yield node
            for name in called_functions(node):
                for function in {name, graph.library.gradients.get(name, "")} - visited:
                    visited.add(function)
                    todo.append(list(graph.functions.get(function, ())))
