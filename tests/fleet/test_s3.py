"""Models, rules and outputs in S3, as `moto` serves it: a store that every process sees.

Neither moto nor s3fs comes with the extra `test`, as both bring much: `pip install 'moto[server]'
s3fs` has these tests run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphpatch.fleet.manifest import MANIFEST_NAME
from tests import graphs
from tests.conftest import Run
from tests.refusals import LARGE, MODEL, RULE, everything, rules_text

s3fs = pytest.importorskip("s3fs", reason="pip install 'moto[server]' s3fs")
moto_server = pytest.importorskip("moto.server", reason="pip install 'moto[server]' s3fs")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What points a process to the server."""
    server = moto_server.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server.stop()


@pytest.fixture
def store(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    s3 = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    s3.mkdir("bucket")
    yield s3
    for path in s3.find("bucket"):
        s3.rm_file(path)
    s3.rmdir("bucket")


@pytest.fixture
def folder(store: Any, tmp_path: Path) -> Path:
    """The same models in the bucket below reg/ and on disk, and rules in both."""
    (tmp_path / "reg/v1").mkdir(parents=True)
    (tmp_path / "reg/a.pb").write_bytes(MODEL)
    for place in range(10):
        (tmp_path / f"reg/v1/{place}.pb").write_bytes(LARGE)
    graphs.saved_model_folder(tmp_path / "reg/saved", graphs.metagraph(graphs.sample(), "serve"))
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    store.put(str(tmp_path / "reg"), "bucket/reg", recursive=True)
    store.put_file(str(tmp_path / "rules.json"), "bucket/rules.json")
    return tmp_path


ARGS = ("apply", "s3://bucket/rules.json", "s3://bucket/reg", "-o", "s3://bucket/out")


def stored(store: Any, root: str = "bucket/out") -> dict[str, bytes]:
    store.invalidate_cache()
    # A folder that comes to be while it is looked for is found as a file.
    paths = [path for path in store.find(root) if path.startswith(f"{root}/")]
    found = {path.removeprefix(f"{root}/"): store.cat_file(path) for path in paths}
    return {name: data for name, data in found.items() if name != MANIFEST_NAME}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_bucket_gets_what_a_disk_gets(run_cli: Run, folder: Path, store: Any, jobs: str) -> None:
    here = run_cli("apply", "rules.json", "reg", "-o", "here", "-j", "1", cwd=folder)
    there = run_cli(*ARGS, "--jobs", jobs, cwd=folder)
    assert (there.code, there.stderr) == (here.code, here.stderr) == (0, "12 models: 12 patched\n")
    on_disk = everything(folder / "here")
    lines = [json.loads(line) for line in on_disk.pop(MANIFEST_NAME).splitlines()]
    assert stored(store) == on_disk
    said = [json.loads(line) for line in store.cat_file(f"bucket/out/{MANIFEST_NAME}").splitlines()]
    assert {one["output"]: one["output_sha256"] for one in said} == {
        one["output"]: one["output_sha256"] for one in lines
    }
    again = run_cli(*ARGS, "--resume", "--jobs", jobs, cwd=folder)
    assert again.stderr == "12 models: 0 patched, 12 skipped\n"
    store.pipe_file("bucket/out/a.pb", b"other")
    store.rm("bucket/out/saved", recursive=True)
    resumed = run_cli(*ARGS, "--resume", "--jobs", jobs, cwd=folder)
    assert resumed.stderr == "12 models: 2 patched, 10 skipped\n"
    assert stored(store) == on_disk
    assert run_cli("check", "s3://bucket/rules.json", "s3://bucket/out", cwd=folder).code == 0
