"""As what a patched model is written, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# What a name ends in that is that of a file, and not of a SavedModel's folder.
FILES = frozenset({".pb", ".pbtxt", ".meta"})

# What there is to say of a .pb, and not of the .meta that it may be written as.
NO_CONTEXTS = (
    "v1 loops or branches: tf.gradients needs their contexts, which a .pb cannot hold; write "
    "a .meta (-o NAME.meta), or load it with graphpatch.import_model"
)


@dataclass(frozen=True, slots=True)
class Export:
    """The tensors that a SavedModel takes and gives, as `x`, `x:0` or `split:1`.

    In the SavedModel they have the dtypes and shapes that they have in the graph.

    Example:
        >>> export = graphpatch.Export(("x",), ("features",))
        >>> graphpatch.apply("rules.json", "model.pb", export=export).save("exported")
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def default_output(path: str, is_folder: bool) -> str:
    """Where a patched model goes when nobody says: `MODEL.patched.pb` beside the model."""
    return "-" if path == "-" else patched_name(Path(path), is_folder)


def patched_name(path: Path, is_folder: bool) -> str:
    """The name beside a model that its patched one has."""
    if is_folder:
        named = path if path.name not in {"", ".."} else path.resolve()
        return str(named.with_name(f"{named.name}.patched"))
    return str(path.with_name(f"{path.stem}.patched{path.suffix}"))
