import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import yaml
from interruption import Interruption, KillAt
from novel import write_novel
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.recipe.recipe import OverrideError, read_recipe
from rnnorm.experiments.searching import trial
from rnnorm.experiments.searching.lease import Leases
from rnnorm.experiments.searching.search import search
from rnnorm.experiments.searching.study import read_search
from rnnorm.experiments.training.folder import only_process, read_about

RATE, ROWS = "optimizer.init_args.lr", "data.init_args.batch_size"
PAPER = {
    RATE: {"low": 1e-4, "high": 1.0, "log": True},
    "optimizer.init_args.momentum": {"choices": [0.5, 0.8, 0.9, 0.95, 0.995]},
    ROWS: {"choices": [32, 64, 128]},
}


@pytest.fixture
def recipe(tmp_path, tiny):
    """Writes a recipe of one's own with these ranges, and returns how to call it."""

    def of(**space):
        config = read_recipe("demo/digits-lstm").config
        space = space or {RATE: PAPER[RATE], ROWS: {"choices": [20, 40]}}
        path = tmp_path / "own.yaml"
        searched = config | {"search": {"trials": 3, "space": space}}
        path.write_text(yaml.safe_dump(searched, sort_keys=False))
        taken = [*space, "trainer.max_epochs"]
        given = [o for o in tiny if o.partition("=")[0].lstrip("-") not in taken]
        return {"recipe": str(path), "out": "study", "epochs": 1, "overrides": given}

    return of


def drawn(found):
    return {t.number: (t.params, t.value) for t in found.trials}


@pytest.mark.parametrize("name", ["laurent2015/appendix-a-rnn", "laurent2015/appendix-a-bn"])
def test_the_papers_ranges(name):
    assert read_recipe(name).search == {"trials": 52, "space": PAPER}
    assert "search" not in read_recipe(name).config


def test_trials_are_drawn_from_the_ranges_and_listed_best_first(recipe):
    found = search(**recipe())
    assert len(found.trials) == 3
    assert found.score == "accuracy"
    values = [t.value for t in found.trials]
    assert values == sorted(values, reverse=True)
    assert all(1e-4 <= t.params[RATE] <= 1 and t.params[ROWS] in (20, 40) for t in found.trials)
    assert len({t.params[RATE] for t in found.trials}) == 3
    assert {read_about(p.parent)["recipe"] for p in Path("study").glob("*/run.json")} == {
        recipe()["recipe"]
    }
    lines = found.table().splitlines()
    assert lines[0].split() == ["trial", "validation", "accuracy,", "%", "lr", "batch_size"]
    assert lines[1].split()[:2] == [str(found.trials[0].number), f"{100 * values[0]:.4f}"]
    assert lines[-1] == "0 of 3 trials failed"


def test_whole_ends_give_whole_numbers_where_no_others_are_taken(recipe):
    size, clip = "model.init_args.hidden_size", "trainer.gradient_clip_val"
    found = search(**recipe(**{size: {"low": 4, "high": 9}, clip: {"low": 1, "high": 4}}), trials=2)
    drawn = [t.params for t in found.trials]
    assert all(type(p[size]) is int and 4 <= p[size] <= 9 for p in drawn)
    assert not any(p[clip].is_integer() for p in drawn)


def test_the_trainer_is_asked_whether_it_takes_fractions(recipe):
    batches = "trainer.limit_train_batches"
    found = search(**recipe(**{batches: {"low": 1, "high": 3}}), trials=1)
    assert type(found.trials[0].params[batches]) is int


@pytest.mark.parametrize("log", [False, True])
def test_fractions_are_drawn_on_the_scale_of_their_range(log):
    clip, config = "trainer.gradient_clip_val", read_recipe("demo/digits-lstm").config
    made = trial.with_fractions({clip: IntDistribution(1, 100, log=log)}, config, [])
    assert made == {clip: FloatDistribution(1, 100, log=log)}


def test_a_name_is_drawn_and_listed_as_it_is(recipe):
    orders = ["none", "fixed"]
    found = search(**recipe(**{"data.init_args.permutation": {"choices": orders}}), trials=1)
    assert found.table().splitlines()[1].split()[-1] in orders


def test_a_null_that_is_drawn_is_none(recipe):
    search(**recipe(**{"model.init_args.norm": {"choices": [None]}}), trials=1)
    assert "norm: null" in Path("study/trial-000/config.yaml").read_text()


def test_the_draws_are_a_function_of_the_seed(recipe):
    one, two, other = (
        search(**recipe() | {"out": out, "seed": seed}, trials=1)
        for out, seed in (("study", 1), ("again", 1), ("other", 2))
    )
    assert drawn(one) == drawn(two)
    assert drawn(other).keys() == drawn(one).keys()
    assert all(drawn(other)[n][0] != drawn(one)[n][0] for n in drawn(one))


# in the second trial: before its first checkpoint, after it
@pytest.mark.parametrize("step", [1, 3])
def test_a_study_that_was_cut_off_ends_as_an_uninterrupted_one(recipe, monkeypatch, step):
    real, calls = trial.fit, []

    def fit(*args, **kwargs):
        calls.append(kwargs)
        kill = [KillAt(step)] if len(calls) == 2 else []
        kwargs["callbacks"] = [*kwargs["callbacks"], *kill]
        return real(*args, **kwargs, every_n_steps=2)

    monkeypatch.setattr(trial, "fit", fit)
    with pytest.raises(Interruption):
        search(**recipe(), trials=2)
    interrupted = search(**recipe(), trials=2)
    assert len(calls) == 3
    assert drawn(interrupted) == drawn(search(**recipe() | {"out": "whole"}, trials=2))


def test_a_folder_that_holds_something_else_is_left_alone(recipe):
    folder = Path("study/trial-000")
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"trial-000 exists and holds no run: .* --out"):
        search(**recipe())
    assert (folder / "thesis.txt").read_text() == "mine"


def test_a_trial_that_another_process_trains_is_left_to_it(recipe, monkeypatch, capsys):
    real = trial.fit
    with monkeypatch.context() as patch:
        patch.setattr(trial, "fit", lambda *a, **k: real(*a, **k | {"callbacks": [KillAt(1)]}))
        with pytest.raises(Interruption):
            search(**recipe())
    capsys.readouterr()
    # one that is refused again and again would never end
    monkeypatch.setattr(Leases, "take", once(Leases.take))
    with only_process(Path("study/trial-000")):
        with pytest.raises(BlockingIOError, match="another process trains in study/trial-000"):
            search(**recipe())
        assert capsys.readouterr().out.count("trial 0 (1 of 3)") == 1


def once(function):
    calls = []

    def called(*args):
        calls.append(args)
        assert len(calls) == 1
        return function(*args)

    return called


def test_a_finished_study_is_lengthened(recipe):
    short = search(**recipe(), trials=1)
    longer = search(**recipe(), trials=2)
    assert drawn(longer).items() >= drawn(short).items()
    assert len(longer.trials) == 2


def test_a_trial_that_diverges_is_counted_and_said(recipe):
    # of these rates one is absurd
    found = search(**recipe(**{RATE: {"choices": [1e-3, 1e38]}}) | {"trials": 6})
    assert [t.state for t in found.failed] == [t.state for t in found.trials[-len(found.failed) :]]
    assert {t.params[RATE] for t in found.failed} == {1e38}
    kept = [t for t in found.trials if t.state == TrialState.COMPLETE]
    assert {t.params[RATE] for t in kept} == {1e-3}
    assert all(math.isfinite(t.value) for t in kept)
    lines = found.table().splitlines()
    assert lines[-1].startswith(f"{len(found.failed)} of 6 trials failed; trial ")
    assert lines[-1].count("diverged at step") == len(found.failed)


def test_a_folder_of_another_study_is_refused(recipe):
    search(**recipe(), trials=1)
    for change, said in (
        ({"seed": 2}, "has seed 1, not 2"),
        ({"epochs": 2}, "has overrides"),
        ({"recipe": "laurent2015/appendix-a-rnn", "overrides": []}, "has recipe"),
    ):
        with pytest.raises(ValueError, match=f"the study in study {said}"):
            search(**recipe() | change)
    assert len(search(**recipe(), trials=1).trials) == 1


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"seed": 2}, rf"{RATE} is \S+ and \S+\. Name another --out, or remove the folder"),
        ({"epochs": 2}, "trainer.max_epochs is 1 and 2"),
        ({"recipe": "other.yaml"}, r"recipe is '\S*own.yaml' and 'other.yaml'"),
    ],
)
def test_a_folder_of_another_studys_trial_is_refused(recipe, change, differs):
    given = recipe(**{RATE: PAPER[RATE]}) | {"trials": 1}
    shutil.copy(given["recipe"], "other.yaml")
    before = drawn(search(**given))
    journal = {"storage": "journal:study/study.journal"}
    with pytest.raises(ValueError, match=f"study/trial-000 holds another training.*: {differs}"):
        search(**given | journal | change)
    assert drawn(read_search("study")) == before
    shutil.rmtree("study/trial-000")
    assert len(search(**given | journal | change | {"lease": 0.1}).trials) == 1


def test_a_folder_of_the_same_trial_is_gone_on_with_wherever_study_and_data_are(
    recipe, monkeypatch
):
    one = search(**recipe(), trials=1)
    config = Path("study/trial-000/config.yaml")
    config.write_text(config.read_text().replace("data_dir: null", "data_dir: /elsewhere"))
    # digits have no files
    monkeypatch.setattr(trial, "fit", lambda **_: SimpleNamespace(best=one.trials[0].value))
    again = search(**recipe(), trials=1, storage="journal:study/study.journal")
    assert drawn(again) == drawn(one)


def test_a_trial_is_gone_on_with_where_its_recipe_finds_the_text_now(tmp_path, monkeypatch):
    before, now = tmp_path / "before", tmp_path / "now"
    write_novel(before, search={"trials": 1, "space": {RATE: {"choices": [0.002]}}})
    monkeypatch.chdir(before)
    real = trial.fit
    with monkeypatch.context() as patch:
        patch.setattr(trial, "fit", lambda **k: real(**k | {"callbacks": [KillAt(2)]}))
        with pytest.raises(Interruption):
            search("own.yaml", "study")
    before.rename(now)
    monkeypatch.chdir(now)
    (resumed,) = search("own.yaml", "study").trials
    assert resumed.state == TrialState.COMPLETE
    config = yaml.safe_load(Path("study/trial-000/config.yaml").read_text())
    assert config["data"]["init_args"]["file"] == str(now / "novel.txt")


@pytest.mark.parametrize("given", [3, {}, {"low": 1}, {"choices": [1], "low": 2}, {"high": 1}])
def test_a_range_that_is_none_is_refused(recipe, given):
    with pytest.raises(ValueError, match=r"search\.space\.optimizer.init_args\.lr must have"):
        search(**recipe(**{RATE: given}))


def test_what_cannot_be_searched_is_refused_before_there_is_a_study(recipe):
    with pytest.raises(ValueError, match="it has no key 'search'"):
        search("demo/digits-bn", "study")
    with pytest.raises(OverrideError, match="speed"):
        search(**recipe(**{"optimizer.init_args.speed": {"choices": [1]}}))
    with pytest.raises(ValueError, match="one option may be given once"):
        search(**recipe() | {"overrides": ["--trainer.max_epochs=2"]})
    for name in (RATE, "optimizer.lr"):
        with pytest.raises(ValueError, match=f"--{name}=1 has no effect.*draws that option"):
            search(**recipe() | {"overrides": [f"--{name}=1"]})
    with pytest.raises(
        ValueError, match=r"--trainer\.max_epochs=2 has no effect.*draws that option"
    ):
        search(**recipe(**{"trainer.max_epochs": {"choices": [1]}}) | {"epochs": 2})
    with pytest.raises(ValueError, match=r"search\.space must name options, got 1"):
        trial.space_of({1: {"choices": [1]}})
    for wrong in ({"trials": 0}, {"epochs": -1}):
        with pytest.raises(ValueError, match="must be at least 1"):
            search(**recipe() | wrong)
    for wrong in ({"seed": -1}, {"lease": 0.0}, {"lease": math.nan}, {"lease": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            search(**recipe() | wrong)
    assert not Path("study").exists()


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks study\.db"):
        read_search(tmp_path)
    optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", study_name="search")
    with pytest.raises(ValueError, match="does not say overrides, recipe, scale, score"):
        read_search(tmp_path)


def test_the_command(recipe, capsys):
    given = recipe()
    command = ["search", given["recipe"], "--out", "study", "--trials", "1", "--epochs", "1"]
    assert main([*command, *given["overrides"]]) == 0
    assert "0 of 1 trials failed" in capsys.readouterr().out
    assert main(["search", "--out", "study"]) == 1
    assert "search needs a recipe" in capsys.readouterr().err
