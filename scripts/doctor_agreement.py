"""Print how often `graphpatch doctor` foretells what TensorFlow does, over a folder of models.

Default: the real models. A rate says something of models that nobody looked at while doctor was
made: `scripts/models/build_random.py` builds such ones, and --folder takes any.

Every pair of a placeholder and an output of each model (of its first parameters, where it has no
placeholder) is asked of both. They agree where doctor says that the gradient flows and
tf.gradients gives a tensor; that it is None, and it gives None; that it raises, and it raises that
error, of that op. Each model is asked for --seconds at most: pairs left out are counted. Prints
every disagreement; exits 1 where there is one.

With --fix: what `doctor --fix` fixes is written, and TensorFlow asked about those pairs; of models
without many weights some are run, too. Exits 1 where one of them gives no tensor.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import local
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.models import catalogue  # noqa: E402
from tests.models.doctor_oracle import AfterFix, Agreement, after_fix, compare  # noqa: E402
from tests.models.forward import Worker  # noqa: E402

GRACE = 120.0  # seconds for import and for the pair in hand, beyond which a process is ended
held = local()


def asked(ask: Callable[..., Any], name: str, *more: object, timeout: float) -> Any:
    """Return what is found on one model, by the process of this thread; or why nothing is."""
    if not hasattr(held, "worker"):
        held.worker = Worker()
    try:
        return held.worker(ask, name, *more, timeout=timeout)
    except TimeoutError:
        return "takes too long"
    except BrokenProcessPool:
        return "TensorFlow aborts"


def answers(arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield what is found on each model, largest files first."""
    models = catalogue.models()
    names = [name for name in models if all(word in name for word in arguments.only)]
    names.sort(key=lambda name: -catalogue.size(models[name]))
    limits = (not arguments.no_control_flow_v2, arguments.seconds)
    ask, more = (after_fix, ()) if arguments.fix else (compare, limits)
    timeout = arguments.seconds + GRACE
    with ThreadPoolExecutor(arguments.jobs) as pool:
        todo = [(name, pool.submit(asked, ask, name, *more, timeout=timeout)) for name in names]
        for name, one in todo:
            yield name, one.result()
            print(f"{one.result()!s:.100}  {name}", file=sys.stderr, flush=True)


def fixed_pairs(found: Mapping[str, AfterFix]) -> Iterator[str]:
    """Yield the figures of --fix, and what does not flow after it, or only as zeros."""
    for name, one in found.items():
        yield from (f"{name}: {text}" for text in (*one.failing, *one.idle, *one.zero))
    models, some = sum(bool(one.rules) for one in found.values()), list(found.values())
    pairs, failing = sum(one.pairs for one in some), sum(len(one.failing) for one in some)
    ran, zero = sum(one.ran for one in some), sum(len(one.zero) for one in some)
    yield f"{pairs - failing} of {pairs} pairs that rules fix flow, in {models} models"
    yield f"{ran - zero} of {ran} of them that were run are not zero"


def report(found: Mapping[str, Agreement]) -> Iterator[str]:
    """Yield the figures, and every disagreement."""
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
    sets: dict[str, list[Agreement]] = {}
    for name, one in found.items():
        sets.setdefault(str(Path(name).parent), []).append(one)
    if len(sets) > 1:
        yield from (f"{name}: {rate(some)}" for name, some in sorted(sets.items()))
    yield rate(found.values())


def rate(some: Collection[Agreement]) -> str:
    """How many of the pairs of some models agree."""
    with_pairs = sum(one.pairs > 0 for one in some)
    agreeing, pairs = sum(one.agreeing for one in some), sum(one.pairs for one in some)
    return f"{agreeing} of {pairs} pairs agree, in {with_pairs} of {len(some)} models"


def main() -> int:
    """Ask, print, and say by the exit code whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of models; each folder in it is a set")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each model")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", nargs="*", default=[], help="models whose name holds these")
    parser.add_argument("--no-control-flow-v2", action="store_true")
    parser.add_argument("--fix", action="store_true", help="ask what flows after doctor --fix")
    arguments = parser.parse_args()
    if arguments.folder:
        os.environ["GRAPHPATCH_MODELS"] = str(arguments.folder)  # of the processes that ask, too
    begun, found = time.monotonic(), {}
    for name, one in answers(arguments):
        reasons = [one] if isinstance(one, str) else []
        found[name] = one if not reasons else blank(arguments.fix, reasons)
    print(*(fixed_pairs if arguments.fix else report)(found), sep="\n")
    print(f"{time.monotonic() - begun:.0f} s")
    return int(any(one.failing if arguments.fix else one.differing for one in found.values()))


def blank(fix: bool, reasons: list[str]) -> Any:
    """Return what stands for a model that could not be asked."""
    return AfterFix(idle=reasons) if fix else Agreement(refused=reasons)


if __name__ == "__main__":
    sys.exit(main())
