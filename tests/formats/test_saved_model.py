"""SavedModel folders: variables, assets and all else go with the graph."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphpatch import apply, load
from graphpatch.errors import GraphpatchError, OutputError
from graphpatch.fleet.work import content
from graphpatch.formats import default_output
from graphpatch.formats.output import regular_files
from graphpatch.runtime.graph_run import checkpoint
from tests import graphs
from tests.refusals import everything

SAMPLE = graphs.sample()
META = graphs.metagraph(SAMPLE, "serve", "gpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return graphs.saved_model_folder(tmp_path / "saved", META, graphs.metagraph(SAMPLE, "train"))


@pytest.mark.parametrize("given", ["", "saved_model.pb", "."])
def test_a_folder_goes_to_a_folder(folder: Path, given: str) -> None:
    model = graphs.patched_model(folder / given)
    assert (model.format, model.file) == ("SavedModel", "saved_model.pb")
    assert [graph.around.tags for graph in model.graphs] == ["serve,gpu", "train"]
    before = everything(folder)
    model.save(folder.parent / "out")
    found = everything(folder.parent / "out")
    again = load(folder.parent / "out")
    for graph in again.graphs:
        assert graph.main.node("relu").attr("_a") == graphs.attr("x")
    found["saved_model.pb"] = before["saved_model.pb"]
    assert found == {name: data for name, data in before.items() if name != "fingerprint.pb"}
    assert everything(folder) == before
    assert sorted(one.name for one in folder.parent.iterdir()) == ["out", "saved"]


def test_a_text_saved_model_stays_text(folder: Path) -> None:
    text = f"saved_model_schema_version: 1\nmeta_graphs {{ {META} }}\n"
    (folder / "saved_model.pb").unlink()
    (folder / "saved_model.pbtxt").write_text(text)
    model = graphs.patched_model(folder)
    assert (model.format, model.file) == ("SavedModel as text", "saved_model.pbtxt")
    model.save(folder.parent / "out")
    found = everything(folder.parent / "out")
    assert found["saved_model.pbtxt"].startswith(b"saved_model_schema_version: 1\n")
    assert load(folder.parent / "out").graphs[0].main.node("relu").attr("_a") == graphs.attr("x")


@pytest.mark.parametrize("out", ["out.pb", "out.pbtxt", "out.meta", "saved/saved_model.pb"])
def test_a_folder_is_not_written_as_a_file(folder: Path, out: str) -> None:
    before = everything(folder)
    with pytest.raises(OutputError, match=r"is a folder|is the model itself"):
        graphs.patched_model(folder).save(folder.parent / out)
    assert everything(folder) == before
    assert sorted(one.name for one in folder.parent.iterdir()) == ["saved"]


@pytest.mark.parametrize("given", [".", "saved_model.pb", "../saved", "assets/.."])
def test_where_a_folder_goes_that_is_named_from_within(
    folder: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    model = graphs.patched_model(given)
    out = default_output(model.path, is_folder=True)
    assert Path(out).resolve() == folder.parent / "saved.patched"
    model.save(out)
    assert load(out).graphs[0].main.node("relu").attr("_a") == graphs.attr("x")


# Links, pipes and devices in the folder of a SavedModel.


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
def test_a_link_that_leads_out(saved: Path, tmp_path: Path, target: str, said: str) -> None:
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
