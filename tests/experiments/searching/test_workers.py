"""Several processes work on one study."""

import glob
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from optuna.trial import TrialState, create_trial

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching import search as search_module
from rnnorm.experiments.searching import trial as trial_module
from rnnorm.experiments.searching.lease import Leases, status
from rnnorm.experiments.searching.search import run_workers, search
from rnnorm.experiments.searching.storage import open_storage, without_password
from rnnorm.experiments.searching.study import open_study
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.score import Score

pytestmark = pytest.mark.slow

RATE = "optimizer.init_args.lr"
SMALL = [
    "--model.init_args.hidden_size=4",
    "--data.init_args.shrink=4",
    "--trainer.accelerator=cpu",
]


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = read_recipe("demo/digits-lstm").config
    space = {RATE: {"low": 1e-4, "high": 1e-1, "log": True}}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(config | {"search": {"trials": 3, "space": space}}))
    overrides = [*SMALL, "--data.init_args.train_size=40", "--data.init_args.batch_size=20"]
    return {"recipe": str(path), "epochs": 1, "overrides": overrides, "lease": 3.0}


def trials(storage):
    with open_storage(storage) as opened:
        (name,) = optuna.get_all_study_names(opened)
        return optuna.load_study(study_name=name, storage=opened).get_trials()


def search_and_die(**given):
    """A worker that is killed in the middle of its first trial."""
    trial_module._Reports.on_validation_end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    search(**given)


def run(target, workers, given):
    """Run processes that are as quick to start as they can be, and return their exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rnnorm.experiments.searching.search"])
    processes = [context.Process(target=target, kwargs=given) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


def assert_all_are_done_once(storage, given, workers, count, tmp_path):
    """Though a worker was killed in the middle of a trial."""
    given = {**given, "storage": storage, "out": str(tmp_path / "shared"), "trials": count}
    assert run(search_and_die, 1, given) == [-signal.SIGKILL]
    assert [t.number for t in trials(storage) if t.state == TrialState.RUNNING] == [0]
    assert (tmp_path / "shared" / "trial-000").exists()
    assert run(search, workers, given) == [0] * workers
    done = trials(storage)[:count]
    assert [t.number for t in done] == list(range(count))
    assert {t.state for t in done} == {TrialState.COMPLETE}
    folders = sorted(p.parent.name for p in (tmp_path / "shared").glob("*/run.json"))
    assert folders == [f"trial-{number:03}" for number in range(count)]
    return done


@pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
def test_a_worker_dies_and_no_trial_is_lost(tmp_path, given):
    storage = f"journal:{tmp_path}/study.journal"
    done = assert_all_are_done_once(storage, given, 2, 6, tmp_path)
    # the draws and the results of one process
    alone = search(**{**given, "out": str(tmp_path / "alone"), "trials": 3})
    want = {t.number: (t.params, t.value) for t in alone.trials}
    assert {t.number: (t.params, t.value) for t in done[:3]} == want
    said = status(storage)
    assert ": 6 complete, 0 pruned, 0 failed, 0 running, " in said
    assert "best: trial" in said


@pytest.fixture
def postgres():
    """A server of its own, on the system's PostgreSQL."""
    found = shutil.which("initdb") or next(
        iter(glob.glob("/usr/lib/postgresql/*/bin/initdb")), None
    )
    if found is None:
        pytest.skip("there is no PostgreSQL")
    programs = Path(found).resolve().parent
    pytest.importorskip("psycopg")
    # not pytest's folder, which is for its owner alone
    with tempfile.TemporaryDirectory() as data:
        user = []
        if os.getuid() == 0:
            if not shutil.which("runuser"):
                pytest.skip("PostgreSQL does not run as root")
            shutil.chown(data, "postgres")
            user = ["runuser", "-u", "postgres", "--"]
        yield from _served(programs, data, user)


def _served(programs, data, user):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program, *words):
        words = [*user, str(programs / program), "-D", data, *words]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/")

    call("initdb", "-A", "trust", "-U", "postgres", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -F"
    call("pg_ctl", "-w", "-l", f"{data}/log", "-o", options, "start")
    yield f"postgresql://postgres:secret@127.0.0.1:{port}/postgres"
    call("pg_ctl", "-m", "immediate", "stop")


def test_two_workers_share_a_study_in_postgresql(tmp_path, given, postgres):
    assert_all_are_done_once(postgres, given, 2, 4, tmp_path)
    assert "secret" not in without_password(postgres)


def test_the_command_tells_the_status(tmp_path, given, capfd):
    storage = f"sqlite:///{tmp_path}/shared.db"
    words = ["search", given["recipe"], "--out", "study", "--trials", "2", "--epochs", "1"]
    words += ["--storage", storage, "--lease", "20", *given["overrides"]]
    assert main([*words, "--pruner", "median"]) == 0
    assert "0 of 2 trials failed" in capfd.readouterr().out
    assert main(["search", "--storage", storage, "--status"]) == 0
    assert "2 complete, 0 pruned, 0 failed, 0 running" in capfd.readouterr().out


def test_a_trial_that_has_just_begun_does_not_say_whose_it_is(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    about = {"recipe": "own", "scale": "paper", "score": "loss", "overrides": []}
    with open_study(tmp_path, about, Score("loss", "min"), storage) as study:
        study.ask()
    assert "\n  trial 0 on ?: before its first validation" in status(storage)


def test_the_status_has_the_best_trial_and_the_last_score_of_a_running_one(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    about = {"recipe": "own", "scale": "paper", "score": "accuracy", "overrides": []}
    with open_study(tmp_path, about, Score("accuracy", "max"), storage) as study:
        for value in (0.25, 0.75):
            study.add_trial(create_trial(value=value))
        study.add_trial(create_trial(state=TrialState.FAIL))
        running = study.ask()
        running.set_user_attr("lease", ["there:12:abcd", 3])
        for step, value in ((10, 0.5), (20, 0.125)):
            running.report(value, step)
        study.enqueue_trial({})
    assert status(storage).splitlines() == [
        "own: 2 complete, 0 pruned, 1 failed, 1 running, 1 waiting",
        "  best: trial 1, validation accuracy 75.00 %",
        "  trial 3 on there:12: step 20, validation accuracy 12.50 %",
    ]


def count_signals(ready, counted):
    """A worker that ends a moment after its first SIGTERM."""
    came = []
    signal.signal(signal.SIGTERM, lambda *_: came.append(time.monotonic()))
    ready.put(None)
    while not came or time.monotonic() - came[0] < 0.5:
        time.sleep(0.05)
    counted.put(len(came))


def run_and_tell(ready, counted, told):
    """Two such workers in a process group of their own."""
    os.setsid()
    context = multiprocessing.get_context("fork")
    pair = [context.Process(target=count_signals, args=(ready, counted)) for _ in range(2)]
    told.put(run_workers(pair))


@pytest.mark.skipif(os.name == "nt", reason="sends SIGTERM")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_that_a_signal_reached_by_itself_get_no_second_one():
    context = multiprocessing.get_context("fork")
    ready, counted, told = (context.Queue() for _ in range(3))
    parent = context.Process(target=run_and_tell, args=(ready, counted, told))
    parent.start()
    for _ in range(2):
        ready.get(timeout=60)
    os.killpg(parent.pid, signal.SIGTERM)
    assert told.get(timeout=60)
    parent.join()
    assert [counted.get(timeout=60) for _ in range(2)] == [1, 1]


@pytest.mark.skipif(os.name == "nt", reason="sends SIGTERM")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_that_end_by_themselves_are_waited_for():
    context = multiprocessing.get_context("fork")
    ended = context.Queue()
    assert not run_workers([context.Process(target=ended.put, args=(n,)) for n in range(2)])
    assert {ended.get(timeout=60) for _ in range(2)} == {0, 1}


def test_an_interrupted_worker_ends_as_its_command_does(monkeypatch):
    def interrupted(*_, **given):
        raise KeyboardInterrupt

    # these would change this process
    for name in ("keep_freed_memory", "flush_subnormals"):
        monkeypatch.setattr(search_module, name, lambda: None)
    monkeypatch.setattr(search_module, "search", interrupted)
    with pytest.raises(SystemExit) as ended:
        search_module._work("own", Path("out"), 1, torch.get_num_threads(), False)
    assert ended.value.code == 130


@pytest.mark.skipif(os.name == "nt", reason="sends SIGTERM")
def test_a_terminated_search_stops_its_workers_and_says_how_it_goes_on(tmp_path, given):
    storage = f"journal:{tmp_path}/study.journal"
    words = ["search", given["recipe"], "--out", "a b", "--trials", "2", "--epochs", "100000"]
    # seldom telling the study, so that the signal comes within a step
    rarely = "--trainer.check_val_every_n_epoch=1000"
    words += ["--storage", storage, "--workers", "2", *given["overrides"], rarely]
    code = (
        "import sys, torch; from rnnorm.experiments.commands.cli import main\n"
        "print(torch.get_num_threads(), flush=True); sys.exit(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "4"},
        text=True,
        start_new_session=True,
    ) as process:
        try:
            folders = [tmp_path / "a b" / f"trial-00{number}" for number in range(2)]
            while not all((folder / "checkpoints" / "last.ckpt").exists() for folder in folders):
                assert process.poll() is None
                time.sleep(0.2)
            process.terminate()
            # it ends only when no worker holds the output any more
            said, _ = process.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 143
    # they share the threads
    half = str(max(1, int(said.splitlines()[0]) // 2))
    assert [read_outcome(folder).places[0]["threads"] for folder in folders] == [half, half]
    assert said.count("stopped. The last good checkpoint is") == 2
    assert said.splitlines()[-1] == f"resume with: rnnorm {shlex.join(words)}"


@pytest.mark.parametrize("state", [TrialState.WAITING, TrialState.RUNNING])
def test_a_trial_that_another_finishes_after_it_was_looked_up_is_left_alone(state, monkeypatch):
    study = optuna.create_study()
    study.enqueue_trial({})
    (trial,) = study.get_trials()
    if state == TrialState.RUNNING:
        study._storage.set_trial_state_values(trial._trial_id, state)
        (trial,) = study.get_trials()
    study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [1.0])
    seen = iter([[trial], study.get_trials()])
    monkeypatch.setattr(study, "get_trials", lambda **_: next(seen))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Leases(study, 0).take(1) is None
    assert study._storage.get_trial(trial._trial_id).state == TrialState.COMPLETE


def test_a_trial_of_little_promise_is_pruned(given, monkeypatch):
    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", lambda self, study, trial: True)
    found = search(**given, out="study", trials=2, pruner="median")
    assert {t.state for t in found.trials} == {TrialState.PRUNED}
    assert [row[1] for row in found.rows()[1:]] == ["pruned"] * 2
    with pytest.raises(ValueError, match="has pruner 'median', not None"):
        search(**given, out="study", trials=3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": 2}, "workers need a storage"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"pruner": "best"}, "pruner must be one of median, hyperband"),
        ({"storage": "study.journal"}, "storage must be journal:FILE"),
        ({"storage": "postgresql://a:secret@127.0.0.1:1/b"}, r"a:\*\*\*@127.0.0.1"),
        ({"overrides": [*SMALL, "--trainer.devices=2"]}, "trainer.devices must be 1"),
    ],
)
def test_what_cannot_be_is_refused(given, change, said, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(ValueError, match=said):
        search(**{**given, "out": "study", **change})


@pytest.mark.skipif(os.name == "nt", reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_every_worker_refuses_is_said_in_one_line_each(given, capfd, monkeypatch):
    # a spawned worker would import for longer than it works
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    given["overrides"] = [*SMALL, "--data.init_args.train_size=100000"]
    with pytest.raises(RuntimeError, match="0 of 3 trials are finished: every worker was refused"):
        search(**given, out="study", storage="journal:study.journal", workers=2)
    said = capfd.readouterr().err
    assert said.count("a worker stops: train_size must be 1 to") == 2
    assert "Traceback" not in said
