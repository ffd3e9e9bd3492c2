"""No room of the package is heavier than docs/ARCHITECTURE.md allows."""

from __future__ import annotations

import house
import mutants
import pytest

PAGE = house.PAGE.read_text(encoding="utf-8")
BUDGETS = house.budgets(PAGE)


@pytest.fixture(scope="module")
def weights() -> dict[str, house.Weight]:
    return house.rooms(house.texts_now())


def test_every_room_has_a_budget() -> None:
    assert list(BUDGETS) == [*house.GOALS, house.VAGUE]


def test_no_room_is_above_its_budget(weights: dict[str, house.Weight]) -> None:
    above = [
        f"{room} has {weight.lines} lines, {weight.lines - BUDGETS[room]} more than its budget"
        for room, weight in weights.items()
        if weight.lines > BUDGETS[room]
    ]
    assert not above, (
        f"{'; '.join(above)}: leave something out there, or raise the budget in the last table of "
        f"docs/ARCHITECTURE.md and say in the commit what the lines are for"
    )


def test_no_more_names_say_nothing(weights: dict[str, house.Weight]) -> None:
    assert house.Weight.sum_of(weights.values()).vague <= BUDGETS[house.VAGUE]


def test_what_is_counted() -> None:
    text = '"""Say.\n\nMore.\n"""\n\nimport os\n\n# Why.\n\ndef f(one):\n    """Do."""\n'
    text += "    found = 1\n"
    weight = house.weight_of("graphpatch/graph/node.py", text)
    assert weight == house.Weight(lines=12, code=2, tokens=9, modules=1, vague=2)
    assert house.weight_of("graphpatch/page/files/page.css", "a {\n}\n").lines == 2


def test_budgets_shrink_with_their_rooms_down_to_the_goal() -> None:
    page = "| fleet | 1,000 | 1,800 |\n"
    for lines, budget in ((1_200, 1_300), (700, 900), (2_000, 1_800)):
        weights = {"fleet": house.Weight(lines)}
        assert house.recorded(page, weights) == f"| fleet | {lines:,} | {budget:,} |\n"
    large = {"page": house.Weight(9_991)}
    assert house.recorded("| page | 9 | 12,000 |\n", large) == "| page | 9,991 | 10,190 |\n"


def test_changed_lines_are_of_modules_that_exist() -> None:
    paths = [*mutants.TESTS, *mutants.TESTS.values()]
    assert [path for path in paths if not (house.ROOT / path).exists()] == []
