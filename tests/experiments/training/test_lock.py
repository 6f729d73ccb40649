import errno
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.training import folder as lock
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.folder import only_process, start_run

RECIPE = "demo/digits-bn"


@pytest.fixture
def folder(tmp_path):
    start_run(tmp_path / "run", {"recipe": RECIPE, "scale": "paper", "about": {}}, "model: 1\n")
    return tmp_path / "run"


def hold(folder, held):
    with only_process(folder):
        held.set()
        time.sleep(600)


@pytest.mark.skipif(os.name == "nt", reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_process_gets_one_line_and_a_kill_leaves_no_lock(tmp_path, tiny, capsys):
    folder = fit(
        RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, "--trainer.max_epochs=1"]
    ).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # a started one would import for longer than the training takes
    context = multiprocessing.get_context("fork")
    held = context.Event()
    other = context.Process(target=hold, args=(folder, held), daemon=True)
    other.start()
    assert held.wait(60)
    capsys.readouterr()
    assert main(["fit", "--resume", str(folder), "--trainer.max_epochs=2"]) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"rnnorm fit: another process trains in {folder}: wait for it, or name another folder\n"
    )
    assert {path: path.read_bytes() for path in before} == before
    other.kill()
    other.join()
    assert main(["fit", "--resume", str(folder), "--trainer.max_epochs=2"]) == 0


def test_the_lock_is_left_after_an_error(folder):
    with pytest.raises(KeyError), only_process(folder):
        raise KeyError
    with only_process(folder), pytest.raises(BlockingIOError), only_process(folder):
        pass
    with only_process(folder):
        assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "run.json"]


def test_partial_files_of_a_killed_training_are_removed(folder):
    (folder / "checkpoints").mkdir()
    names = ("checkpoints/last.ckpt.1.partial", "config.yaml.2.partial", "metrics.csv.3.partial")
    for name in (*names, "tests.json.4.partial"):
        (folder / name).write_bytes(b"half")
    with only_process(folder):
        left = {path.name for path in folder.rglob("*.partial")}
    # a test may be writing its own at this moment
    assert left == {"tests.json.4.partial"}


def test_a_file_system_without_locks_is_named_and_used(folder, monkeypatch, capsys):
    def unsupported(_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock, "_lock", unsupported)
    with only_process(folder):
        assert f"{folder} cannot be locked (No locks available)" in capsys.readouterr().err


def test_of_two_that_start_the_same_run_one_does(tmp_path):
    about, folder = {"recipe": RECIPE}, tmp_path / "run"
    at = time.monotonic() + 0.05

    def start(number):
        while time.monotonic() < at:
            pass
        try:
            start_run(folder, {**about, "number": number}, "model: {}\n")
        except FileExistsError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(start, range(4)))
    assert said.count(None) == 1
    assert all("exists: resume it by --resume" in text for text in said if text)
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
