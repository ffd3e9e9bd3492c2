"""Names from stores, archives and lists that would lead elsewhere; manifests that others wrote."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch.errors import FleetError, GraphpatchError
from graphpatch.fleet import stores
from graphpatch.fleet.order import FleetOrder, TaskResult, Workers
from graphpatch.fleet.run import patch_models
from graphpatch.fleet.search import search
from tests import graphs
from tests.conftest import RulesFile

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
ONE = Workers(1)


def archive(path: Path, *members: str) -> str:
    meta = graphs.metagraph(graphs.sample(), "serve")
    folder = graphs.saved_model_folder(path.parent / "for_zip", meta)
    with zipfile.ZipFile(path, "w") as file:
        file.write(folder / "saved_model.pb", "m/saved_model.pb")
        for member in members:
            file.writestr(member, "escaped")
    return f"zip://m::file://{path}"


def done(order: FleetOrder) -> list[TaskResult]:
    return list(patch_models(order)[1])


@pytest.mark.parametrize(
    "member",
    ["m/../../ESCAPED", "m/../ESCAPED", "m/a/../../ESCAPED", "m/./ESCAPED", "m/..\\ESCAPED"],
)
def test_zip_slip(tmp_path: Path, rules_file: RulesFile, member: str) -> None:
    pytest.importorskip("fsspec")
    url = archive(tmp_path / "evil.zip", member)
    out = tmp_path / "a" / "b" / "out"
    out.parent.mkdir(parents=True)
    rules = str(rules_file(GUIDED))
    try:
        ended = done(FleetOrder(rules, (url,), str(out), allow_chained=True))
    except GraphpatchError as error:
        assert "does not stay in its folder" in str(error)  # noqa: PT017
    else:
        assert all("does not stay in its folder" in one.error for one in ended)
    assert not list(tmp_path.rglob("ESCAPED*"))
    assert not out.exists()


def test_chained_urls_are_opened_where_they_are_asked_for(
    tmp_path: Path, rules_file: RulesFile, run_cli: Any
) -> None:
    pytest.importorskip("fsspec")
    url, rules = archive(tmp_path / "good.zip"), str(rules_file(GUIDED))
    for paths in ((rules, (url,)), (url, ("m.pb",)), (rules, (f"@{url}",)), (rules, ("m", url))):
        with pytest.raises(FleetError, match="--allow-chained-urls opens it"):
            FleetOrder(*paths, out="out")
    with pytest.raises(FleetError, match="--allow-chained-urls opens it"):
        FleetOrder(rules, ("m.pb",), out="zip://a::memory://b")
    refused = run_cli("apply", rules, url, "-o", tmp_path / "out")
    assert (refused.code, "--allow-chained-urls" in refused.stderr) == (1, True)
    here = tmp_path / "here"
    here.mkdir()
    opened = run_cli("apply", "--allow-chained-urls", rules, url, "-o", tmp_path / "out", cwd=here)
    assert opened.code == 0, opened.stderr
    assert (tmp_path / "out/saved_model.pb").exists()
    assert not list(here.iterdir())  # some versions of fsspec make folders where nobody asked


def test_what_an_archive_unpacks_to_has_a_limit(
    tmp_path: Path, rules_file: RulesFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    url, rules = archive(tmp_path / "good.zip"), str(rules_file(GUIDED))
    order = FleetOrder(rules, (url,), str(tmp_path / "out"), allow_chained=True)
    monkeypatch.setattr(stores, "MOST_UNPACKED", 10)
    [one] = done(order)
    assert "unpacks to more than" in one.error
    assert not (tmp_path / "out" / "saved_model.pb").exists()
    monkeypatch.setattr(stores, "MOST_READ", 10)
    with pytest.raises(FleetError, match="has more than"):
        stores.read_small(f"file://{rules}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("zip://m::file:///evil.zip", "--allow-chained-urls"),
        ("simplecache::memory://m.pb", "--allow-chained-urls"),
        ("@other", "a list holds paths"),
        ("-", "a list holds paths"),
        ("a\0b", "a list holds paths"),
    ],
)
def test_what_a_list_may_not_name(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "list").write_text(f"{line}\n")
    with pytest.raises(FleetError, match=said):
        search([f"@{tmp_path}/list"])


@pytest.mark.parametrize("line", ["/etc/passwd", "../m.pb", "file:///etc/passwd", "local:///m.pb"])
def test_a_list_that_lies_elsewhere_names_nothing_of_this_machine(line: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/list", f"{line}\n".encode())
    with pytest.raises(FleetError, match="a path of this machine"):
        search(["@memory://list"])


@pytest.mark.parametrize(
    "name", ["../x", "a/../x", "/x", "a//x", "", ".", "a\\x", "C:x", "a\0", "zip://a", "a::b"]
)
def test_names_that_do_not_stay(name: str) -> None:
    with pytest.raises(FleetError, match="does not stay in its folder"):
        stores.inner_path(name, "s3://bucket")


def test_names_that_stay() -> None:
    for name in ("x", "a/x.pb", "..x", "a/x..", "...", "12:00", "ä b"):
        assert stores.inner_path(name, "s3://bucket") == name


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:9/m.pb", "nothing://m.pb", "memory://no/such.pb"])
def test_urls_out_of_reach(tmp_path: Path, rules_file: RulesFile, run_cli: Any, url: str) -> None:
    pytest.importorskip("fsspec")
    for args in ((rules_file(GUIDED), url), (url, "m.pb")):
        ran = run_cli("apply", *args, "-o", tmp_path / "out.pb")
        assert (ran.code, ran.stdout) == (1, "")
        assert "graphpatch: " in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_pipe_in_a_folder_is_no_model(tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in/pipe.pb")
    (tmp_path / "in/zero.pb").symlink_to("/dev/zero")
    (tmp_path / "in/m.pb").write_bytes(model_file.read_bytes())
    assert [Path(one.model).name for one in search([str(tmp_path / "in")])] == ["m.pb"]


@pytest.fixture
def folders(tmp_path: Path, model_file: Path, rules_file: RulesFile) -> FleetOrder:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/m.pb").write_bytes(model_file.read_bytes())
    order = FleetOrder(
        str(rules_file(GUIDED)), (str(tmp_path / "in"),), str(tmp_path / "out"), resume=True,
        workers=ONE,
    )  # fmt: skip
    assert [one.error for one in done(order)] == [""]
    return order


MANIFEST = "graphpatch-manifest.jsonl"
FORGED: list[Callable[[dict[str, Any]], Any]] = [
    lambda line: {**line, "rules": "x"},
    lambda line: {**line, "rules": [1]},
    lambda line: {key: value for key, value in line.items() if key != "sha256"},
    lambda line: {**line, "sha256": [1], "output_sha256": {}},
    lambda line: {**line, "seconds": "x"},
    lambda line: {**line, "more": 1},
    lambda line: {**line, "output": "../../../escape.pb"},
    lambda line: {**line, "output": "/tmp/escape.pb"},
    lambda line: [line],
    lambda line: 10**5000,
    lambda line: b'{"output":"m.pb","seconds":NaN}',
    lambda line: b"\xff\xfe",
    lambda line: b"[" * 100_000,
    lambda line: b'{"output":' * 3_000,
    lambda line: b'{"output":"m.pb","matches":' + b'{"a":' * 900 + b"1" + b"}" * 901,
    lambda line: b'{"output":"\\ud800"}',
]


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_line(
    folders: FleetOrder, tmp_path: Path, forge: Callable[[dict[str, Any]], Any]
) -> None:
    manifest = tmp_path / "out" / MANIFEST
    line = json.loads(manifest.read_bytes())
    found = forge(line)
    text = found if isinstance(found, bytes) else encoded(found)
    manifest.write_bytes(text + b"\n")
    assert [(one.error, one.passed_over) for one in done(folders)] == [("", "")]
    assert json.loads(manifest.read_bytes().splitlines()[-1])["output"] == "m.pb"


def encoded(found: Any) -> bytes:
    """JSON of what Python's own encoder refuses, too: a number of thousands of digits."""
    return b"9" * 5000 if isinstance(found, int) else json.dumps(found).encode()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "/dev/zero"])
def test_a_manifest_is_a_file(folders: FleetOrder, tmp_path: Path, kind: str) -> None:
    manifest = tmp_path / "out" / MANIFEST
    if kind == "link":
        manifest.rename(tmp_path / "elsewhere")
        manifest.symlink_to(tmp_path / "elsewhere")
    else:
        manifest.unlink()
        make = {"pipe": os.mkfifo, "folder": Path.mkdir}
        make.get(kind, lambda one: one.symlink_to(kind))(manifest)
    with pytest.raises(GraphpatchError, match="a link, a pipe or a folder; a manifest is a file"):
        done(folders)


@pytest.mark.parametrize("resume", [False, True])
def test_an_output_may_be_no_device(resume: bool, tmp_path: Path, rules_file: RulesFile) -> None:
    """In somebody else's folder; its bytes had no end."""
    models, out = tmp_path / "in", tmp_path / "out"
    models.mkdir()
    out.mkdir()
    (models / "m.pb").write_bytes(graphs.sample().SerializeToString())
    (out / "m.pb").symlink_to("/dev/zero")
    rules = str(rules_file(GUIDED))
    order = FleetOrder(rules, (str(models),), str(out), resume=resume, workers=ONE)
    (one,) = done(order)
    assert "out/m.pb is neither a file nor a folder" in one.error


def test_a_list_that_names_a_device(tmp_path: Path, rules_file: RulesFile) -> None:
    (tmp_path / "list.txt").write_text("/dev/zero\n")
    models, rules = (f"@{tmp_path}/list.txt",), str(rules_file(GUIDED))
    order = FleetOrder(rules, models, str(tmp_path / "out"), workers=ONE)
    (one,) = done(order)
    assert "/dev/zero is neither a file nor a folder" in one.error
