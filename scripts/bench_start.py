"""Time how long a command takes to start, beside another checkout of graphpatch.

    git worktree add /tmp/before b7ccc6d
    python scripts/bench_start.py /tmp/before

Runs `graphpatch ops` on the small graph of the demo in turn, A B A B, and prints the ratio of the
least processor times, and the median of the ratios of neighbours. Byte code is compiled first.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "scripts/models/digits.pb"
ROUNDS = 16


def main(other: Path) -> None:
    """Print the ratios of this checkout to the other one."""
    for checkout in (ROOT, other):
        compileall.compile_dir(checkout / "graphpatch", quiet=1)
    pairs = [(_seconds(ROOT), _seconds(other)) for _ in range(ROUNDS)]
    least = [min(some) for some in zip(*pairs, strict=True)]
    between = median(here / there for here, there in pairs)
    print(f"ops: {least[0]:.3f} s here, {least[1]:.3f} s there; {least[0] / least[1]:.2f} of it")
    print(f"median of the ratios of neighbours: {between:.2f}")


def _seconds(checkout: Path) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "graphpatch", "ops", str(MODEL)],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
