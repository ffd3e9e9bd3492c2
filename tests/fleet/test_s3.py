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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket of a server that this process, and what it starts, is pointed to."""
    server = moto_server.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "any")
    s3 = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    s3.mkdir("bucket")
    yield s3
    server.stop()


ARGS = ("apply", "s3://bucket/rules.json", "s3://bucket/reg", "-o", "s3://bucket/out", "--jobs")


def stored(store: Any) -> dict[str, bytes]:
    store.invalidate_cache()
    # A folder that comes to be while it is looked for is found as a file.
    paths = [path for path in store.find("bucket/out") if path.startswith("bucket/out/")]
    return {path.removeprefix("bucket/out/"): store.cat_file(path) for path in paths}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_bucket_gets_what_a_disk_gets(
    run_cli: Run, tmp_path: Path, store: Any, jobs: str
) -> None:
    (tmp_path / "reg/v1").mkdir(parents=True)
    (tmp_path / "reg/a.pb").write_bytes(MODEL)
    for place in range(10):
        (tmp_path / f"reg/v1/{place}.pb").write_bytes(LARGE)
    graphs.saved_model_folder(tmp_path / "reg/saved", graphs.metagraph(graphs.sample(), "serve"))
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    store.put(str(tmp_path / "reg"), "bucket/reg", recursive=True)
    store.put_file(str(tmp_path / "rules.json"), "bucket/rules.json")
    here = run_cli("apply", "rules.json", "reg", "-o", "here", "-j", "1", cwd=tmp_path)
    there = run_cli(*ARGS, jobs, cwd=tmp_path)
    assert (there.code, there.stderr) == (here.code, here.stderr) == (0, "12 models: 12 patched\n")
    on_disk, in_store = everything(tmp_path / "here"), stored(store)
    said = [
        {line["output"]: line["output_sha256"] for line in map(json.loads, text.splitlines())}
        for text in (on_disk.pop(MANIFEST_NAME), in_store.pop(MANIFEST_NAME))
    ]
    assert (in_store, said[0]) == (on_disk, said[1])
    again = run_cli(*ARGS, jobs, "--resume", cwd=tmp_path)
    assert again.stderr == "12 models: 0 patched, 12 skipped\n"
    store.rm("bucket/out/a.pb")
    store.rm("bucket/out/saved", recursive=True)
    resumed = run_cli(*ARGS, jobs, "--resume", cwd=tmp_path)
    assert resumed.stderr == "12 models: 2 patched, 10 skipped\n"
    assert stored(store).items() >= on_disk.items()
    assert run_cli("check", "s3://bucket/rules.json", "s3://bucket/out", cwd=tmp_path).code == 0
