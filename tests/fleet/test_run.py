"""Workers that die, interrupts, and models that no process survives."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from graphpatch.fleet import run as pools
from graphpatch.fleet import work
from graphpatch.fleet.run import FleetRun, Pool
from graphpatch.fleet.task import Job, Task, TaskResult
from graphpatch.fleet.work import patch_model
from graphpatch.formats import Model
from graphpatch.formats.output import sweep
from tests import graphs
from tests.refusals import MODEL, RULE, rules_text

JOB = Job(rules_text(RULE).encode(), "rules.json")


@pytest.fixture(params=["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Two workers, started in either way."""
    context = multiprocessing.get_context(request.param)
    monkeypatch.setattr(pools, "_start_method", lambda: context)
    one = Pool(2)
    yield one
    one.close(at_once=True)


def tasks(folder: Path, count: int) -> list[Task]:
    made = []
    for place in range(count):
        (folder / f"{place}.pb").write_bytes(MODEL)
        made.append(Task(place, str(folder / f"{place}.pb"), str(folder / "out" / f"{place}.pb")))
    (folder / "out").mkdir()
    return made


def test_each_is_done_once(tmp_path: Path, pool: Pool) -> None:
    given = tasks(tmp_path, 20)
    done = list(FleetRun(patch_model, JOB, given, pool).results())
    assert sorted(one.task.place for one in done) == list(range(20))
    assert not any(one.error for one in done)
    alone = [patch_model(JOB, task) for task in given]
    assert [one.task.place for one in alone] == list(range(20))
    by_place = sorted(done, key=lambda one: one.task.place)
    assert [one.report | {"replaced": True} for one in by_place] == [one.report for one in alone]


def deadly(job: Job, task: Task) -> TaskResult:
    """Kills its process over task 3, each time."""
    if task.place == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(task, {"worker": os.getpid()})


def test_a_model_that_no_process_survives_fails_alone(tmp_path: Path, pool: Pool) -> None:
    given = [Task(place, f"{place}.pb") for place in range(12)]
    done = {one.task.place: one for one in FleetRun(deadly, JOB, given, pool).results()}
    assert sorted(done) == list(range(12))
    assert done.pop(3).error == "3.pb: worker processes died over it, again and again"
    assert not any(one.error for one in done.values())


def once(job: Job, task: Task) -> TaskResult:
    """Kills its process the first time that it does one of every third task."""
    mark = Path(job.root, str(task.place))
    if task.place % 3 == 0 and not mark.exists():
        mark.touch()
        Path(task.output).with_name(f".{Path(task.output).name}.{os.getpid()}.tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(task)


def test_what_a_dead_worker_was_at_is_done_again(tmp_path: Path, pool: Pool) -> None:
    given = [Task(place, "model", str(tmp_path / f"out{place}.pb")) for place in range(30)]
    job = Job(b"", "", root=str(tmp_path))
    done = list(FleetRun(once, job, given, pool).results())
    assert sorted(one.task.place for one in done) == list(range(30))
    assert not any(one.error for one in done)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(0, 30, 3)))


def slow(job: Job, task: Task) -> TaskResult:
    time.sleep(60)
    return TaskResult(task)


def test_an_interrupt_ends_the_workers(tmp_path: Path, pool: Pool) -> None:
    results = FleetRun(slow, JOB, [Task(place, "m") for place in range(4)], pool).results()
    main = threading.main_thread().ident or 0
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert time.monotonic() - start < 20
    assert pool.workers
    assert not any(worker.is_alive() for worker in pool.workers)


@pytest.mark.slow
def test_ten_workers_killed_at_random_moments(tmp_path: Path, pool: Pool) -> None:
    given = tasks(tmp_path, 200)
    chosen = random.Random(7)
    moments = set(chosen.sample(range(1, 190), 10))
    done = []
    for one in FleetRun(patch_model, JOB, given, pool).results():
        done.append(one)
        if len(done) in moments:
            time.sleep(chosen.uniform(0, 0.01))
            chosen.choice(pool.workers).kill()
    assert sorted(one.task.place for one in done) == list(range(200))
    assert not [one.error for one in done if one.error]
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(written) == sorted(f"{place}.pb" for place in range(200))
    assert len(set(written.values())) == 1


def wait_until_seen(pool: Pool) -> None:
    """A pool sees that workers died when no result waits to be read, which may take long."""
    end = time.monotonic() + 60
    while not vars(pool.executor)["_broken"]:
        assert time.monotonic() < end, "the pool never saw that its workers died"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["forkserver"], indirect=True)
def test_the_fork_server_is_killed(tmp_path: Path, pool: Pool) -> None:
    """Its workers end with it; another server is started, and nothing is lost."""
    given, done, killed = tasks(tmp_path, 60), [], list[int]()
    for one in FleetRun(patch_model, JOB, given, pool).results():
        done.append(one)
        server = vars(forkserver)["_forkserver"]._forkserver_pid
        if len(done) in (10, 30):
            os.kill(server, signal.SIGKILL)
            killed.append(server)
            wait_until_seen(pool)
    assert len(set(killed)) == 2
    assert sorted(one.task.place for one in done) == list(range(60))
    assert not [one.error for one in done if one.error]


def test_what_was_left_is_swept(tmp_path: Path) -> None:
    for name in (".a.pb.12.tmp", ".b.pb.12.tmp", ".c.pb.12.tmp", ".a.pb.x.tmp", "a.pb"):
        (tmp_path / name).touch()
    for name in (".saved.1.tmp", ".saved.2.old", ".other.3.old", "other"):
        graphs.saved_model_folder(tmp_path / name, graphs.metagraph(graphs.sample(), "a"))
    sweep([str(tmp_path / name) for name in ("a.pb", "b.pb", "saved", "other", "gone/x.pb")])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a.pb.x.tmp", ".c.pb.12.tmp", "a.pb", "other", "saved",
    ]  # fmt: skip


def test_a_fork_is_for_a_process_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, method in ((1, "fork"), (2, "forkserver")):
        monkeypatch.setattr(pools, "threads", lambda count=count: count)
        assert pools._start_method().get_start_method() == method


@pytest.mark.parametrize("collecting", [True, False])
def test_no_model_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collecting: bool
) -> None:
    given, loaded = tasks(tmp_path, 20), work.load

    def circular(path: Path, progress: Any) -> Model:
        model = loaded(path, progress)
        model.graphs[0].library.bodies = lambda: model.graphs[0].bodies
        return model

    monkeypatch.setattr(work, "load", circular)
    before, enabled = open_models(), gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        done, after = [patch_model(JOB, task) for task in given], open_models()
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if enabled else gc.disable)()
    assert not any(one.error for one in done)
    assert after == before


def open_models() -> list[str]:
    """The models that this process has open or mapped."""
    files = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().split()
    return sorted(path for path in [*files, *mapped] if path.endswith(".pb"))


@pytest.mark.parametrize("recorded", [False, True])
def test_a_model_that_is_not_there(recorded: bool, tmp_path: Path) -> None:
    gone = tmp_path / "gone.pb"
    job = structs.replace(JOB, recorded=recorded)
    done = patch_model(job, Task(0, str(gone), str(tmp_path / "out.pb")))
    assert done.error == f"cannot read {gone}: No such file or directory"
