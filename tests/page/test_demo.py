"""The demo: what it prints last, and the page that it writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def is_installed() -> bool:
    """Whether the demo finds its environment, and installs nothing."""
    read = 'printf "%s" "$PWD $(cat setup.cfg pyproject.toml | cksum)"'
    wanted = subprocess.run(["bash", "-c", read], cwd=ROOT, capture_output=True, check=True).stdout
    stamps = (ROOT / ".venv").glob("installed-tensorflow*")
    return any(stamp.read_bytes().strip() == wanted for stamp in stamps)


@pytest.mark.slow
def test_the_demo_writes_a_page_and_says_where() -> None:
    if not is_installed():
        pytest.skip("scripts/demo would install its environment; scripts/test does that")
    page = ROOT / "build" / "digits.html"
    page.unlink(missing_ok=True)
    done = subprocess.run(
        ["scripts/demo"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout[done.stdout.index("$ graphpatch view") :].splitlines()
    assert told[1] == "build/digits.html: 24 lines"
    assert told[2] == "  image:0 -> logits:0: None, at Round quantize/Round -> flows"
    assert told[-1].startswith("  run: gradients of the largest element of each row of logits:0")
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert '"kind":"heat"' in text
    assert "Forward pass bit-equal: yes" in done.stdout
