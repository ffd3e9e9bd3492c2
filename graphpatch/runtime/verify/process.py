"""A process of its own in which TensorFlow runs one model, and the messages that it is sent.

A message is the name of a method and its arguments: `begin`, `open` and `sizes` of `worker.Worker`,
and then those that `worker.SessionModel` and `worker.LoadedModel` both have.

The original and the patched model never share one: TensorFlow keeps a table of functions for each
process, and what it adds to that while it differentiates a loop of one would be met by the other. A
TensorFlow that aborts ends that process alone.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from graphpatch.control_flow.contexts import has_tensor_arrays
from graphpatch.errors import GraphpatchError
from graphpatch.graph.graph import ModelGraph
from graphpatch.names import OpKey

if TYPE_CHECKING:
    from graphpatch.runtime.tf_gradients import GradientAnswer  # imports numpy

# Kernels that compute the same bits fused or not and wherever a tensor lies in memory (those of
# oneDNN for AVX-512 and AMX do not), no chatter, and the same device everywhere.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
}
WORKER_PROGRAM = "from graphpatch.runtime.verify.worker import main; main()"
FATAL = re.compile(r"\bF\d{4} |\bF .*\.(cc|h):\d+\]|terminate called")
SAID = 4096  # bytes of what a process that ended said last


def needs_control_flow_v1(graph: ModelGraph) -> bool:
    """Return whether there are TensorArrays of v1 loops, and a Session differentiates them."""
    return not graph.around.is_object_based and has_tensor_arrays(graph.main)


def command() -> list[str]:
    """Return the command line of a process that runs a model."""
    return [sys.executable, "-c", WORKER_PROGRAM]


class ProcessDiedError(GraphpatchError):
    """The process of a model ended without an answer: `why` says how."""

    def __init__(self, process: TensorFlowProcess, why: str) -> None:
        super().__init__(f"{process.name}: {why}")
        self.process = process
        self.why = why


@dataclass(eq=False)
class TensorFlowProcess:
    """A process that runs one model; it is started when it is first asked.

    `setup` is asked again of a process that takes the place of one that died.
    """

    name: str
    setup: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    _popen: subprocess.Popen[bytes] | None = None
    _stderr: IO[bytes] | None = None
    _differentiated: bool = False

    def start(self) -> None:
        """Start the process; TensorFlow is imported while nobody waits."""
        if self._popen is not None:
            return
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._popen = subprocess.Popen(
            command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**ENVIRONMENT, **os.environ, "PYTHONPATH": paths},
        )

    def keep(self, method: str, *arguments: Any) -> Any:
        """Ask, and ask it again of each process that takes the place of this one."""
        self.setup.pop(method, None)
        answer = self.ask(method, *arguments)
        self.setup[method] = arguments
        return answer

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what the model's process answers.

        Raises ProcessDiedError where it ends instead; GraphpatchError as the process does;
        RuntimeError, which is a fault of ours, for any other exception.
        """
        if self._popen is None:
            self.start()
            for message, values in self.setup.items():
                self._answer(message, values)
        return self._answer(method, arguments)

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """Return the gradient of a target, weighted by dy, with respect to each source.

        With it come the ops that were asked for theirs. TensorFlow rewrites TF2 loops and branches
        as it differentiates them: what it cannot give a second time, a new process is asked for.
        """
        try:
            answers, asked = self.ask("gradients", sources, target, dy)
        except ProcessDiedError as error:
            from graphpatch.runtime.tf_gradients import GradientAnswer

            return dict.fromkeys(sources, GradientAnswer("error", says=error.why)), set()
        is_second, self._differentiated = self._differentiated, True
        if is_second and any(answer.kind == "error" for answer in answers.values()):
            self.close()
            return self.gradients(sources, target, dy)
        return answers, asked

    def _answer(self, method: str, arguments: Sequence[Any]) -> Any:
        assert self._popen is not None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            pickle.dump((method, arguments), self._popen.stdin, protocol=5)
            self._popen.stdin.flush()
            kind, answer = pickle.load(self._popen.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            why = self._last_words(self._popen.wait())
            self.close()
            raise ProcessDiedError(self, why) from None
        except BaseException:
            self.close()
            raise
        if kind == "refused":
            raise answer
        if kind == "failed":
            raise RuntimeError(f"in the process that runs {self.name}:\n{answer}")
        return answer

    def _last_words(self, status: int) -> str:
        """Return how the process ended, and the line in which TensorFlow says why."""
        assert self._stderr is not None
        if status >= 0:
            how = f"with exit status {status}"
        else:
            known = -status in {number.value for number in signal.Signals}
            how = f"by {signal.Signals(-status).name if known else f'signal {-status}'}"
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - SAID))
        lines = self._stderr.read().decode(errors="backslashreplace").splitlines()
        fatal = [line for line in lines if FATAL.search(line)]
        words = [line.strip() for line in fatal or lines if line.strip()]
        says = f": {words[0] if fatal else words[-1]}" if words else ""
        return f"TensorFlow ended the process that ran it, {how}{says}"

    def close(self) -> None:
        """End the process; a new one takes its place at the next question."""
        self._differentiated = False
        if self._popen is not None:
            self._popen.kill()
            self._popen.communicate()
            self._popen = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
