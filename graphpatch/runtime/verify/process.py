"""A process of its own in which TensorFlow runs one model, and the messages that it is sent.

A message is the name of a method and its arguments: of `Worker`, or else of its model, a
`session.SessionModel` or `LoadedModel`.

The original and the patched model never share one: TensorFlow keeps a table of functions for each
process, and what it adds to that while it differentiates a loop of one would be met by the other. A
TensorFlow that aborts ends that process alone.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphpatch.control_flow.contexts import has_tensor_arrays
from graphpatch.errors import GraphpatchError
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import CASES, ENTERS, IFS, LOOPS
from graphpatch.names import OpKey
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import require_tensorflow
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.verify.session import LoadedModel, SessionModel, running_model

# Kernels that compute the same bits fused or not and wherever a tensor lies in memory (those of
# oneDNN for AVX-512 and AMX do not), no chatter, and the same device everywhere.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
}
# Without the current folder, which `python -c` puts first: a stranger's numpy.py may lie in it.
WORKER_PROGRAM = (
    "import sys; sys.path = [path for path in sys.path if path]; "
    "from graphpatch.runtime.verify.process import answer_messages; answer_messages()"
)
# Loops and branches that TensorFlow rewrites as it differentiates them.
REWRITTEN = ENTERS | LOOPS | IFS | CASES
FATAL = re.compile(r"\bF\d{4} |\bF .*\.(cc|h):\d+\]|terminate called")
LAST_WORDS = 4096  # bytes of what a process that ended said last
WITHOUT_RUN = "; run=False (verify --no-run) looks at the graphs alone"


def may_be_rewritten(graph: ModelGraph) -> bool:
    """Return whether TensorFlow may rewrite a graph, or calls in it, as it differentiates it."""
    types = (body.by_type.keys() for body in graph.bodies)
    return graph.around.is_object_based or not all(map(REWRITTEN.isdisjoint, types))


def command() -> list[str]:
    """Return the command line of a process that runs a model."""
    return [sys.executable, "-c", WORKER_PROGRAM]


class CannotRunError(GraphpatchError):
    """A model cannot be run: its process ended, or TensorFlow does not open its file."""

    def __init__(self, process: TensorFlowProcess, why: str) -> None:
        super().__init__(f"{process.name}: {why}")
        self.process = process


@dataclass(eq=False)
class TensorFlowProcess:
    """A process that runs one model; it is started when it is first asked.

    `setup` is asked again of a process that takes the place of one that died. `is_rewritten`:
    TensorFlow may rewrite the graph as it differentiates it.
    """

    name: str
    is_rewritten: bool = True
    setup: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    _popen: subprocess.Popen[bytes] | None = None
    _stderr: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _differentiated: bool = False
    _first_errors: set[str] = field(default_factory=set)

    def keep(self, method: str, *arguments: Any) -> Any:
        """Ask, and ask it again of each process that takes the place of this one."""
        self.setup.pop(method, None)
        answer = self.ask(method, *arguments)
        self.setup[method] = arguments
        return answer

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what the model's process answers.

        Raises CannotRunError where it ends instead; GraphpatchError as the process does;
        RuntimeError, which is a fault of ours, for any other exception.
        """
        if self._popen is None:
            self._stderr.seek(0)
            self._stderr.truncate()
            paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            self._popen = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**ENVIRONMENT, **os.environ, "PYTHONPATH": paths},
            )
            for message, values in self.setup.items():
                self.ask(message, *values)
        messages, answers = self._popen.stdin, self._popen.stdout
        assert messages is not None
        assert answers is not None
        try:
            pickle.dump((method, arguments), messages, protocol=5)
            messages.flush()
            kind, answer = pickle.load(answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            why = self._last_words(self._popen.wait())
            self.close()
            raise CannotRunError(self, why) from None
        except BaseException:
            self.close()
            raise
        if kind == "refused":
            raise answer
        if kind == "failed":
            raise RuntimeError(f"in the process that runs {self.name}:\n{answer}")
        return answer

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """Return the gradient of a target, weighted by dy, with respect to each source.

        With it come the ops that were asked for theirs. TensorFlow rewrites TF2 loops and branches
        as it differentiates them: what it cannot give a second time, a new process is asked for.
        An error that a process also raised of a graph that was not rewritten yet is final.
        """
        try:
            answers, asked = self.ask("gradients", sources, target, dy)
        except CannotRunError as error:
            return dict.fromkeys(sources, GradientAnswer("error", says=str(error))), set()
        errors = {answer.says for answer in answers.values() if answer.kind == "error"}
        is_second, self._differentiated = self._differentiated, self.is_rewritten
        if is_second and not errors <= self._first_errors:
            self.close()
            return self.gradients(sources, target, dy)
        if not is_second:
            self._first_errors |= errors
        return answers, asked

    def _last_words(self, status: int) -> str:
        """Return how the process ended, and the line in which TensorFlow says why."""
        how = f"with exit status {status}"
        if status < 0:
            known = -status in {number.value for number in signal.Signals}
            how = f"by {signal.Signals(-status).name if known else f'signal {-status}'}"
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - LAST_WORDS))
        text = self._stderr.read().decode(errors="backslashreplace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        words = [line for line in lines if FATAL.search(line)][:1] or lines[-1:]
        return ": ".join([f"TensorFlow ended the process that ran it, {how}", *words])

    def close(self) -> None:
        """End the process; a new one takes its place at the next question."""
        self._differentiated = False
        if self._popen is not None:
            self._popen.kill()
            self._popen.communicate()
            self._popen = None


@dataclass(frozen=True)
class SideBySide(AbstractContextManager["SideBySide"]):
    """Processes that run one model each, all on the same values: the first one's."""

    processes: Sequence[TensorFlowProcess]

    def __exit__(self, *error: object) -> None:
        """End them."""
        for process in self.processes:
            process.close()

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """Return what each answers; one works while another does."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            return list(pool.map(lambda each: each.keep(method, *arguments), self.processes))

    def begin(self, imports: Sequence[str], graph: ModelGraph) -> dict[str, Any]:
        """Import TensorFlow, and what the user names; return the settings of the first.

        A Session differentiates TensorArrays of v1 loops without control flow v2 alone.
        """
        is_v1 = not graph.around.is_object_based and has_tensor_arrays(graph.main)
        settings: dict[str, Any] = self.all("begin", imports, not is_v1)[0]
        return settings

    def choose(self, tensors: Sequence[str], fed: Mapping[str, Any]) -> dict[str, Any]:
        """Feed what is fed, and seeded values with which the first runs best; return all of it."""
        feeds, variables = self.processes[0].ask("choose", tensors, fed)
        self.all("hold", variables)
        self.all("feed", feeds)
        return dict(feeds)


def answer_messages() -> None:
    """Be such a process: answer messages by standard input until there are no more."""
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what ops print must not come between answers
    worker = Worker()
    while True:
        try:
            method, arguments = pickle.load(messages)
        except EOFError:
            return
        try:
            target = worker if hasattr(worker, method) else worker.model
            answer = "done", getattr(target, method)(*arguments)
        except GraphpatchError as error:
            error.__cause__ = error.__context__ = None  # TensorFlow's: who reads it imports that
            answer = "refused", error
        except Exception:
            answer = "failed", traceback.format_exc()
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


class Worker:
    """What a process answers: about TensorFlow, and one model once it was opened."""

    model: SessionModel | LoadedModel

    def begin(self, imports: Sequence[str], control_flow_v2: bool) -> dict[str, Any]:
        """Import TensorFlow, and what the user names; return the settings under which models run.

        `control_flow_v2=False` calls `disable_control_flow_v2()`, as programs for v1 graphs do.
        """
        require_tensorflow("models are run by", hint=WITHOUT_RUN)
        if not control_flow_v2:
            tf.compat.v1.disable_control_flow_v2()
        with tf.Graph().as_default(), tf.compat.v1.Session():
            devices = [device.device_type for device in tf.config.list_physical_devices()]
        for name in imports:
            try:
                if name.endswith(".py"):
                    runpy.run_path(name, run_name=Path(name).stem)
                else:
                    importlib.import_module(name)
            except Exception as error:
                says = f"{type(error).__name__}: {error}"
                raise GraphpatchError(f"cannot import {name}: {says}") from error
        flags = os.environ.get("TF_XLA_FLAGS", "")
        return {
            "tensorflow": str(tf.__version__),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in {"1", "true"},
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
            "xla_flags": flags,
            "auto_clustering": bool(tf.config.optimizer.get_jit()) or "auto_jit=" in flags,
            "control_flow_v2": bool(tf.compat.v1.control_flow_v2_enabled()),
            "deterministic_ops": os.environ.get("TF_DETERMINISTIC_OPS", "0"),
            "devices": devices,
            "cores": os.cpu_count() or 1,
        }

    def open(self, file: str, path: str, index: int) -> set[str]:
        """Read the model from a file; return the keys under which gradients are registered then.

        `path` is what the user calls the model.
        """
        from tensorflow.python.framework import ops

        self.model = running_model(file, path, index)
        return set(ops.gradient_registry.list())

    def choose(self, tensors: Sequence[str], fed: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the feeds, and the values of variables, with which most of these tensors run."""
        self.model.choose(tensors, fed)
        return self.model.feeds, self.model.variables

    def feed(self, feeds: Mapping[str, Any]) -> None:
        """Feed these values from now on."""
        self.model.feeds = feeds

    def sizes(
        self, names: Sequence[str], target: str, dy: Any, whole: Sequence[str]
    ) -> dict[str, tuple[float | None, Any, str]]:
        """Return the largest |gradient| of the target with respect to each tensor, NaN above all.

        With it come the gradient itself of the tensors in `whole`, and what TensorFlow raises; the
        size of no gradient is None.
        """
        sizes = {}
        for name, answer in self.model.gradients(names, target, dy)[0].items():
            size = None
            if answer.kind == "tensor":
                size = float(np.max(np.abs(answer.value), initial=0.0))
            says = answer.says if answer.kind == "error" else ""
            sizes[name] = size, answer.value if name in whole else None, says
        return sizes
