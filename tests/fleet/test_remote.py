"""Models, rules and outputs in a store: `memory://`, which is this process's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphpatch import cli
from graphpatch.errors import OutputError
from graphpatch.fleet import stores
from graphpatch.fleet.run import MANIFEST_NAME
from tests import graphs
from tests.refusals import LARGE, MODEL, RULE, everything, rules_text

fsspec = pytest.importorskip("fsspec")
memory = pytest.importorskip("fsspec.implementations.memory")


class Bucket(memory.MemoryFileSystem):  # type: ignore[misc]
    """Where an object appears when its upload is complete, and moving it copies it, as in S3."""

    protocol = "s3"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("s3://", "memory://")))

    def mv(self, *args: object, **more: object) -> None:
        raise AssertionError("an object was moved")


@pytest.fixture
def protocol() -> str:
    return "memory"


@pytest.fixture
def store(protocol: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", Bucket)
    files = fsspec.filesystem(protocol)
    yield files
    for path in files.ls("/", detail=False):
        files.rm(path, recursive=True)


@pytest.fixture
def registry(store: Any, tmp_path: Path) -> Path:
    """The same models in the store below reg/ and on disk, and rules in the store."""
    for name in ("a.pb", "v1/a.pb", "v1/large.pb"):
        (tmp_path / "reg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reg" / name).write_bytes(LARGE if "large" in name else MODEL)
    graphs.saved_model_folder(tmp_path / "reg/saved", graphs.metagraph(graphs.sample(), "serve"))
    store.put(str(tmp_path / "reg"), "/reg", recursive=True)
    store.pipe_file("/rules.json", rules_text(RULE).encode())
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """The command line in this process: the store is nobody else's."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["graphpatch", *map(str, args)])
        code = cli._run()
    said = capsys.readouterr()
    return code, said.out, said.err


def stored(store: Any, root: str) -> dict[str, bytes]:
    """All files below a folder of the store, but the manifest."""
    found = {path.removeprefix(f"{root}/"): store.cat_file(path) for path in store.find(root)}
    return {name: data for name, data in found.items() if name != MANIFEST_NAME}


@pytest.mark.parametrize("protocol", ["memory", "s3"])
def test_as_a_disk(
    capsys: pytest.CaptureFixture[str], store: Any, registry: Path, protocol: str
) -> None:
    paths = (f"{protocol}://rules.json", f"{protocol}://reg", "-o", f"{protocol}://out")
    jobs = "2" if protocol == "memory" else "1"  # whose memory only this process has
    code, out, error = run(capsys, "apply", *paths, "--json", "--jobs", jobs)
    assert (code, error) == (0, "4 models: 4 patched\n")
    here = ("apply", registry / "rules.json", registry / "reg", "-o", registry / "out")
    assert run(capsys, *here, "-j", "1")[0] == 0
    on_disk = everything(registry / "out")
    on_disk.pop(MANIFEST_NAME)
    assert stored(store, "/out") == on_disk
    lines = sorted((json.loads(line) for line in out.splitlines()), key=lambda one: one["model"])
    names = ["a.pb", "saved", "v1/a.pb", "v1/large.pb"]
    assert [one["model"] for one in lines] == [f"{protocol}://reg/{name}" for name in names]
    assert [one["output"] for one in lines] == [f"{protocol}://out/{name}" for name in names]
    said = [json.loads(line) for line in store.cat_file(f"/out/{MANIFEST_NAME}").splitlines()]
    assert sorted(one["output"] for one in said) == names


@pytest.mark.parametrize("protocol", ["memory", "s3"])
def test_resume_in_a_store(
    capsys: pytest.CaptureFixture[str], store: Any, registry: Path, protocol: str
) -> None:
    paths = (f"{protocol}://rules.json", f"{protocol}://reg/**/*.pb", "-o", f"{protocol}://out/")
    args = ("apply", *paths, "-j", "1")
    assert run(capsys, *args, "--resume")[2] == "4 models: 4 patched\n"
    before = stored(store, "/out")
    assert run(capsys, *args, "--resume")[2] == "4 models: 0 patched, 4 skipped\n"
    store.pipe_file("/out/a.pb", b"other")
    store.rm("/out/saved", recursive=True)
    refused = "out/a.pb exists, and is not a model that graphpatch"
    assert refused in run(capsys, *args, "--resume")[2]
    store.rm("/out/saved", recursive=True)
    assert run(capsys, *args, "--resume", "--force")[2] == "4 models: 2 patched, 2 skipped\n"
    assert stored(store, "/out") == before
    assert run(capsys, "check", paths[0], f"{protocol}://out", "-j", "1")[0] == 0
    assert run(capsys, "check", paths[0], f"{protocol}://reg", "-j", "1")[0] == 1


def test_a_new_one_for_an_old(
    capsys: pytest.CaptureFixture[str], store: Any, registry: Path
) -> None:
    store.pipe_file("/out/saved/variables/old", b"x")
    store.pipe_file("/out/saved/saved_model.pb", b"x")
    args = ("apply", "memory://rules.json", "memory://reg/sav*", "-o", "memory://out")
    assert "did not write: variables" not in run(capsys, *args)[2]
    assert run(capsys, *args)[0] == 1
    assert run(capsys, *args, "--force")[0] == 0
    assert "saved/variables/old" not in stored(store, "/out")
    assert stored(store, "/out")["saved/saved_model.pb"] != b"x"


def test_what_is_written_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    store.pipe_file("/out/x.pb", b"old")

    def broken(local: str, path: str) -> None:
        store.pipe_file(path, LARGE[:100])
        raise ConnectionResetError("gone")

    monkeypatch.setattr(store, "put_file", broken)
    with (
        pytest.raises(OutputError, match=r"cannot write memory://out/x\.pb: gone"),
        stores.delivered("memory://out/x.pb") as path,
    ):
        path.write_bytes(LARGE)
    assert stored(store, "/out") == {"x.pb": b"old"}


def test_errors_name_urls(capsys: pytest.CaptureFixture[str], store: Any, registry: Path) -> None:
    store.pipe_file("/reg/bad.pb", MODEL[:-1])
    args = ("apply", "memory://rules.json", "memory://reg", "-o", "memory://out")
    code, _, error = run(capsys, *args)
    assert code == 1
    assert error.splitlines()[1].startswith("graphpatch: memory://reg/bad.pb: truncated")
    for one, said in (
        ("memory://gone.pb", "cannot read memory://gone.pb: "),
        ("memory://gone/*.pb", "no model matches memory://gone/*.pb"),
        ("nonsense://x.pb", "cannot reach nonsense://x.pb: Protocol not known: nonsense"),
    ):
        code, _, error = run(capsys, "apply", "memory://rules.json", one, "-o", "memory://out/")
        assert code == 1
        assert error.splitlines()[-1].startswith(f"graphpatch: {said}")


def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(registry)
    inside = ("apply", "memory://rules.json", "memory://reg", "-o", "memory://reg/out")
    assert "memory://reg/out lies in memory://reg, which is searched" in run(capsys, *inside)[2]
    beside = ("apply", "memory://rules.json", "memory://reg/a.pb")
    assert "say where the output of a remote model goes, by -o" in run(capsys, *beside)[2]
    cluster = ("apply", "memory://rules.json", "memory://reg", "-o", "x", "--scheduler", "y")
    assert "workers do not see the memory of this process" in run(capsys, *cluster)[2]
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert "pip install fsspec" in run(capsys, *beside)[2]
