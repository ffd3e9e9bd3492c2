"""Fixtures that all tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest

from graphpatch import Model, load
from graphpatch.runtime.verify import process
from tests import forked, graphs, inside
from tests.draws import mark_rows_between
from tests.order import longest_first
from tests.pinned import PINNED
from tests.refusals import sound_files

CHECKOUT = Path(__file__).parent.parent
# Tests must not depend on the processor. Those about oneDNN turn it on in a process of their own.
os.environ.update(PINNED)
# A busy machine draws slowly, and runs what it drew slowly.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")
# What a shell starts in the background ignores interrupts, which some tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
COMMAND = (sys.executable, "-m", "graphpatch")
Run = Callable[..., Any]  # the fixture `run_cli`
RulesFile = Callable[..., Path]
READ_AT_THE_START = ("PYTHON", "LC_", "LANG")


@dataclass(frozen=True)
class Ran:
    """What a command left behind: exit code, standard output (`raw`: its bytes) and error."""

    code: int
    raw: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        return self.raw.decode(errors="backslashreplace")

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.raw)


def pytest_configure(config: pytest.Config) -> None:
    """Keep our order of files; pytest-xdist would put those of the most tests first."""
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)
    mark_rows_between(items)


@pytest.fixture(scope="session")
def models_folder() -> Path:
    """The folder of real models; the test is skipped where there is none."""
    named = os.environ.get("GRAPHPATCH_MODELS")
    folder = Path(named) if named else CHECKOUT.parent / "shared" / "models"
    if not (folder / "MANIFEST.tsv").is_file():
        pytest.skip(f"no real models in {folder}; GRAPHPATCH_MODELS names their folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _soon_started() -> Iterator[None]:
    """`verify` runs models in processes that have TensorFlow already: it takes 4 s to import."""

    def command() -> list[str]:
        return [*forked.python("tensorflow"), "-c", process.WORKER_PROGRAM]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "command", command)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler here, and two workers in processes that are started anew when they die.

    Dask sets OMP_NUM_THREADS here, and with it no process could be forked (tests/forked).
    """
    distributed = pytest.importorskip("distributed")
    with (
        mock.patch.dict(os.environ),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., Ran]:
    """Run a command: `run_cli("ops", path)`.

    It runs in this process where `inside.can_run` says so; else in a fork of one that has imported
    the command. `command=COMMAND` starts Python.
    """

    def run(
        *args: object,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        timeout: float = 120,
    ) -> Ran:
        anew = any(name.startswith(READ_AT_THE_START) for name in env or {})
        words = list(map(str, args))
        if not command and not anew and inside.can_run(words, cwd):
            code, raw, err = inside.run(words, stdin, cwd, env or {})
            return Ran(code, raw, err.decode(errors="backslashreplace"))
        command = command or (COMMAND if anew else forked.running(args))
        done = subprocess.run(
            [*command, *words],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            # The checkout, where graphpatch is not installed; and help as wide as a terminal.
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "100", **(env or {})},
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr.decode(errors="backslashreplace"))

    return run


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A small graph on disk, with a function: `graphs.sample()`."""
    path = tmp_path / "model.pb"
    path.write_bytes(graphs.sample().SerializeToString(deterministic=True))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sound models, a large one and a SavedModel among them, and rules."""
    return sound_files(tmp_path)


@pytest.fixture
def model(model_file: Path) -> Model:
    """The small graph, as it is read from its file."""
    return load(model_file)


@pytest.fixture
def rules_file(tmp_path: Path) -> Callable[..., Path]:
    """Write rules to a file: `rules_file({"match": ..., "patch": ...}, ...)`."""

    def write(*rules: Mapping[str, Any], name: str = "rules.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"version": 1, "rules": rules}))
        return path

    return write
