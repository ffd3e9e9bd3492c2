from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from graphpatch.fleet.manifest import MANIFEST_NAME as MANIFEST
from graphpatch.formats import load
from graphpatch.protos import GraphDef
from tests import graphs
from tests.conftest import RulesFile, Run

OVERRIDE = "_gradient_op_type"
ELU = {
    "match": {"op": "Relu", "body": "main"},
    "patch": {"override_gradient": "Elu"},
    "name": "elu",
}
STOP = {"match": {"op": "Round"}, "patch": {"stop_gradient": True}, "name": "stop"}


@pytest.fixture
def rules(rules_file: RulesFile) -> Path:
    return rules_file(ELU, STOP)


def files(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in found if path.suffix != ".json")


def is_patched(path: Path) -> bool:
    return all(
        graph.main.node("relu").attr(OVERRIDE) == graphs.attr("Elu")
        and graph.main.node("round").op == "StopGradient"
        for graph in load(path).graphs
    )


def test_a_model_is_patched_beside_itself(run_cli: Run, rules: Path, model_file: Path) -> None:
    before = model_file.read_bytes()
    done = run_cli("apply", rules, model_file)
    out = model_file.with_name("model.patched.pb")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{model_file} -> {out}",
        "  elu   1 Relu  (built-in)",
        "  stop  1 Round  (construction)",
    ]
    assert is_patched(out)
    assert model_file.read_bytes() == before
    assert files(model_file.parent) == ["model.patched.pb", "model.pb"]


def test_a_file_that_is_replaced_is_told(run_cli: Run, rules: Path, model_file: Path) -> None:
    """Here, and where workers write; a dry run tells what would be replaced."""
    out, folder = model_file.with_name("out.pb"), model_file.with_name("out")
    first = run_cli("apply", rules, model_file, "-o", out, "--json").json["outputs"][0]
    assert "replaced" not in first
    assert run_cli("apply", rules, model_file, "-o", out, "--json").json["outputs"][0]["replaced"]
    again = run_cli("apply", rules, model_file, "-o", out).stdout.splitlines()[0]
    assert again == f"{model_file} -> {out} (replaced)"
    dry = run_cli("apply", rules, model_file, "-o", out, "--dry-run").stdout.splitlines()[0]
    assert dry == f"{model_file} -> {out} (dry run, nothing written, would replace a file)"
    many = ("apply", rules, f"{model_file.parent}/model.p*", "-o", folder, "-j", "1")
    assert "(replaced)" not in run_cli(*many).stdout
    assert "model.pb (replaced)  1 Relu, 1 Round" in run_cli(*many).stdout


def test_a_dry_run_does_all_but_write(run_cli: Run, rules: Path, model_file: Path) -> None:
    wet = run_cli("apply", rules, model_file, "--json", "-o", model_file.with_name("out.pb")).json
    model_file.with_name("out.pb").unlink()
    args = ("apply", rules, model_file, "--dry-run")
    for would in ("", "out.pb", "new/folder/model.pb"):
        more = ["-o", would.removesuffix("model.pb")] if would else []
        done = run_cli(*args, "--json", *more, cwd=model_file.parent)
        dry = dict(done.json["outputs"][0])
        assert dry.pop("would_write") == (would or str(model_file.with_name("model.patched.pb")))
        assert dry == wet["outputs"][0] | {"output": None}
        assert files(model_file.parent) == ["model.pb"]
        assert not (model_file.parent / "new").exists()
    patched = model_file.with_name("model.patched.pb")
    said = f"{model_file} -> {patched} (dry run, nothing written)\n"
    assert run_cli(*args).stdout.startswith(said)


# -o, seen from the folder of the models: what is given, and which files there are then.
OUTPUTS = {
    "model.pb -o out.pb": "out.pb",
    "model.pb -o old": f"old/model.pb old/{MANIFEST}",
    "model.pb -o new/deep/": f"new/deep/model.pb new/deep/{MANIFEST}",
    "model.pb other.pb": "model.patched.pb other.patched.pb",
    "model.pb other.pb -o old": f"old/model.pb old/other.pb old/{MANIFEST}",
    "link.pb -o old": f"old/link.pb old/{MANIFEST}",
    "model.pb -o out.pbtxt": "out.pbtxt",
    "model.pb -o out.meta": "out.meta",
    "saved": "saved.patched/saved_model.pb",
    "saved/saved_model.pb": "saved.patched/saved_model.pb",
    "saved -o out": "out/saved_model.pb",
    "saved/saved_model.pb -o new/": f"new/saved/saved_model.pb new/{MANIFEST}",
    "saved -o older --force": "older/saved_model.pb",
}


@pytest.mark.every(3)
@pytest.mark.parametrize("typed", OUTPUTS)
def test_outputs(run_cli: Run, rules: Path, model_file: Path, typed: str) -> None:
    folder, written = model_file.parent, OUTPUTS[typed].split()
    (folder / "other.pb").write_bytes(model_file.read_bytes())
    (folder / "link.pb").symlink_to("other.pb")
    (folder / "old").mkdir()
    for name in ("saved", "older"):
        graphs.saved_model_folder(folder / name, graphs.metagraph(graphs.sample(), "serve"))
    before = files(folder)
    done = run_cli("apply", rules, *typed.split(), "--json", cwd=folder)
    assert (done.code, done.stderr) == (0, "")
    reported = [output["output"] for output in done.json["outputs"]]
    models = [path for path in written if MANIFEST not in path]
    assert [path.removesuffix("/saved_model.pb") for path in models] == reported
    assert all(is_patched(folder / path) for path in reported)
    for path in models:
        if path.endswith("/saved_model.pb"):  # what belongs to it is copied, but not its hashes
            copied = files(folder / Path(path).parent)
            assert {*copied, "fingerprint.pb"} == set(files(folder / "saved"))
            written += [f"{Path(path).parent}/{name}" for name in copied]
    hashes = {f"{Path(path).parent}/fingerprint.pb" for path in models}
    assert set(files(folder)) == {*before, *written} - hashes


# Pipes


def test_through_a_pipe(run_cli: Run, rules: Path, model_file: Path) -> None:
    model = model_file.read_bytes()
    run_cli("apply", rules, model_file, "-o", "out.pb", cwd=model_file.parent)
    expected = model_file.with_name("out.pb").read_bytes()
    for args in (["-"], [model_file, "-o", "-"], [model_file, "-o", "/dev/stdout"]):
        done = run_cli("apply", rules, *args, stdin=model)
        assert (done.code, done.raw[: len(expected)]) == (0, expected)
        said = done.stderr + done.raw[len(expected) :].decode()
        assert said.splitlines()[1] == "  elu   1 Relu  (built-in)"
    done = run_cli("apply", rules, "-", "-o", "piped.pb", stdin=model, cwd=model_file.parent)
    assert (done.code, done.stderr) == (0, "")
    assert model_file.with_name("piped.pb").read_bytes() == expected


def test_other_things_in_a_pipe(run_cli: Run, rules: Path, model_file: Path) -> None:
    """Text stays text; rules come through one; reports beside a model go to standard error."""
    done = run_cli("apply", rules, "-", stdin=str(graphs.sample()).encode())
    found = text_format.Parse(done.stdout, GraphDef())
    assert {node.name: node for node in found.node}["relu"].attr[OVERRIDE].s == b"Elu"
    patched = model_file.with_name("model.patched.pb")
    done = run_cli("apply", "-", model_file, stdin=rules.read_bytes())
    assert (done.code, is_patched(patched)) == (0, True)
    done = run_cli("apply", rules, model_file, "-", stdin=model_file.read_bytes())
    assert GraphDef.FromString(done.raw).node[0].name == "x"
    assert done.stderr.startswith(f"{model_file} -> {patched} (replaced)\n")


def test_a_saved_model_goes_through_no_pipe(run_cli: Run, rules: Path, tmp_path: Path) -> None:
    folder = graphs.saved_model_folder(tmp_path / "saved", graphs.metagraph(graphs.sample(), "a"))
    done = run_cli("apply", rules, folder, "-o", "-")
    assert (done.code, done.raw) == (1, b"")
    assert done.stderr == "graphpatch: a SavedModel is a folder, and does not go through a pipe\n"


# Several models


def test_one_that_fails_stops_no_other(run_cli: Run, rules: Path, model_file: Path) -> None:
    bad, other = model_file.with_name("bad.pb"), model_file.with_name("other.pb")
    bad.write_bytes(b"no model")
    other.write_bytes(model_file.read_bytes())
    done = run_cli("apply", rules, model_file, bad, other, "--json")
    assert done.code == 1
    assert [output["model"] for output in done.json["outputs"]] == [str(model_file), str(other)]
    [error] = done.json["errors"]
    assert error["model"] == str(bad)
    assert done.stderr == f"graphpatch: {error['error']}\n"
    assert is_patched(model_file.with_name("other.patched.pb"))
    assert not model_file.with_name("bad.patched.pb").exists()


# --emit


def test_the_carrier_is_chosen(run_cli: Run, rules_file: RulesFile, model_file: Path) -> None:
    identity = ELU | {"patch": {"override_gradient": "identity"}}
    own = identity | {"match": {"op": "Relu6"}, "emit": "auto"}
    rules = rules_file(identity, own)
    for emit, expected in (("attr", ["attr", "built-in"]), ("auto", ["built-in", "built-in"])):
        done = run_cli("apply", rules, model_file, "--emit", emit, "--dry-run", "--json")
        assert [rule["emit"] for rule in done.json["outputs"][0]["rules"]] == expected
