from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure
from novel import write_novel

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.comparing.compare import compare
from rnnorm.experiments.comparing.entry import from_recipe
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.fit import fit

LSTM, BN = "demo/digits-lstm", "demo/digits-bn"
TINY = [
    "--trainer.accelerator=cpu",
    "--model.init_args.hidden_size=6",
    "--data.init_args.shrink=2",
    "--data.init_args.train_size=130",
    "--data.init_args.batch_size=50",
]


@pytest.fixture
def unrendered(monkeypatch):
    """Leaves out how a picture becomes a file, which takes as long as a small training."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: None)


def test_command_trains_both_with_every_seed_and_writes_table_picture_and_curves(capsys, tmp_path):
    out = tmp_path / "out"
    given = ["--epochs", "2", "--seeds", "2", "--reach", "5", "--out", str(out), *TINY]
    assert main(["compare", LSTM, BN, *given]) == 0
    said = capsys.readouterr().out
    assert "reaches 5.0 % after" in said
    assert all(said.count(f"{name}  seed {seed}") == 1 for name in (LSTM, BN) for seed in (1, 2))
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "comparison.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    folders = {p.name for p in out.iterdir() if p.is_dir()}
    assert folders == {f"demo-digits-{n}-seed{s}" for n in ("lstm", "bn") for s in (1, 2)}


@pytest.mark.usefixtures("unrendered")
def test_the_same_call_goes_on_where_it_was(tmp_path):
    def run(epochs):
        return compare([LSTM, BN], tmp_path / "out", epochs=epochs, overrides=TINY)

    first = run(1)
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.ckpt")}
    assert run(1) == first
    assert {p: p.stat().st_mtime_ns for p in files} == files
    longer = run(2)
    assert [c.until(1) for c in longer] == first
    assert [len(c.values) for c in longer] == [2, 2]
    # a smaller budget than there is sees no more than it would have had
    assert run(1) == first
    fresh = compare([LSTM, BN], tmp_path / "fresh", epochs=2, overrides=TINY)
    assert [c.values for c in fresh] == [c.values for c in longer]


@pytest.mark.usefixtures("unrendered")
def test_it_goes_on_where_the_recipe_finds_the_text_now(tmp_path, monkeypatch):
    before, now = tmp_path / "before", tmp_path / "now"
    write_novel(before)
    monkeypatch.chdir(before)
    given = ["own.yaml"], "out"
    first = compare(*given, vary="model.norm=layer,none", epochs=1)
    before.rename(now)
    monkeypatch.chdir(now)
    longer = compare(*given, vary="model.norm=layer,none", epochs=2)
    assert [c.until(1) for c in longer] == first
    assert [len(c.values) for c in longer] == [2, 2]


@pytest.mark.usefixtures("unrendered")
def test_other_trainings_in_the_folder_are_not_taken_for_these(tmp_path):
    compare([LSTM, BN], tmp_path, epochs=1, overrides=TINY)
    wider = [*TINY, "--model.init_args.hidden_size=7"]
    with pytest.raises(ValueError, match=r"hidden_size is 6 and 7\. Name another --out"):
        compare([LSTM, BN], tmp_path, epochs=1, overrides=wider)


@pytest.mark.usefixtures("unrendered")
def test_trainings_of_a_version_with_fewer_options_are_still_these(tmp_path):
    curves = compare([LSTM, BN], tmp_path, epochs=1, overrides=TINY)
    for path in tmp_path.glob("*/config.yaml"):
        config = yaml.safe_load(path.read_text())
        config["trainer"].pop("reload_dataloaders_every_n_epochs")
        path.write_text(yaml.safe_dump(config))
    assert compare([LSTM, BN], tmp_path, epochs=1, overrides=TINY) == curves


def test_a_folder_without_a_run_is_refused_before_any_training(tmp_path):
    out = tmp_path / "out"
    (out / "demo-digits-bn-seed1").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"seed1 exists and holds no run: .* another --out"):
        compare([LSTM, BN], out, epochs=1, overrides=TINY)
    assert [path.name for path in out.iterdir()] == ["demo-digits-bn-seed1"]


def test_recipes_of_one_file_name_are_refused_before_any_training(tmp_path):
    paths = [tmp_path / folder / "net.yaml" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("base: demo/digits-bn\n")
    with pytest.raises(ValueError, match=r"would both be trained in .*net-seed1"):
        compare([str(path) for path in paths], tmp_path / "out", epochs=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unrendered")
def test_minutes_end_a_training_within_an_epoch_with_a_validation(tmp_path):
    curves = compare([LSTM, BN], tmp_path, minutes=1e-9, overrides=TINY)
    assert [c.steps for c in curves] == [[1], [1]]
    assert compare([LSTM, BN], tmp_path, minutes=1e-9, overrides=TINY) == curves


@pytest.mark.usefixtures("unrendered")
def test_run_folders_are_compared_as_far_as_both_go(tmp_path, capsys):
    for recipe, epochs in ((LSTM, 1), (BN, 2)):
        given = [*TINY, f"--trainer.max_epochs={epochs}"]
        fit(recipe, run_dir=tmp_path / recipe[-2:], overrides=given)
    files = sorted(p for p in tmp_path.rglob("*") if p.name != "cwd")
    curves = compare([str(tmp_path / "tm"), str(tmp_path / "bn")], tmp_path / "cwd" / "out")
    assert [(c.model, c.steps) for c in curves] == [(LSTM, [3]), (BN, [3])]
    assert f"{BN}, seed 1: compared over its first 3 steps" in capsys.readouterr().out
    assert sorted(p for p in tmp_path.rglob("*") if "cwd" not in p.parts) == [
        f for f in files if "cwd" not in f.parts
    ]


@pytest.mark.usefixtures("unrendered")
def test_a_recipe_is_compared_with_a_run_folder(tmp_path):
    fit(LSTM, run_dir=tmp_path / "run", overrides=[*TINY, "--trainer.max_epochs=1"])
    curves = compare([str(tmp_path / "run"), BN], tmp_path / "out", epochs=1, overrides=TINY)
    assert [c.model for c in curves] == [LSTM, BN]


@pytest.mark.usefixtures("unrendered")
def test_two_trainings_of_a_recipe_are_told_apart_by_what_was_changed(tmp_path):
    for width in (6, 7):
        given = [*TINY, "--trainer.max_epochs=1", f"--model.init_args.hidden_size={width}"]
        fit(BN, run_dir=tmp_path / f"{13 - width}-units", overrides=given)
    runs = [str(tmp_path / "7-units"), str(tmp_path / "6-units")]
    names = [f"{BN}, hidden_size=6", f"{BN}, hidden_size=7"]
    assert [c.model for c in compare(runs, "out")] == names
    # a folder of runs is as good as its runs
    assert [c.model for c in compare([str(tmp_path)], "out")] == names[::-1]
    with pytest.raises(ValueError, match=f"seed 1 is named twice: {runs[0]} and {runs[0]}$"):
        compare([runs[0], runs[0], runs[1]], "out")


@pytest.mark.usefixtures("unrendered")
def test_a_run_and_one_that_begins_with_it_are_told_apart(tmp_path):
    given = [*TINY, "--trainer.max_epochs=1"]
    first = fit(BN, run_dir=tmp_path / "first", overrides=given)
    fit(BN, run_dir=tmp_path / "second", overrides=given, start=first.folder)
    curves = compare([str(tmp_path)], "out")
    assert [c.model for c in curves] == [BN, f"{BN}, start=first"]
    assert read_outcome(tmp_path / "second").changes[-1] == "start=first"


@pytest.mark.parametrize(
    "given", [{"overrides": ["--seed_everything=7"]}, {"vary": "seed_everything=7,8"}]
)
def test_a_seed_is_refused(tmp_path, given):
    with pytest.raises(ValueError, match=r"^--seed_everything=7 has no effect: --seeds N trains"):
        compare([LSTM, BN], tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"lr": 0.1, "vary": "optimizer.lr=0.1,0.2"},
        {"batch_size": 5, "vary": "data.init_args.batch_size=5,6"},
        {"overrides": ["--model.norm=layer"], "vary": "model.norm=batch,none"},
        {"epochs": 1, "vary": "trainer.max_epochs=1,2"},
        {"epochs": 1, "overrides": ["--trainer.max_steps=3"]},
        {"minutes": 1, "overrides": ["--trainer.max_epochs=3"]},
    ],
)
def test_one_option_is_given_in_one_way(tmp_path, given):
    with pytest.raises(ValueError, match=r"given once|has no effect beside a budget"):
        compare([LSTM], tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("budget", [{}, {"epochs": 1}, {"minutes": 1}])
def test_a_limit_in_wall_clock_time_is_refused(tmp_path, budget):
    recipe = tmp_path / "own.yaml"
    recipe.write_text(f"base: {BN}\ntrainer: {{max_time: '00:00:01:00'}}\n")
    given = {"runs": [LSTM, BN], "overrides": ["--trainer.max_time=00:00:01:00"]}
    for each in (given, {"runs": [LSTM, str(recipe)]}):
        with pytest.raises(ValueError, match=r"trainer\.max_time must be null.*--minutes M"):
            compare(out=tmp_path / "out", **each, **budget)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unrendered")
def test_an_option_is_varied(tmp_path, capsys):
    given = ["--vary", "model.norm=batch,layer,none", "--epochs", "1", "--out", str(tmp_path / "o")]
    assert main(["compare", LSTM, *given, *TINY]) == 0
    said = capsys.readouterr().out
    assert all(said.count(f"{LSTM}, norm={norm}  seed 1") == 1 for norm in ("batch", "layer"))
    assert f"{LSTM}, norm=null  seed 1" in said
    folders = {p.name for p in (tmp_path / "o").iterdir() if p.is_dir()}
    assert folders == {f"demo-digits-lstm-norm={n}-seed1" for n in ("batch", "layer", "null")}
    # what compare wrote is compared again by its folder, with the same names
    curves = compare([str(tmp_path / "o")], tmp_path / "again")
    assert {c.model for c in curves} == {f"{LSTM}, norm={n}" for n in ("batch", "layer", "null")}


@pytest.mark.parametrize("vary", ["model.norm", "model.norm=", "=a,b", "a=b,,c", "a=b,b"])
def test_what_is_varied_must_have_different_values(vary, tmp_path):
    with pytest.raises(ValueError, match="vary must be OPTION=VALUE,VALUE"):
        compare([LSTM], tmp_path / "out", vary=vary)


@pytest.mark.usefixtures("unrendered")
def test_a_training_that_diverges_does_not_end_the_comparison(tmp_path, capsys):
    other = tmp_path / "wild.yaml"
    other.write_text((_recipe(BN)).replace("lr: 0.001", "lr: 1.0e+38"))
    curves = compare([LSTM, str(other)], tmp_path / "out", epochs=1, overrides=TINY)
    assert [c.diverged for c in curves] == [0, 1]
    said = capsys.readouterr().out
    assert "training diverged at step" in said
    assert "(1 of 1 diverged)" in said


@pytest.mark.usefixtures("unrendered")
def test_folders_say_what_diverged_and_the_others_are_compared_whole(tmp_path, capsys):
    given = [*TINY, "--data.init_args.batch_size=130"]
    varied = "optimizer.lr=0.001,1e38"
    compare([LSTM], tmp_path / "out", vary=varied, epochs=3, overrides=given)
    capsys.readouterr()
    curves = compare([str(tmp_path / "out")], tmp_path / "again")
    assert {c.model.rpartition("=")[2]: (c.diverged, len(c.steps)) for c in curves} == {
        "0.001": (0, 3),
        "1e38": (2, 1),
    }
    said = capsys.readouterr().out
    assert "(1 of 1 diverged)" in said
    assert "compared over its first" not in said


def _recipe(name):
    recipe = read_recipe(name)
    return yaml.safe_dump({"about": recipe.about, **recipe.config})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("permutation: fixed", "permutation: none"), "permutation is 'fixed' and 'none'"),
        (("batch_size: 100", "batch_size: 10"), "batch_size is 100 and 10"),
        (("max_epochs: 25", "max_epochs: 24"), "budget.max_epochs is 25 and 24"),
    ],
)
def test_what_differs_is_named(tmp_path, change, named):
    other = tmp_path / "other.yaml"
    other.write_text(_recipe(BN).replace(*change))
    with pytest.raises(ValueError, match=named):
        compare([LSTM, str(other)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_task_differs_in_data_and_metric(tmp_path):
    tasks = ["cooijmans2016/smnist-lstm", "cooijmans2016/ptb-char-lstm"]
    with pytest.raises(ValueError, match="metric is 'accuracy' and 'bits_per_character'"):
        compare(tasks, tmp_path / "out", epochs=1, scale="small")


def test_seeds_differ(tmp_path):
    fit(LSTM, run_dir=tmp_path / "run", overrides=[*TINY, "--trainer.max_epochs=1"])
    with pytest.raises(ValueError, match=r"seeds is \[1\] and \[1, 2\]"):
        compare([str(tmp_path / "run"), BN], tmp_path / "out", epochs=1, seeds=2, overrides=TINY)


def test_one_model_is_no_comparison(capsys):
    assert main(["compare", LSTM]) == 1
    assert "at least two models" in capsys.readouterr().err


def test_a_file_of_ones_own_is_named_as_in_the_run_folder(tmp_path):
    options = ["--data.dataset=text", "--data.file=novel.txt"]
    character = "cooijmans2016/ptb-char-lstm"
    (entry,) = from_recipe(character, "a", 1, "small", options, tmp_path, data_dir=tmp_path)
    assert entry.config["data"]["init_args"]["file"] == "novel.txt"
    (entry,) = from_recipe(character, "a", 1, "small", options, tmp_path)
    assert entry.config["data"]["init_args"]["file"] == str(Path.cwd() / "novel.txt")
