"""Workers that die, interrupts, and models that no process survives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from graphpatch.fleet import work
from graphpatch.fleet.search import Task
from graphpatch.fleet.work import FleetOrder, TaskResult, Work, patch_model, run_task
from graphpatch.fleet.workers import by_processes
from graphpatch.formats import Model
from graphpatch.formats.output import sweep
from graphpatch.rules import rules_from
from tests import graphs
from tests.refusals import MODEL, RULE

ORDER = FleetOrder("rules.json", read=tuple(rules_from([RULE])))


def tasks(folder: Path, count: int) -> list[Task]:
    made = []
    for place in range(count):
        (folder / f"{place}.pb").write_bytes(MODEL)
        made.append(Task(str(folder / f"{place}.pb"), str(folder / "out" / f"{place}.pb")))
    (folder / "out").mkdir()
    return made


def results(work: Work, order: FleetOrder, tasks: list[Task]) -> Iterator[TaskResult]:
    return by_processes(partial(run_task, work, order), tasks, 2)


def ended(results: Iterator[TaskResult]) -> dict[int, TaskResult]:
    """Return the results by the numbers of their models; each is there once."""
    done = [(number_of(result.task), result) for result in results]
    assert sorted(number for number, _ in done) == list(range(len(done)))
    return dict(sorted(done, key=lambda one: one[0]))


def number_of(task: Task) -> int:
    return int(Path(task.model).stem)


def test_each_is_done_once(tmp_path: Path) -> None:
    planned = tasks(tmp_path, 20)
    done = ended(results(patch_model, ORDER, planned))
    reports = [result.report | {"replaced": True} for result in done.values()]
    assert reports == [patch_model(ORDER, task).report for task in planned]


def deadly(order: FleetOrder, task: Task) -> TaskResult:
    """Kills its process over task 3, each time."""
    if number_of(task) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(task, {"worker": os.getpid()})


def test_a_model_that_no_process_survives_fails_alone() -> None:
    done = ended(results(deadly, ORDER, [Task(f"{place}.pb") for place in range(12)]))
    assert done.pop(3).error == "3.pb: worker processes died over it, again and again"
    assert [result.error for result in done.values()] == [""] * 11


def test_workers_that_die_before_their_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    pools, submit = list[ProcessPoolExecutor](), ProcessPoolExecutor.submit

    def submitted(pool: ProcessPoolExecutor, *args: Any) -> Any:
        pools.append(pool)
        if pool is pools[0] and len(pools) > 2:  # both workers have started
            raise BrokenProcessPool
        return submit(pool, *args)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submitted)
    done = ended(results(deadly, ORDER, [Task(f"{place}.pb") for place in range(3)]))
    assert [result.error for result in done.values()] == [""] * 3


def once(order: FleetOrder, task: Task) -> TaskResult:
    """Kills its process the first time that it does one of every third task."""
    mark = Path(order.root, str(number_of(task)))
    if number_of(task) % 3 == 0 and not mark.exists():
        mark.touch()
        Path(task.output).with_name(f".{Path(task.output).name}.{os.getpid()}.tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(task)


def test_what_a_dead_worker_was_at_is_done_again(tmp_path: Path) -> None:
    planned = [Task(f"{place}.pb", str(tmp_path / f"out{place}.pb")) for place in range(6)]
    done = ended(results(once, FleetOrder("", root=str(tmp_path)), planned))
    assert [result.error for result in done.values()] == [""] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(0, 6, 3)))


def slow(order: FleetOrder, task: Task) -> TaskResult:
    Path(order.root, str(number_of(task))).touch()
    time.sleep(60)
    return TaskResult(task)


def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    before = multiprocessing.active_children()

    def interrupt() -> None:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        next(results(slow, structs.replace(ORDER, root=str(tmp_path)), [Task("0"), Task("1")]))
    assert [child for child in multiprocessing.active_children() if child not in before] == []


def test_what_was_left_is_swept(tmp_path: Path) -> None:
    for name in (".a.pb.12.tmp", ".b.pb.12.tmp", ".c.pb.12.tmp", ".a.pb.x.tmp", "a.pb"):
        (tmp_path / name).touch()
    for name in (".saved.1.tmp", ".saved.2.old", ".other.3.old", "other"):
        graphs.saved_model_folder(tmp_path / name, graphs.metagraph(graphs.sample(), "a"))
    sweep([str(tmp_path / name) for name in ("a.pb", "b.pb", "saved", "other", "gone/x.pb")])
    names = [".a.pb.x.tmp", ".c.pb.12.tmp", "a.pb", "other", "saved"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_no_model_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Callable[..., Model] = work.load

    def circular(path: Path, progress: object) -> Model:
        model = loaded(path, progress)
        model.graphs[0].library.graph = lambda: model.graphs[0]
        return model

    monkeypatch.setattr(work, "load", circular)
    planned, before = tasks(tmp_path, 5), open_models()
    assert not any(run_task(patch_model, ORDER, task).error for task in planned)
    assert open_models() == before


def open_models() -> list[str]:
    """The models that this process has open or mapped."""
    files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().split()
    return sorted(path for path in [*files, *mapped] if path.endswith(".pb"))


@pytest.mark.parametrize("recorded", [False, True])
def test_a_model_that_is_not_there(recorded: bool, tmp_path: Path) -> None:
    gone = tmp_path / "gone.pb"
    order = structs.replace(ORDER, recorded=recorded)
    done = run_task(patch_model, order, Task(str(gone), str(tmp_path / "out.pb")))
    assert done.error == f"cannot read {gone}: No such file or directory"
