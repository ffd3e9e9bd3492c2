"""SavedModel folders: variables, assets and all else go with the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphpatch.errors import OutputError
from graphpatch.formats import default_output, load
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
