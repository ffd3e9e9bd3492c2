"""Names from stores, archives and lists that would lead elsewhere; manifests that others wrote."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from graphpatch.errors import FleetError, GraphpatchError, OutputError
from graphpatch.fleet import stores
from graphpatch.fleet.run import MANIFEST_NAME, Manifest, planned
from graphpatch.fleet.search import Task, search
from graphpatch.fleet.work import FleetOrder, TaskResult
from tests import graphs
from tests.conftest import RulesFile, Run
from tests.refusals import refused

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def archive(path: Path, *members: str) -> str:
    meta = graphs.metagraph(graphs.sample(), "serve")
    folder = graphs.saved_model_folder(path.parent / "for_zip", meta)
    with zipfile.ZipFile(path, "w") as file:
        file.write(folder / "saved_model.pb", "m/saved_model.pb")
        for member in members:
            file.writestr(member, "escaped")
    return f"zip://m::file://{path}"


def done(order: FleetOrder) -> list[TaskResult]:
    with planned(order) as batch:
        return list(batch.results())


@pytest.mark.parametrize(
    "member",
    ["m/../../ESCAPED", "m/../ESCAPED", "m/a/../../ESCAPED", "m/./ESCAPED", "m/..\\ESCAPED"],
)
def test_zip_slip(tmp_path: Path, rules_file: RulesFile, run_cli: Run, member: str) -> None:
    pytest.importorskip("fsspec")
    url, out = archive(tmp_path / "evil.zip", member), tmp_path / "a" / "out"
    out.parent.mkdir()
    ran = run_cli("apply", "--allow-chained-urls", rules_file(GUIDED), url, "-o", out)
    assert (ran.code, "does not stay in its folder" in ran.stderr) == (1, True)
    assert not list(tmp_path.rglob("ESCAPED*"))
    assert not out.exists()


def test_chained_urls_are_opened_where_they_are_asked_for(
    tmp_path: Path, rules_file: RulesFile, run_cli: Run
) -> None:
    pytest.importorskip("fsspec")
    url, rules = archive(tmp_path / "good.zip"), rules_file(GUIDED)
    written = ("m.pb", "-o", "zip://a::memory://b")
    for args in (
        (rules, url),
        (url, "m.pb"),
        (rules, f"@{url}"),
        (rules, "m", url),
        (rules, *written),
    ):
        refused(run_cli("apply", *args), "--allow-chained-urls opens it")
    (here := tmp_path / "here").mkdir()
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


def test_what_a_list_may_not_name(tmp_path: Path) -> None:
    for line in ("zip://m::file:///evil.zip", "simplecache::memory://m.pb", "@other", "-", "a\0b"):
        (tmp_path / "list").write_text(f"{line}\n")
        says = "--allow-chained-urls" if "::" in line else "a list holds paths"
        with pytest.raises(FleetError, match=says):
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
def test_urls_out_of_reach(tmp_path: Path, rules_file: RulesFile, run_cli: Run, url: str) -> None:
    pytest.importorskip("fsspec")
    for args in ((rules_file(GUIDED), url), (url, "m.pb")):
        refused(run_cli("apply", *args, "-o", tmp_path / "out.pb"))


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
    rules, models, out = str(rules_file(GUIDED)), (str(tmp_path / "in"),), str(tmp_path / "out")
    order = FleetOrder(rules, models, out, resume=True, jobs=1)
    assert [one.error for one in done(order)] == [""]
    return order


FORGED: list[Callable[[dict[str, Any]], Any]] = [
    lambda line: {**line, "rules": "x"},
    lambda line: {key: value for key, value in line.items() if key != "sha256"},
    lambda line: {**line, "sha256": [1], "output_sha256": {}},
    lambda line: {**line, "more": 1},
    lambda line: {**line, "output": "../../../escape.pb"},
    lambda line: {**line, "output": "/tmp/escape.pb"},
    lambda line: [line],
    lambda line: b"9" * 5000,
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
    manifest = tmp_path / "out" / MANIFEST_NAME
    forged = forge(json.loads(manifest.read_bytes()))
    text = forged if isinstance(forged, bytes) else json.dumps(forged).encode()
    manifest.write_bytes(text + b"\n")
    assert [(result.error, result.passed_over) for result in done(folders)] == [("", "")]
    assert json.loads(manifest.read_bytes().splitlines()[-1])["output"] == "m.pb"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "/dev/zero"])
def test_a_manifest_is_a_file(folders: FleetOrder, tmp_path: Path, kind: str) -> None:
    manifest = tmp_path / "out" / MANIFEST_NAME
    if kind == "link":
        manifest.rename(tmp_path / "elsewhere")
        manifest.symlink_to(tmp_path / "elsewhere")
    else:
        manifest.unlink()
        make = {"pipe": os.mkfifo, "folder": Path.mkdir}
        make.get(kind, lambda one: one.symlink_to(kind))(manifest)
    with pytest.raises(GraphpatchError, match="a link, a pipe or a folder; a manifest is a file"):
        done(folders)


def test_a_link_that_takes_the_place_of_a_manifest_is_not_followed(tmp_path: Path) -> None:
    manifest = Manifest(str(tmp_path), FleetOrder("@guided_backprop", ("m.pb",)).with_rules())
    (tmp_path / "mine").write_text("mine")
    (tmp_path / MANIFEST_NAME).symlink_to("mine")
    manifest.add(TaskResult(Task("m.pb", f"{tmp_path}/m.pb"), error="m.pb: broken"))
    with pytest.raises(OutputError, match="a manifest is a file"):
        manifest.write()
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_an_output_may_be_no_device(resume: bool, folders: FleetOrder, tmp_path: Path) -> None:
    """In somebody else's folder; its bytes had no end."""
    (tmp_path / "out/m.pb").unlink()
    (tmp_path / "out/m.pb").symlink_to("/dev/zero")
    [result] = done(structs.replace(folders, resume=resume))
    assert "out/m.pb is neither a file nor a folder" in result.error


def test_a_list_that_names_a_device(folders: FleetOrder, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("/dev/zero\n")
    [result] = done(structs.replace(folders, models=(f"@{tmp_path}/list.txt",)))
    assert "/dev/zero is neither a file nor a folder" in result.error
