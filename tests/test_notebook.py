"""The notebook of the documentation does what it shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs(notebook: Any) -> list[list[str]]:
    """What each cell prints and shows, without what TensorFlow says on stderr."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[_text(one) for one in cell.outputs if one.get("name") != "stderr"] for cell in cells]


def _text(output: Any) -> str:
    found = output.get("text") or output["data"].get("text/plain")
    return str(found) + str(output.get("data", {}).get("text/html", ""))


@pytest.mark.slow
def test_the_notebook_shows_what_its_cells_give() -> None:
    pytest.importorskip("tensorflow")
    nbformat = pytest.importorskip("nbformat", reason="nbformat, nbclient, ipykernel run it")
    nbclient = pytest.importorskip("nbclient", reason="nbformat, nbclient, ipykernel run it")
    pytest.importorskip("ipykernel", reason="nbformat, nbclient, ipykernel run it")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    options = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(fresh, timeout=300, kernel_name="python3", resources=options).execute()
    assert outputs(fresh) == outputs(stored)
    assert any("<table>" in text for cell in outputs(stored) for text in cell)
