"""Links, pipes and devices in the folder of a SavedModel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphpatch import apply, load
from graphpatch.errors import GraphpatchError
from graphpatch.fleet.work import content
from graphpatch.formats.output import regular_files
from graphpatch.runtime.graph_run import checkpoint
from tests import graphs

RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/one").write_bytes(b"secret")
    return graphs.saved_model_folder(tmp_path / "in", graphs.metagraph(graphs.sample(), "serve"))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../secret", "leads out of the model's folder"),
        ("../../secret", "leads out of the model's folder"),
        ("/dev/zero", "leads out of the model's folder"),
        ("../../secrets", "leads out of the model's folder"),
        ("nothing", "which is not there"),
        ("..", "a link to a folder that holds it"),
        (".", "a link to a folder that holds it"),
    ],
)
def test_a_link_that_leads_out_is_refused(
    saved: Path, tmp_path: Path, target: str, said: str
) -> None:
    (saved / "assets").mkdir(exist_ok=True)
    (saved / "assets/link").symlink_to(target)
    if target == "../secret":
        (saved / "secret").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphpatchError, match=said):
        apply(RULES, saved).model.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(GraphpatchError, match=said):
        content(saved)
    with pytest.raises(GraphpatchError, match=said):  # before TensorFlow reads it
        checkpoint(load(saved))


def test_a_link_within_the_folder_is_a_file_of_it(saved: Path, tmp_path: Path) -> None:
    (saved / "assets").mkdir(exist_ok=True)
    (saved / "assets/words").write_bytes(b"words")
    (saved / "assets/link").symlink_to("words")
    (saved / "more").symlink_to("assets")
    apply(RULES, saved).model.save(tmp_path / "out")
    for name in ("assets/link", "more/words", "more/link"):
        assert (tmp_path / "out" / name).read_bytes() == b"words"
        assert not (tmp_path / "out" / name).is_symlink()


def test_a_pipe_is_refused(saved: Path, tmp_path: Path) -> None:
    os.mkfifo(saved / "pipe")
    with pytest.raises(GraphpatchError, match="a pipe, a socket or a device"):
        apply(RULES, saved).model.save(tmp_path / "out")
    with pytest.raises(GraphpatchError, match="a pipe, a socket or a device"):
        list(regular_files(saved))


def test_a_fingerprint_that_is_a_link_is_not_taken_in(saved: Path, tmp_path: Path) -> None:
    (saved / "fingerprint.pb").unlink(missing_ok=True)
    (saved / "fingerprint.pb").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphpatchError, match="leads out"):
        apply(RULES, saved).model.save(tmp_path / "out")
    raw = b"".join(map(bytes, (load(saved).source.data[:], b"")))
    assert b"secret".hex().encode() not in raw
