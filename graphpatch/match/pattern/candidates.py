"""Which ops of a body one node of a pattern can be: by an index first, then by its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from graphpatch.graph.body import Body, Node
from graphpatch.match import glob
from graphpatch.match.condition import Condition, Test, everything
from graphpatch.match.glob import texts
from graphpatch.match.spec import Match


class Candidates(msgspec.Struct, eq=False, dict=True):
    """The ops of one body that have these types (None: any) and meet these conditions, by key."""

    body: Body
    types: frozenset[str] | None
    names: frozenset[str] | None
    means: glob.Means | None  # a quick test of names, which is one of the conditions too
    conditions: Mapping[str, Condition]
    known: dict[int, bool] = msgspec.field(default_factory=dict)

    @cached_property
    def tests(self) -> Mapping[str, Test]:
        """The conditions as tests for this body, made where the index leaves any op to test."""
        made = {key: make(self.body) for key, make in self.conditions.items() if key != "op"}
        return {key: test for key, test in made.items() if test is not everything}

    def passes(self, index: int) -> bool:
        """Whether an op is one of them. What the tests said is remembered."""
        if self.types is not None and self.body.heads.ops[index] not in self.types:
            return False
        if not self.tests:
            return True
        found = self.known.get(index)
        if found is None:
            found = self.known[index] = self._tested(index)
        return found

    def count(self) -> int:
        """How many they are at most, by the index alone."""
        return sum(1 for _ in self._indexed()) if self.names is not None else self._of_types()

    def indexed(self) -> list[int]:
        """Those that have the types and names, whatever else is asked; in the file's order."""
        types, ops = self.types, self.body.heads.ops
        found = [index for index in self._indexed() if types is None or ops[index] in types]
        if self.means is None:
            return found
        names = self.body.heads.names
        return [index for index in found if self.means(names[index])]

    def indices(self) -> list[int]:
        """All of them, in the file's order."""
        found = self.indexed()
        return [index for index in found if self._tested(index)] if self.tests else found

    def failing(self, index: int) -> str:
        """The key of the first condition that an op does not meet; nothing where it meets all."""
        if self.types is not None and self.body.heads.ops[index] not in self.types:
            return "op"
        node = Node(self.body, index)
        return next((key for key, test in self.tests.items() if not test(node)), "")

    def _tested(self, index: int) -> bool:
        node = Node(self.body, index)
        return all(test(node) for test in self.tests.values())

    def _of_types(self) -> int:
        by_type = self.body.by_type
        if self.types is None:
            return len(self.body)
        return sum(len(by_type[one]) for one in self.types)

    def _indexed(self) -> Iterable[int]:
        by_name, by_type = self.body.by_name, self.body.by_type
        if self.names is not None:
            return sorted(by_name[name] for name in self.names if name in by_name)
        if self.types is not None:
            return sorted(index for one in self.types for index in by_type[one])
        return range(len(self.body))


def candidates(body: Body, match: Match, conditions: Mapping[str, Condition]) -> Candidates:
    """The ops of a body that a match means; `conditions` are its own, by key.

    Op types and plain names are looked up, the other conditions are tried on what is left.
    """
    types = None if match.op is None else of_types(body, texts(match.op))
    names, means = _literal_or_glob(match.name)
    return Candidates(body, types, names, means, conditions)


def _literal_or_glob(
    wanted: str | Sequence[str] | None,
) -> tuple[frozenset[str] | None, glob.Means | None]:
    """The names that a match writes out; or, where there are globs among them, what they mean."""
    if wanted is None:
        return None, None
    if any(map(glob.is_glob, texts(wanted))):
        return None, glob.one_of(texts(wanted))
    return frozenset(texts(wanted)), None


def of_types(body: Body, wanted: Iterable[str]) -> frozenset[str]:
    """The op types of a body that are meant by these, which may be globs."""
    return frozenset(filter(glob.one_of(wanted), body.by_type))
