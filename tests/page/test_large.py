"""The page of VGG16 as the benchmark builds it: 553 MB of weights, of which it reads none."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MOST = {"seconds of processor": 3, "megabytes": 150, "bytes of the page": 1_000_000}
# Its own peak: getrusage counts what the test process held when it forked, and VmHWM does not.
VIEW = """
import re, sys
from pathlib import Path
from graphpatch.page.view import view
view(sys.argv[1]).save(sys.argv[2])
print(re.search("VmHWM:\\\\s*(\\\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_the_page_of_vgg16_is_small_and_soon_there(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here, which tells the peak of a process")
    pytest.importorskip("tensorflow", reason="scripts/models/build_keras.py builds the model")
    model, page = tmp_path / "vgg16.pb", tmp_path / "vgg16.html"
    script = ROOT / "scripts" / "models" / "build_keras.py"
    subprocess.run([sys.executable, script, "VGG16", model], check=True, capture_output=True)
    assert model.stat().st_size > 550_000_000
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", VIEW, str(model), str(page)]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "seconds of processor": ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime,
        "megabytes": int(done.stdout) * 1024 / 1e6,
        "bytes of the page": page.stat().st_size,
    }
    assert {name: size for name, size in found.items() if size > MOST[name]} == {}
    text = page.read_text()
    for name in ("block1_conv1", "block5_pool", "predictions", "MaxPool", "BiasAdd"):
        assert name in text
