import re
import shlex
from pathlib import Path

import pytest

from rnnorm.experiments.training.run_names import (
    checkpoint_of,
    refuse_unknown,
    refuse_unknown_recipe,
    runs_in,
    shell_word,
)

RECIPE = "demo/digits-bn"


@pytest.fixture
def runs(tmp_path):
    """A folder of two runs, the first with a best checkpoint and the second without any."""
    for name in ("one", "two", "three.partial"):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    for name in ("best", "last"):
        (tmp_path / "runs" / "one" / "checkpoints" / f"{name}.ckpt").touch()
    return tmp_path / "runs"


def test_a_folder_stands_for_the_runs_in_it(runs):
    assert runs_in(runs) == [runs / "one", runs / "two"]
    assert runs_in(runs / "one") == [runs / "one"]


def test_a_run_has_its_best_checkpoint_or_else_the_last(runs):
    kept = runs / "one" / "checkpoints"
    assert checkpoint_of(runs / "one") == kept / "best.ckpt"
    (kept / "best.ckpt").unlink()
    assert checkpoint_of(runs / "one") == kept / "last.ckpt"
    assert checkpoint_of(runs / "one", "other.ckpt") == Path("other.ckpt")
    with pytest.raises(FileNotFoundError, match="two has no checkpoint yet"):
        checkpoint_of(runs / "two")


def test_one_run_of_several_is_to_be_named(runs):
    with pytest.raises(ValueError, match=r"holds several runs: name one, such as .*one"):
        checkpoint_of(runs)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (RECIPE, f"{RECIPE} is a recipe, and a run folder is needed"),
        ("demo/digits-bm", "there is no run folder 'demo/digits-bm'"),
        ("nothing", "there is no run folder 'nothing'"),
        ("", "there is no run folder ''"),
        ("on", "there is no run folder 'on': the nearest is runs/one"),
        ("runs/tow", "there is no run folder 'runs/tow': the nearest are runs/two"),
        ("empty", "empty is a folder without runs: neither it nor a folder in it has a run.json"),
        ("runs/one/run.json", "runs/one/run.json is a file, and a run is a folder"),
    ],
)
def test_what_names_no_run_is_told_what_it_is(runs, monkeypatch, word, said):
    monkeypatch.chdir(runs.parent)
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        runs_in(word)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("demo/digits-bm", "no recipe is called 'demo/digits-bm': the nearest are demo/digits-bn"),
        ("dmeo/digits-bn", "no recipe is called 'dmeo/digits-bn': the nearest are demo/digits-bn"),
        ("runs/demo-digits-bn", "there is no file or folder runs/demo-digits-bn"),
        ("../demo", "there is no file or folder ../demo"),
        ("own.yaml", "there is no file or folder own.yaml"),
        ("empty", "empty is a folder without runs"),
        ("runs/one/run.json", "runs/one/run.json is a file, and a run is a folder"),
    ],
)
def test_what_is_neither_recipe_nor_run_is_told_what_it_is(runs, monkeypatch, word, said):
    monkeypatch.chdir(runs.parent)
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=said):
        refuse_unknown(word)


def test_what_is_neither_recipe_nor_run_is_compared_with_runs_too(runs, monkeypatch):
    monkeypatch.chdir(runs.parent)
    with pytest.raises(ValueError, match=r"there is no run folder 'runs/tow': .* are runs/two"):
        refuse_unknown("runs/tow")
    with pytest.raises(ValueError, match=r"no recipe is called 'tow'.*; there is no run folder"):
        refuse_unknown("tow")


@pytest.mark.parametrize("word", ["runs", "runs/one/run.json"])
def test_what_is_there_and_no_recipe_is_told_so(runs, monkeypatch, word):
    monkeypatch.chdir(runs.parent)
    with pytest.raises(ValueError, match=r"no recipe: one of your own ends with \.yaml"):
        refuse_unknown_recipe(word)


def test_a_run_that_should_be_a_recipe_is_told_how_to_go_on(runs):
    run = (runs / "one").rename(runs / "my run")
    with pytest.raises(ValueError, match=f"resume it by rnnorm fit --resume '{run}'$"):
        refuse_unknown_recipe(str(run))


def test_a_recipe_needs_a_checkpoint():
    with pytest.raises(ValueError, match="name its run folder instead, or add --ckpt FILE"):
        checkpoint_of(RECIPE)


@pytest.mark.parametrize(
    "name", ["-x", "--trainer", "a b'c\"d", "$(x)", "#a", "~", "x\ny", "*", "run"]
)
def test_a_path_is_one_word_of_a_shell_and_no_option(name):
    (word,) = shlex.split(shell_word(name), comments=True)
    assert Path(word) == Path(name)
    assert not word.startswith("-")
