"""Arrays that a rules file names: they lie beside it, and what cannot be read is said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from graphpatch.errors import RulesError
from graphpatch.gradients.tensors import packed


def test_a_file_beside_the_rules(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.float32([1, 2]))
    assert packed("w.npy", tmp_path)


@pytest.mark.parametrize("name", ["../w.npy", "/w.npy", "a/../../w.npy"])
def test_a_name_stays_in_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="leads out of the folder"):
        packed(name, tmp_path)


def test_what_is_not_an_array(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").touch()
    os.mkfifo(tmp_path / "pipe.npy")
    for name, said in (("empty.npy", "not an .npy file"), ("pipe.npy", "it is not a file")):
        with pytest.raises(RulesError, match=said):
            packed(name, tmp_path)
    with pytest.raises(RulesError, match="No such file"):
        packed("gone.npy", tmp_path)
