"""Print how often `graphpatch doctor` foretells what TensorFlow does, over all real models.

Every pair of a placeholder and an output of each model (of its first parameters, where it has no
placeholder) is asked of both. They agree where doctor says that the gradient flows and
tf.gradients gives a tensor; that it is None, and it gives None; that it raises, and it raises that
error, of that op. Each model is asked for --seconds at most: pairs left out are counted. Prints
every disagreement; exits 1 where there is one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import local

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.models import catalogue  # noqa: E402
from tests.models.doctor_oracle import Agreement, compare  # noqa: E402
from tests.models.forward import Worker  # noqa: E402

GRACE = 120.0  # seconds for import and for the pair in hand, beyond which a process is ended
held = local()


def asked(name: str, control_flow_v2: bool, seconds: float) -> tuple[str, Agreement, float]:
    """The agreement on one model, asked by the process of this thread."""
    if not hasattr(held, "worker"):
        held.worker = Worker()
    begun = time.monotonic()
    try:
        found = held.worker(compare, name, control_flow_v2, seconds, timeout=seconds + GRACE)
    except (BrokenProcessPool, TimeoutError) as error:
        reason = "takes too long" if isinstance(error, TimeoutError) else "TensorFlow aborts"
        found = Agreement(refused=[reason])
    return name, found, time.monotonic() - begun


def answers(arguments: argparse.Namespace) -> Iterator[tuple[str, Agreement, float]]:
    """The agreement on each model, largest files first."""
    models = catalogue.models()
    names = [name for name in models if all(word in name for word in arguments.only)]
    names.sort(key=lambda name: -catalogue.size(models[name]))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        todo = [
            pool.submit(asked, name, not arguments.no_control_flow_v2, arguments.seconds)
            for name in names
        ]
        for one in todo:
            yield one.result()


def report(found: dict[str, Agreement]) -> Iterator[str]:
    """The figures, and every disagreement."""
    verdicts: Counter[str] = Counter()
    foretold: Counter[str] = Counter()
    for name, one in found.items():
        verdicts += one.verdicts
        foretold += one.foretold
        yield from (f"{name}: {text}" for text in (*one.differing, *one.refused))
        if one.unasked:
            yield f"{name}: {one.unasked} pairs not asked, for want of time"
    for verdict in sorted(verdicts):
        yield f"{verdict}: {foretold[verdict]} of {verdicts[verdict]}"
    yield f"not connected: {sum(one.apart for one in found.values())}"
    idle = sum(not one.pairs and not one.refused for one in found.values())
    yield f"{sum(bool(one.refused) for one in found.values())} models refused, {idle} without pairs"
    with_pairs = sum(one.pairs > 0 for one in found.values())
    agreeing = sum(one.agreeing for one in found.values())
    pairs = sum(one.pairs for one in found.values())
    yield f"{agreeing} of {pairs} pairs agree, in {with_pairs} of {len(found)} models"


def main() -> int:
    """Ask, print, and say by the exit code whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="for each model")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", nargs="*", default=[], help="models whose name holds these")
    parser.add_argument("--no-control-flow-v2", action="store_true")
    arguments = parser.parse_args()
    begun, found = time.monotonic(), {}
    for name, one, took in answers(arguments):
        found[name] = one
        print(f"{took:6.1f} s  {one.pairs:5}  {name}", file=sys.stderr, flush=True)
    print(*report(found), f"{time.monotonic() - begun:.0f} s", sep="\n")
    return int(any(one.differing for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
