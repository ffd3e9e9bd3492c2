"""A model in a process of its own, asked as if it were here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from graphpatch.names import OpKey
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import Values
from graphpatch.runtime.verify.formulas import FormulaCheck
from graphpatch.runtime.verify.process import ProcessDiedError, TensorFlowProcess

Answered = tuple[dict[str, GradientAnswer], set[OpKey]]


class RunningModel:
    """The original, or the patched model. Each question may raise ProcessDiedError.

    `GraphSide` and `SavedSide` answer; what they say of each question holds here.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = TensorFlowProcess(name)
        self._differentiated = False

    def names(self, given: Sequence[str]) -> list[str]:
        """The names of tensors as TensorFlow spells them. Raises ModelError for what is none."""
        return cast("list[str]", self.process.ask("names", given)) if given else []

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> list[str]:
        """What can be compared: outputs, `more`, and what is asked for."""
        return cast("list[str]", self.process.ask("tensors", more, targets))

    def there(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that there are, and that can be fetched."""
        return cast("list[str]", self.process.ask("there", names))

    def writing(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that come after an op that writes to a variable."""
        return cast("list[str]", self.process.ask("writing", names))

    def choose(self, tensors: Sequence[str], given: Values) -> tuple[Values, Values]:
        """What it is fed, and what its variables hold: the guess with which most of it runs."""
        return cast("tuple[Values, Values]", self.process.ask("choose", tensors, given))

    def values(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        self.process.keep("values", variables)

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.process.keep("feed", feeds)

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot."""
        found = self.process.ask("run", fetches, optimise)
        return cast("tuple[dict[str, Any], dict[str, str]]", found)

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answered:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked.

        TensorFlow rewrites TF2 loops and branches as it differentiates them. What it cannot give a
        second time it is asked for in a new process.
        """
        try:
            found = self._gradients(sources, target, dy)
        except ProcessDiedError as error:
            return dict.fromkeys(sources, GradientAnswer("error", says=error.why)), set()
        is_second, self._differentiated = self._differentiated, True
        if is_second and any(one.kind == "error" for one in found[0].values()):
            self.process.restart()
            self._differentiated = False
            return self.gradients(sources, target, dy)
        return found

    def _gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answered:
        return cast("Answered", self.process.ask("gradients", sources, target, dy))

    def probed(
        self, places: Sequence[OpKey], sources: Sequence[str], targets: Mapping[str, Any]
    ) -> set[OpKey]:
        """Those of these ops whose gradient functions run, asked in a new process."""
        self.process.restart()
        try:
            return cast("set[OpKey]", self.process.ask("probed", places, sources, targets))
        except ProcessDiedError:
            return set()

    def sources(self, patched: Sequence[str]) -> list[str]:
        """The tensors by which gradients are taken, where nobody names them.

        To each op that rules patched comes one of them, if that can be.
        """
        return cast("list[str]", self.process.ask("sources", patched))

    def targets(self, compared: Sequence[str], patched: Sequence[str]) -> list[str]:
        """Of these tensors those of which gradients are taken, where nobody names them.

        First come those that are computed from the ops that rules patched.
        """
        return cast("list[str]", self.process.ask("targets", compared, patched))

    def trained(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that an optimizer computes from its gradients."""
        return cast("list[str]", self.process.ask("trained", names))

    def formulas(self) -> list[FormulaCheck]:
        """Each formula that the graph carries, against numpy."""
        return cast("list[FormulaCheck]", self.process.ask("formulas"))

    def branches(self) -> dict[str, tuple[bool, bool]]:
        """For each op that takes branches: whether the values that it is fed take each of them."""
        try:
            return cast("dict[str, tuple[bool, bool]]", self.process.ask("branches"))
        except ProcessDiedError:
            return {}

    def unwatched(self) -> dict[str, int]:
        """How many ops that take branches stand where nobody can look, by where that is."""
        return cast("dict[str, int]", self.process.ask("unwatched"))

    def steered(self, names: Sequence[str], upwards: bool) -> Mapping[str, Any]:
        """What to feed right at these ops, so that they take the branches that they did not."""
        return cast("Mapping[str, Any]", self.process.ask("steered", names, upwards))

    def registered(self) -> set[str]:
        """The keys for which gradients are registered in its process."""
        return cast("set[str]", self.process.ask("registered"))
