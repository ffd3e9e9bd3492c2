"""Text protobufs (.pbtxt): parsed into the binary form that everything else reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.protobuf import text_format
from google.protobuf.message import Message

from graphpatch.errors import ForeignError, ModelError, OutputError
from graphpatch.formats.model import GRAPH, META, SAVED, Container
from graphpatch.graph.wire import Piece, message, piece_bytes

FIRST_FIELD = re.compile(r"\A(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{<]")
# Fields that came after TensorFlow 2.4; 2.8 knows all but debug_info, 2.15 that one too.
NEWER = (
    "experimental_type",
    "experimental_full_type",
    "handle_data",
    "registered_gradients",
    "is_distributed_communication",
    "debug_info",
)
TOO_NEW = (
    "the text holds {}, which TensorFlow 2.4 and earlier refuse in a .pbtxt; for these write a .pb"
)
_JSON = (
    "JSON, not a model; a rules file goes before the model in apply, match and check, and behind "
    "--rules in view"
)
FOREIGN = {
    "version https://git-lfs": (
        "a Git LFS pointer, not the file that it stands for; `git lfs pull` fetches the file"
    ),
    "<": "an HTML or XML page; download the file itself",
    "{": _JSON,
    "[": _JSON,
}


def parse_text(data: bytes) -> tuple[bytes, Container]:
    """Return the serialized message that a text file holds, and which container it is.

    Raises ModelError with line and column where it is not valid, or names a field that the
    message does not have (dropping it would lose something of the model).
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(f"neither a protobuf nor UTF-8 text (byte {error.start})") from None
    container = _recognise(text)
    whole = container.message()
    try:
        text_format.Parse(text, whole)
    except text_format.ParseError as error:
        raise ModelError(f"not a {container.name} in text form: {_placed(str(error))}") from None
    except RecursionError:
        raise ModelError(f"a {container.name} whose messages are nested too deeply") from None
    return whole.SerializeToString(deterministic=True), container


def _placed(said: str) -> str:
    """Return what protobuf says of a text, with its place, and messages by their names."""
    match = re.fullmatch(r"(\d+):(\d+) : (?:'.*': )?(.*)", said, re.DOTALL)
    if match is None:
        return said
    reason = re.sub(r'Message type "(?:\w+\.)*(\w+)" has no field named "(.*)"\.?',
                    r"\1 has no field \2", match[3])  # fmt: skip
    return f"line {match[1]}, column {match[2]}: {reason}"


def unparse(pieces: Sequence[Piece], container: Container) -> bytes:
    """Return the text form of a serialized container.

    Raises OutputError where it holds fields that we don't know: text has no names for them.
    """
    whole: Message = message(container.message, b"".join(map(piece_bytes, pieces)))
    size = whole.ByteSize()
    whole.DiscardUnknownFields()
    if whole.ByteSize() != size:
        raise OutputError(
            f"the {container.name} holds fields that graphpatch does not know, which text cannot "
            f"hold; give the output a name that does not end in .pbtxt"
        )
    return text_format.MessageToString(whole).encode()


def newer_fields(text: bytes) -> list[str]:
    """Return the fields in a text that TensorFlow 2.4 has no names for, and so refuses."""
    return [name for name in NEWER if re.search(rf"^ *{name}[: ]".encode(), text, re.MULTILINE)]


def canonical(pieces: Sequence[Piece], container: Container) -> bytes:
    """Return the message in the one encoding in which `parse` gives it, whatever wrote it."""
    whole: Message = message(container.message, b"".join(map(piece_bytes, pieces)))
    return bytes(whole.SerializeToString(deterministic=True))


def _recognise(text: str) -> Container:
    for start, what in FOREIGN.items():
        if text.lstrip().startswith(start):
            raise ModelError(what)
    first = FIRST_FIELD.match(text)
    for container in (SAVED, META, GRAPH):  # no field at the top of one is one of another
        if first is not None and first[1] in container.message.DESCRIPTOR.fields_by_name:
            return container
    raise ForeignError(
        "text, but not that of a GraphDef, a MetaGraphDef or a SavedModel; expected a .pb, .pbtxt "
        "or .meta file, or a SavedModel folder"
    )
