"""A .keras or .h5 file gets a message that says how to write a SavedModel of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch.errors import ModelError
from graphpatch.formats import load
from tests.refusals import refused

HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(24)


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    return buffer.getvalue()


EXPORTED = (
    "keras.models.load_model('net.{0}').export('net')",
    "tf.saved_model.save(tf_keras.models.load_model('net.{0}'), 'net')",
)
FILES = {
    "keras": (zipped("metadata.json", "config.json", "model.weights.h5"), EXPORTED),
    "h5": (HDF5 + b"model_config" + bytes(9), EXPORTED),
    "hdf5": (HDF5, ("call model.load_weights('net.hdf5') and model.export('net')",)),
}


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("command", ["ops", "doctor", "apply"])
def test_the_message_says_how_to_write_a_saved_model(
    run_cli: Callable[..., Any],
    rules_file: Callable[..., Path],
    tmp_path: Path,
    suffix: str,
    command: str,
) -> None:
    content, says = FILES[suffix]
    (tmp_path / f"net.{suffix}").write_bytes(content)
    rules = [rules_file({"match": {"op": "Relu"}, "patch": {"stop_gradient": True}})]
    done = run_cli(command, *(rules if command == "apply" else []), f"net.{suffix}", cwd=tmp_path)
    refused(done, f"net.{suffix}: a", *(text.format(suffix) for text in says))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".json"] == [f"net.{suffix}"]


def test_it_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(FILES["keras"][0])
    with pytest.raises(ModelError, match=r"export\('model'\)"):
        load(path)


def test_another_archive_is_not_a_keras_model(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(zipped("notes.txt"))
    with pytest.raises(ModelError, match="a zip archive; unpack it"):
        load(path)
