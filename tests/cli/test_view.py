"""`graphpatch view`: what is written where, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.examples import DIGITS, GUIDED
from tests.test_no_tensorflow import WITHOUT


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "digits.pb"
    path.write_bytes(DIGITS.read_bytes())
    return path


def test_the_page_lies_beside_the_model(run_cli: Run, model: Path) -> None:
    done = run_cli("view", model.name, "--from", "image", cwd=model.parent, **WITHOUT)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "digits.html: 24 lines",
        "  image:0 -> logits:0: None, at Round quantize/Round",
    ]
    page = (model.parent / "digits.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_json_is_the_data_and_writes_nothing(run_cli: Run, model: Path) -> None:
    done = run_cli("view", model, "--rules", GUIDED, "--json", **WITHOUT)
    assert done.code == 0
    assert [one["role"] for one in done.json["models"]] == ["before", "after"]
    assert sorted(model.parent.iterdir()) == [model]


REFUSED = {
    "--to logit": (1, "no tensor of the main graph is named 'logit'"),
    "--from logits --to image": (1, "no tensor leads from logits:0 to image"),
    "-o digits.pb": (2, "digits.pb gets a page; name a .html file"),
    "--feed a.npz": (2, "give --run too"),
    "--json -o a.html": (2, "writes no file"),
    "--tensorboard log -o a.html": (2, "and no page"),
    "-o - --open": (2, "opens a page in a file"),
    "-o nowhere/a.html": (1, "cannot write nowhere/a.html"),
}


@pytest.mark.parametrize("typed", REFUSED)
def test_bad_input_gets_one_message(run_cli: Run, model: Path, typed: str) -> None:
    code, says = REFUSED[typed]
    done = run_cli("view", model.name, *typed.split(), cwd=model.parent, **WITHOUT)
    assert (done.code, says in done.stderr) == (code, True)
    assert "Traceback" not in done.stderr
    assert not list(model.parent.glob("*.html"))


def test_control_flow_v2_is_off_on_demand(run_cli: Run, model: Path) -> None:
    for option, notes in ([], []), (["--no-control-flow-v2"], ["as after "]):
        done = run_cli("view", model, "--json", *option, **WITHOUT)
        (graph,) = done.json["graphs"]
        assert [note.partition("tf.compat")[0] for note in graph["notes"]] == notes


def test_open_calls_the_browser(run_cli: Run, model: Path) -> None:
    browser, seen = model.parent / "browser", model.parent / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    env = {"BROWSER": f"{browser} %s"}
    done = run_cli("view", model, "--from", "image", "--open", env=env, **WITHOUT)
    assert (done.code, done.stderr) == (0, "")
    assert seen.read_text().strip() == model.with_suffix(".html").as_uri()


def test_open_without_a_browser_says_so(run_cli: Run, model: Path) -> None:
    # Neither a name of a browser, nor a screen, nor a command on the path.
    none = dict.fromkeys(("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"), "")
    env = {**none, "PATH": str(model.parent)}
    done = run_cli("view", model.name, "--open", cwd=model.parent, env=env, **WITHOUT)
    says = "no browser to open digits.html in was found; the page is written\n"
    assert (done.code, done.stderr) == (1, f"graphpatch: {says}")
    assert model.with_suffix(".html").exists()


def test_tensorboard_gets_a_folder_for_each_model(run_cli: Run, model: Path) -> None:
    typed = ("view", model, "--rules", GUIDED, "--tensorboard", model.parent / "log")
    done = run_cli(*typed, **WITHOUT)
    assert [Path(line).parent.name for line in done.stdout.splitlines()] == ["before", "after"]


def test_a_page_goes_through_a_pipe(run_cli: Run) -> None:
    done = run_cli("view", "-", "--from", "image", stdin=DIGITS.read_bytes(), **WITHOUT)
    assert done.code == 0
    data = done.stdout.partition('id="document">')[2].partition("</script>")[0]
    assert json.loads(data)["models"][0]["path"] == "-"


def test_how_many_ops_a_pattern_marks_is_told(run_cli: Run, tmp_path: Path) -> None:
    typed = ("view", DIGITS, "-o", tmp_path / "page.html", "--pattern")
    assert "  marked: 2 ops\n" in run_cli(*typed, "Conv2D -> FusedBatchNormV3").stdout
    said = run_cli(*typed, "Conv2D -> BiasAdd").stdout
    assert "  marked: 0 ops; graphpatch match MODEL --pattern PATTERN says why\n" in said
