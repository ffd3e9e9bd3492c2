"""The house: imports that go one way, one home for each idea, TensorFlow in one room."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import graphpatch
from graphpatch.graph import op_types
from graphpatch.later import MODULES

ROOT = Path(graphpatch.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A room may import from itself and from those before it.
ROOMS = tuple(
    (
        "later mapped decoding shown errors names tokens protos opdefs "
        "graph control_flow formats differentiation match gradients patches recipes recipe_notes "
        "rules application selection analysis runtime fleet page keras "
        "tf_keras cli"
    ).split()
)
# Not rooms: the package itself exports what is in them, `python -m` starts it.
DOORS = {"__init__", "__main__"}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports, in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, "a relative import"
    return [f"{node.module}.{alias.name}" for alias in node.names]


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Call, ast.FunctionDef, ast.ClassDef)


@functools.cache
def within(path: Path) -> list[tuple[ast.AST, bool, bool]]:
    """Return the imports, calls and definitions of a file: each, and whether it lies in a function
    or under TYPE_CHECKING."""
    nodes = []
    stack: list[tuple[ast.AST, bool, bool]] = [(tree_of(path), False, False)]
    while stack:
        node, later, checking = stack.pop()
        if isinstance(node, LOOKED_AT):
            nodes.append((node, later, checking))
        later = later or isinstance(node, ast.FunctionDef)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            checking = checking or node.test.id == "TYPE_CHECKING"
        stack += [(child, later, checking) for child in ast.iter_child_nodes(node)]
    return nodes


def called(node: ast.AST) -> str:
    """Return the last name of what is called; nothing where it is no call of a name."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


CHECKS: list[Callable[[Path], None]] = []


def of_each_file(check: Callable[[Path], None]) -> Callable[[Path], None]:
    """What must hold of each file. One test for all files: one for each takes long to collect."""
    CHECKS.append(check)
    return check


def test_every_room_is_there() -> None:
    found = {room_of(path) for path in FILES}
    assert found - DOORS == set(ROOMS)


def test_the_architecture_has_every_room_in_this_order() -> None:
    page = (Path(__file__).parent.parent / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`graphpatch/[^|]*) \|", page.partition("| room | job |")[2], re.M)
    told = re.findall(r"`(?:graphpatch/)?(\w+)(?:\.py|/)`", " ".join(rows))
    assert tuple(told) == ROOMS


@of_each_file
def every_file_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree)
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    if len(tree.body) > 1 and path.name != "__init__.py":
        assert future[0].module == "__future__"


@of_each_file
def imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room in DOORS:
        return
    for node, *_ in within(path):
        for name in imported(node):
            if name.startswith("graphpatch."):
                other = name.split(".")[1]
                assert ROOMS.index(other) <= ROOMS.index(room), ast.unparse(node)


def test_what_rooms_call_of_later_rooms_is_there() -> None:
    names = {
        node.args[0].value
        for path in FILES
        for node, *_ in within(path)
        if isinstance(node, ast.Call)
        and called(node) == "FromLater"
        and isinstance(node.args[0], ast.Constant)
        and room_of(path) != "later"
    }
    assert names == set(MODULES)
    for name, module in MODULES.items():
        assert callable(getattr(importlib.import_module(module), name))


def test_no_file_imports_itself_in_a_circle() -> None:
    modules = {
        ".".join(["graphpatch", *path.relative_to(ROOT).with_suffix("").parts]): path
        for path in FILES
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    del modules["graphpatch"]  # which hands on what it imports when asked, and has the version
    reads = {name: set(at_import(path, modules)) - {name} for name, path in modules.items()}
    graphlib.TopologicalSorter(reads).prepare()  # raises CycleError, with the circle


def at_import(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports, be it for types alone; none in functions."""
    for node, later, _ in within(path):
        for name in [] if later else imported(node):
            yield from {name, name.rpartition(".")[0]} & modules.keys()


@of_each_file
def tensorflow_is_imported_in_runtime_and_there_in_functions(path: Path) -> None:
    for node, later, checking in within(path):
        for name in imported(node):
            if name.partition(".")[0] in {"tensorflow", "keras", "tf_keras"}:
                assert room_of(path) == "runtime", ast.unparse(node)
                assert later or checking, ast.unparse(node)
            if name == "tensorflow" and path.name not in {"__init__.py", "graph_run.py"}:
                pytest.fail(f"from graphpatch.runtime import tf; found {ast.unparse(node)}")


# Calls of TensorFlow that one module makes for all others.
HOMES = {
    "import_graph_def": "runtime/imported.py",
    "import_meta_graph": "runtime/imported.py",
    "tf.gradients": "runtime/tf_gradients.py",
    "tf.compat.v1.gradients": "runtime/tf_gradients.py",
}


@of_each_file
def models_are_imported_and_differentiated_in_one_module_each(path: Path) -> None:
    for node, *_ in within(path):
        for name, home in HOMES.items():
            if isinstance(node, ast.Call) and called(node) == name.rpartition(".")[2]:
                text = ast.unparse(node.func)
                assert not f".{text}".endswith(f".{name}") or path == ROOT / home, path


# What a body, a graph and its library hold; the modules of the editor alone write to it.
EDITOR = {f"graph/{name}.py" for name in ("editor", "template", "undo")}
COLUMN = re.compile(
    r"(?:body|main)\.(?:heads|ret|edited|placed|root|renamed|readers|returns|by_name|by_type"
    r"|file_ret)\b|\.(?:edited|placed)\b|graph\.main$|body\.write$"
    r"|(?:graph|library)\.(?:functions|added|cut|restored|signatures|gradients)\b"
)
CHANGES = {"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "add"}
CHANGES |= {"discard", "popitem", "sort", "reverse"}


def changes_of_bodies(tree: ast.AST) -> Iterator[str]:
    """The statements and calls that write to a column of a body, or to a part of a graph."""
    for node in ast.walk(tree):
        written: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written = [node.func.value] if node.func.attr in CHANGES else [node.func]
        elif isinstance(node, ast.Assign | ast.Delete):
            written = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            written = [node.target]
        parts = [part for target in written for part in getattr(target, "elts", [target])]
        is_call = isinstance(node, ast.Call) and node.func in parts
        for part in map(ast.unparse, parts):
            if part.endswith("body.write") if is_call else COLUMN.search(part):
                yield ast.unparse(node)


@of_each_file
def only_the_editor_changes_bodies(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name not in EDITOR | {"graph/node.py", "graph/graph.py"}:
        assert list(changes_of_bodies(tree_of(path))) == [], name


CHANGING = (
    "body.heads.inputs[0] = ()",
    "graph.main.heads.names += ['x']",
    "node.body.write(3, payload)",
    "del body.renamed[3]",
    "body.readers.setdefault('x', []).append((0, 0))",
    "graph.functions['f'] = body",
    "del node.body.library.signatures['f']",
    "graph.main = body",
)
READING = ("found = body.heads.names[0]", "renamed.pop('x')", "function.ret['y'] = 'x:y:0'")


def test_a_change_of_a_body_is_seen_and_what_reads_it_is_none() -> None:
    assert [text for text in READING if list(changes_of_bodies(ast.parse(text)))] == []
    assert [text for text in CHANGING if not list(changes_of_bodies(ast.parse(text)))] == []
    assert [name for name in EDITOR if not list(changes_of_bodies(tree_of(ROOT / name)))] == []


def test_a_graph_knows_nothing_of_its_container() -> None:
    for path in (ROOT / "graph").glob("*.py"):
        read = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
        assert path.stem == "graph" or not read & {"around", "undone"}, path


# The op types that many rooms ask for, and where they are spelled.
SHARED_OP_TYPES = "FED PIPELINES ALL_VARIABLES CALLS LOOPS IFS CASES".split()
HOMES_OF_OP_TYPES = {ROOT / "graph/op_types.py", ROOT / "control_flow"}
OP_TYPES_WITH_A_HOME = {op for name in SHARED_OP_TYPES for op in vars(op_types)[name]}
OP_TYPES_WITH_A_HOME |= op_types.BOUNDARIES | {op_types.TENSOR_ARRAY}


def op_types_with_a_home(text: str) -> set[str]:
    """Those that are written out: alone, as bytes, or in a text to split."""
    literals = re.findall(r"[\"'](\w+)[\"']|[\"']([\w ]+)[\"']\.split", text)
    words = {word for literal in literals for word in "".join(literal).split()}
    return words & OP_TYPES_WITH_A_HOME


@of_each_file
def op_types_are_spelled_in_one_place(path: Path) -> None:
    if HOMES_OF_OP_TYPES.isdisjoint((path, path.parent)):
        assert not op_types_with_a_home(path.read_text(encoding="utf-8")), path


def test_an_op_type_with_a_home_is_seen() -> None:
    seen = [
        "{'Enter': 1}",
        "op in ('Foo', 'RefSwitch')",
        "'Add Exit'.split()",
        "encoded(2, b'Case')",
    ]
    assert all(map(op_types_with_a_home, seen))


BANNED = ("util", "helper", "manager", "handler", "transform")


@of_each_file
def names_are_those_of_the_field(path: Path) -> None:
    names = [path.stem]
    names += [n.name for n, *_ in within(path) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert [name for name in names if any(word in name.lower() for word in BANNED)] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_file(check: Callable[[Path], None]) -> None:
    for path in FILES:
        check(path)
