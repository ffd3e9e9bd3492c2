"""Which branches of a model the values reached that it was fed, and which none did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BranchesTaken = tuple[bool, bool]  # below zero, or false; above zero, or true


@dataclass
class ReachedBranches:
    """The ops that take branches, and which of them they took.

    `fed` counts what was fed to the model's inputs, `steered` what was fed right at these ops too.
    `hidden` are those that nobody can look at: how many, by where they are.
    """

    hidden: Mapping[str, int] = field(default_factory=dict)
    fed: dict[str, BranchesTaken] = field(default_factory=dict)
    steered: dict[str, BranchesTaken] = field(default_factory=dict)

    def add(self, taken: Mapping[str, BranchesTaken]) -> None:
        """Note the branches that values of the inputs took."""
        _join(self.fed, taken)
        _join(self.steered, taken)

    def steer(self, taken: Mapping[str, BranchesTaken]) -> None:
        """Note the branches that values took that were fed directly to the op."""
        _join(self.steered, taken)

    def missing(self) -> list[str]:
        """The ops that have a branch which no value took."""
        return [name for name, taken in self.steered.items() if not all(taken)]

    def outputs(self, names: Iterable[str]) -> list[str]:
        """What these ops give."""
        return [f"{name}:0" for name in names]

    def says(self) -> list[str]:
        """What no value reached, in words."""
        found = [f"{name} {_says(taken)}" for name, taken in self.steered.items() if not all(taken)]
        places = {place: count for place, count in self.hidden.items() if count}
        return found + [f"{count} in {place} cannot be watched" for place, count in places.items()]

    def document(self) -> dict[str, Any]:
        """The branches as `verify --json` prints them."""
        some = list(self.fed.values())
        return {
            "watched": len(some),
            "reached_by_inputs": sum(map(all, some)),
            "reached": sum(map(all, self.steered.values())),
            "not_reached": {name: _says(self.steered[name]) for name in self.missing()},
            "not_watched": dict(self.hidden),
        }


def _says(taken: Sequence[bool]) -> str:
    below, above = taken
    words = [*([] if below else ["below 0, or false"]), *([] if above else ["above 0, or true"])]
    return f"never reads what is {'; nor '.join(words)}"


def _join(found: dict[str, BranchesTaken], taken: Mapping[str, BranchesTaken]) -> None:
    for name, (below, above) in taken.items():
        known = found.get(name, (False, False))
        found[name] = known[0] or below, known[1] or above
