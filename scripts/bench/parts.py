"""The parts of the benchmark: what each runs, and what it may take."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import GRAPHPATCH, Part, Runs, Target, Task, ratio

ROOT = Path(__file__).parent.parent.parent
HERE, MODELS = ROOT / "scripts" / "bench", ROOT / "scripts" / "models"
GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
KEY = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"registered": "Relu6"}}}
FIRST = {"name": "first", "match": {"op": "Relu"}, "patch": {"filter_gradient": "reverse"}}
FOUR = "Mul -> Add -> Relu -> Mul"


def rules_file(folder: Path, name: str, *rules: dict[str, Any]) -> str:
    """Write a rules file, and return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"version": 1, "rules": rules}))
    return str(path)


def built(folder: Path, name: str, script: str, *options: str) -> tuple[Path, list[str]]:
    """Return a model, and the command that builds it."""
    words = [str(MODELS / script), "OUT", *options]
    if script == "build_keras.py":
        words = [str(MODELS / script), *options, "OUT"]
    return folder / f"{name}.pb", words


def large_graph(folder: Path, nodes: int, *options: str) -> tuple[Path, list[str]]:
    """Return a graph of convolutions, or with `--chain` of Mul, Add and Relu in turn."""
    name = "-".join([*(option.strip("-") for option in options or ("large",)), str(nodes)])
    return built(folder, name, "build_large.py", *options, "--nodes", str(nodes))


def commands(options: Namespace) -> Part:
    """Every command beside `cp` and the TensorFlow script that does the same."""
    folder: Path = options.folder
    guided, key = rules_file(folder, "guided", GUIDED), rules_file(folder, "key", KEY)
    models = {
        "VGG16": built(folder, "vgg16", "build_keras.py", "VGG16"),
        "large": large_graph(folder, options.nodes),
        "chain": large_graph(folder, 100_000, "--chain"),
        "shapes": large_graph(folder, 100_000, "--chain", "--shapes"),
        "1M chain": large_graph(folder, 1_000_000, "--chain"),
        "tower": large_graph(folder, 100_000),
    }
    tasks: dict[str, Task] = {}
    outputs = {name: folder / f"{name.replace(' ', '-')}.patched.pb" for name in models}

    def task(name: str, title: str, words: list[str], **facts: Any) -> None:
        tasks[f"{name}: {title}"] = Task(words, builds=(models[name],), **facts)

    def apply(name: str, title: str, *words: str) -> None:
        out = outputs[name]
        words = (*words, str(models[name][0]), "-o", str(out))
        task(name, title, [GRAPHPATCH, "apply", *words], removes=(out,))

    for name, (model, _) in models.items():
        if name not in ("tower", "1M chain"):
            task(name, "cp", ["cp", str(model), str(folder / "copy.pb")])
            script = [sys.executable, str(HERE / "tensorflow_script.py"), str(model)]
            task(name, "TensorFlow", [*script, str(folder / "copy.pb")], is_slow=name == "shapes")
        if name in ("VGG16", "large", "chain"):
            task(name, "ops", [GRAPHPATCH, "ops", str(model)])
            apply(name, "apply, attrs", "--emit", "attr", guided)
        if name != "tower":
            apply(name, "apply, functions", guided)
        if name not in ("large", "shapes", "1M chain"):
            page = folder / "page.html"
            view = [GRAPHPATCH, "view", str(model), "-o", str(page)]
            task(name, "view", view, removes=(page,))
    apply("VGG16", "apply a key", key)
    chain, patched = str(models["chain"][0]), str(outputs["chain"])
    page, back = folder / "both.html", folder / "reverted.pb"
    apply("chain", "apply, functions", guided)  # last, as what follows reads its output
    for title, words, facts in (
        ("revert", ["revert", patched, "-o", str(back)], {"removes": (back,)}),
        ("diff", ["diff", chain, patched], {"code": 1}),
        ("check", ["check", guided, patched], {}),
        ("verify --no-run", ["verify", "--no-run", chain, patched], {}),
        ("view of both", ["view", chain, patched, "-o", str(page)], {"removes": (page,)}),
        ("match", ["match", "--json", "--pattern", FOUR, chain], {}),
    ):
        task("chain", title, [GRAPHPATCH, *words], **facts)
    task("chain", "the same bytes", ["cmp", chain, str(back)])
    alone = [sys.executable, str(HERE / "networkx_alone.py"), chain, FOUR]
    task("chain", "networkx alone", alone)
    return Part(tasks, COMMAND_TARGETS)


def _within_copy(title: str) -> Callable[[Runs], float]:
    """Return how far a command on VGG16 is above 1.5 times `cp`, in seconds."""
    return lambda runs: runs[f"VGG16: {title}"].processor - 1.5 * runs["VGG16: cp"].processor


COMMAND_TARGETS = [
    Target("VGG16: apply a key, beyond 1.5 cp", _within_copy("apply a key"), 0.3, "s"),
    Target("VGG16: apply, functions, beyond 1.5 cp", _within_copy("apply, functions"), 0.3, "s"),
    Target("VGG16: memory of apply", lambda r: r["VGG16: apply, functions"].megabytes, 80, "MB"),
    Target("VGG16: ops", lambda r: r["VGG16: ops"].seconds, 0.4, "s"),
    Target("VGG16: page", lambda r: r["VGG16: view"].seconds, 3, "s"),
    Target("VGG16: memory of its page", lambda r: r["VGG16: view"].megabytes, 150, "MB"),
    *(
        Target(f"{name}: apply, {carrier}, of TensorFlow's script", measured, most)
        for name, carrier, most in (
            *(("large", "functions", 0.1), ("large", "attrs", 0.06)),
            *(("chain", "functions", 0.12), ("chain", "attrs", 0.08)),
            ("shapes", "functions", 0.15),
        )
        for measured in [ratio(f"{name}: apply, {carrier}", f"{name}: TensorFlow")]
    ),
    *(
        Target(f"chain: {name}, of apply", ratio(f"chain: {name}", "chain: apply, functions"), most)
        for name, most in {
            **{"revert": 1.0, "diff": 1.5, "check": 1.5},
            **{"verify --no-run": 2.0, "view of both": 5.0},
        }.items()
    ),
    Target(
        "1M chain: apply, functions, of 100,000 nodes",
        ratio("1M chain: apply, functions", "chain: apply, functions"),
        11,
    ),
    Target("1M chain: memory", lambda r: r["1M chain: apply, functions"].megabytes, 2000, "MB"),
    Target("chain: page", lambda r: r["chain: view"].processor, 10, "s"),
    Target("tower: page", lambda r: r["tower: view"].processor, 10, "s"),
    Target("chain: match, of networkx alone", ratio("chain: match", "chain: networkx alone"), 0.3),
]

PATTERNS = {
    "plain": "Conv2D -> BiasAdd -> Mul -> AddV2",
    "wildcards": "Conv2D -> * -> * -> AddV2",
    "optional": "Conv2D -> BiasAdd -> Mul? -> AddV2",
    "run": "Conv2D -> BiasAdd ->+ Mul|AddV2 -> Relu",
}


def patterns(options: Namespace) -> Part:
    """Patterns of four ops, beside networkx alone where it knows them; both must agree."""
    tasks: dict[str, Task] = {}
    targets: list[Target] = []
    small, big = 100_000, options.nodes
    for name, text in PATTERNS.items():
        for nodes in (small, big):
            builds = (large_graph(options.folder, nodes),)
            words = [GRAPHPATCH, "match", "--pattern", text, str(builds[0][0])]
            tasks[f"{name} {nodes:,}"] = Task(words, builds=builds)
        least, most = f"{name} {small:,}", f"{name} {big:,}"
        targets += [
            Target(f"{name}: growth", ratio(most, least), big / small),
            Target(f"{name}: memory", _megabytes(most), 3000, "MB"),
        ]
        if name in ("plain", "wildcards"):
            model, title = str(large_graph(options.folder, small)[0]), f"{name} networkx alone"
            words = [sys.executable, str(HERE / "networkx_alone.py"), model, text]
            tasks[title] = Task(words)
            targets += [
                Target(f"{name}: of networkx alone", ratio(least, title), 1),
                Target(f"{name}: matches that differ", _differing(least, title), 0, ""),
            ]
    return Part(tasks, targets)


def _megabytes(title: str) -> Callable[[Runs], float]:
    return lambda runs: runs[title].megabytes


def _differing(title: str, other_title: str) -> Callable[[Runs], float]:
    """Return by how many matches two tasks differ."""

    def count(runs: Runs, title: str) -> int:
        return int(runs[title].output.split("\n", 1)[0].split()[-2].replace(",", ""))

    return lambda runs: abs(count(runs, title) - count(runs, other_title))


SHAPES = {
    "chain": (["build_large.py", "--chain"], FOUR),
    "line": (["build_shapes.py", "line"], "Placeholder ->+ Tanh -> Relu"),
    "wide": (["build_shapes.py", "wide"], "Placeholder -> Relu"),
    "deep": (["build_shapes.py", "deep"], "Tanh -> Relu"),
    "functions": (["build_shapes.py", "functions"], "Relu ->+ * -> Tanh"),
}
"""A third patched, one run of a pattern, one tensor that all read, deep scopes, many functions."""

LEAST = 0.25  # seconds: what takes less counts as so much, as starting varies by some of it
SMALLER = 10  # times fewer nodes have the graphs that doctor, view and split look at
FEWER = 50  # and those that many rules go over
MOST_RULES = 500


def linear(options: Namespace) -> Part:
    """Each command on a graph and one ten times as large: it may take at most twenty times."""
    tasks = {"start": Task([GRAPHPATCH, "gradients", "guided_relu"])}
    for nodes in (options.nodes // 10, options.nodes):
        for shape in SHAPES:
            tasks |= _of_shape(options.folder, shape, nodes)
        count = min(MOST_RULES * nodes // options.nodes, nodes // FEWER // 3)
        tasks |= _of_rules(options.folder, nodes, count)
    small = f" {options.nodes // 10:,}: "
    targets = [
        Target(title.replace(small, ": "), _growth(title, title.replace(small, large)), 20)
        for large in [f" {options.nodes:,}: "]
        for title in tasks
        if small in title
    ]
    return Part(tasks, targets)


def _growth(small: str, large: str) -> Callable[[Runs], float]:
    def growth(runs: Runs) -> float:
        start = runs["start"].processor
        taken = [max(runs[title].processor - start, LEAST) for title in (large, small)]
        return taken[0] / taken[1]

    return growth


def _of_shape(folder: Path, shape: str, nodes: int) -> dict[str, Task]:
    """Return the commands on a graph of so many nodes; some on one of a tenth."""
    (script, *options), pattern = SHAPES[shape]
    guided, two = rules_file(folder, "guided", GUIDED), folder / "two.pb"
    rules = rules_file(folder, "two", FIRST, {"name": "last", **GUIDED})
    tasks: dict[str, Task] = {}

    def task(title: str, model: Path, *words: str | Path, code: int = 0) -> None:
        output = Path(words[words.index("-o") + 1]) if "-o" in words else None
        removes = () if output is None else (output, output.with_suffix(""))
        command = [GRAPHPATCH, *map(str, words)]
        builds = ((model, [str(MODELS / script), "OUT", *options, "--nodes", model.stem]),)
        tasks[f"{shape} {nodes:,}: {title}"] = Task(command, code, removes, builds)

    def model_of(count: int) -> Path:
        (folder / shape).mkdir(exist_ok=True)
        return folder / shape / f"{count}.pb"

    model, smaller = model_of(nodes), model_of(nodes // SMALLER)
    patched, reverted = folder / f"{shape}.patched.pb", folder / f"{shape}.reverted.pb"
    task("ops", model, "ops", model)
    task("apply", model, "apply", guided, model, "-o", patched)
    task("check", model, "check", guided, patched)
    task("verify --no-run", model, "verify", "--no-run", model, patched)
    task("revert", model, "revert", patched, "-o", reverted)
    tasks[f"{shape} {nodes:,}: the same bytes"] = Task(["cmp", str(model), str(reverted)])
    task("apply two rules", model, "apply", rules, model, "-o", two)
    task("revert --rule", model, "revert", "--rule", "last", two, "-o", folder / "first.pb")
    task("diff", model, "diff", model, patched, code=1)
    task("match --explain", model, "match", guided, model, "--explain")
    task("match --pattern", model, "match", "--json", "--pattern", pattern, model)
    small_patched = folder / f"{shape}.small.pb"
    task("apply, smaller", smaller, "apply", guided, smaller, "-o", small_patched)
    for title, path in (("", smaller), (", patched", small_patched)):
        task(f"doctor{title}", smaller, "doctor", path)
        task(f"view{title}", smaller, "view", path, "-o", folder / "page.html")
    if shape != "functions":  # whose main graph has no activations
        feed: dict[str, Any] = {"x:0": np.ones((1, 1, 1, 1), np.float32)}
        np.savez(folder / "feed.npz", **feed)
        words = ["--feed", str(folder / "feed.npz"), "-o", str(folder / "references.json")]
        task("references", smaller, "references", smaller, *words)
    return tasks


def _of_rules(folder: Path, nodes: int, count: int) -> dict[str, Task]:
    """Return commands with so many rules, each for one op, as `match --save` writes them."""
    names = [f"layer_{place}/relu" for place in range(count)]
    rules = [{**GUIDED, "name": name, "match": {"name": name}, "expect": 1} for name in names]
    saved, out = rules_file(folder, f"saved-{count}", *rules), folder / "by-rules.pb"
    model = large_graph(folder, nodes // FEWER, "--chain")
    words = {"match": ["match"], "apply": ["apply", "-o", str(out)]}
    return {
        f"rules {nodes:,}: {title}": Task(
            [GRAPHPATCH, *command, saved, str(model[0])], removes=(out,), builds=(model,)
        )
        for title, command in words.items()
    }


FLEET = 200  # models of 1,000 nodes each
STARTING = (
    "from graphpatch.fleet import workers\nwith workers._pool(2) as pool: pool.submit(int).result()"
)


def fleet(options: Namespace) -> Part:
    """Return `apply` over many models, by one process and by two."""
    folder: Path = options.folder / "fleet"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    guided, out = rules_file(folder, "guided", GUIDED), folder / "out"
    large = large_graph(options.folder, 1_000)
    copies = [folder / "models" / f"{place}.pb" for place in range(FLEET)]
    link = "import shutil, sys; [shutil.copyfile(sys.argv[1], path) for path in sys.argv[2:]]"
    tasks = {
        "copy": Task([sys.executable, "-c", link, *map(str, [large[0], *copies])], builds=(large,)),
        "starting two": Task([sys.executable, "-c", STARTING]),
        "starting none": Task([sys.executable, "-c", STARTING.partition("\n")[0]]),
    }
    for jobs in ("1", "2"):
        words = ["apply", guided, str(folder / "models"), "-o", str(out), "--jobs", jobs]
        tasks[f"--jobs {jobs}"] = Task([GRAPHPATCH, *words], removes=(out,))
    return Part(
        tasks,
        [
            Target(
                "two processes, of the wall time of one",
                lambda r: r["--jobs 2"].seconds / r["--jobs 1"].seconds,
                0.6,
            ),
            Target("two processes, of the processor time", ratio("--jobs 2", "--jobs 1"), 1.2),
            Target(
                "starting the pool",
                lambda r: r["starting two"].seconds - r["starting none"].seconds,
                0.3,
                "s",
            ),
            Target("memory of the largest process", lambda r: r["--jobs 2"].megabytes, 120, "MB"),
        ],
    )


def peers(options: Namespace) -> Part:
    """Return other tools that insert one op behind each Relu; graphpatch inserts three.

    Those of TensorFlow 1.15 run in the Python that GRAPHPATCH_TF1_PYTHON names.
    """
    folder: Path = options.folder
    model, guided = large_graph(folder, 100_000, "--chain"), rules_file(folder, "guided", GUIDED)
    out = folder / "peer.pb"
    words = [GRAPHPATCH, "apply", guided, str(model[0]), "-o", str(out)]
    tasks = {"graphpatch": Task(words, removes=(out,), builds=(model,))}
    python = os.environ.get("GRAPHPATCH_TF1_PYTHON")
    for tool in ("transform_graph", "graph_editor") if python else ():
        script = [str(python), str(HERE / "peer_edits.py"), tool, str(model[0]), str(out)]
        tasks[tool] = Task(script, removes=(out,), is_slow=True, seconds=600)
    return Part(
        tasks,
        [
            Target(f"graphpatch, of {tool}", ratio("graphpatch", tool), 1)
            for tool in tasks
            if tool != "graphpatch"
        ],
    )


def forward(options: Namespace) -> Part:
    """Return the forward pass of a ResNet50, whose script checks bits and says what is missed."""
    model = built(options.folder, "resnet50", "build_keras.py", "ResNet50")
    script = [sys.executable, str(HERE / "forward.py"), str(model[0]), "--clock", "processor"]
    return Part({"forward": Task(script, builds=(model,), is_slow=True)}, [])


def start(options: Namespace) -> Part:
    """Return `ops` of the demo's model, here and in another checkout."""
    if options.other is None:
        raise SystemExit("start: name the checkout to compare with: --other FOLDER")
    words = [sys.executable, "-m", "graphpatch", "ops", str(MODELS / "digits.pb")]
    checkouts = {"here": ROOT, "there": options.other.resolve()}
    tasks = {
        title: Task(words, environment={"PYTHONPATH": str(path)})
        for title, path in checkouts.items()
    }
    return Part(tasks, [Target("start, of the other checkout", ratio("here", "there"), 1)])


PARTS: dict[str, Callable[[Namespace], Part]] = {
    part.__name__: part for part in (commands, patterns, linear, fleet, peers, forward, start)
}
