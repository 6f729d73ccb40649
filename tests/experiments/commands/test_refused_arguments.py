"""Arguments that are refused: each in one line that names what is accepted."""

import re
from pathlib import Path

import pytest
from refusals import failure, misspelt

from rnnorm.experiments.commands.cli import main


def test_a_misspelt_recipe_is_answered_with_the_nearest(capsys):
    said = misspelt(["fit", "pmnist-bn"], capsys)
    assert "no recipe is called 'pmnist-bn': the nearest are" in said
    assert "cooijmans2016/pmnist-bn" in said
    assert "'coijmans2016/pmnist-bn'" in misspelt(["fit", "coijmans2016/pmnist-bn"], capsys)


@pytest.mark.parametrize("command", ["fit", "test", "compare", "write"])
def test_a_path_that_is_none_is_called_one(command, capsys):
    said = misspelt([command, "runs/cooijmans2016-pmnist-bn"], capsys)
    assert "there is no file or folder runs/cooijmans2016-pmnist-bn" in said


@pytest.mark.parametrize(
    ("word", "what"), [("-1", "from 0 to"), (str(2**64), "from 0 to"), ("x", "x")]
)
def test_a_seed_that_is_none_is_refused(word, what, capsys):
    said = misspelt(["write", ".", "--seed", word], capsys)
    assert "--seed" in said
    assert what in said


@pytest.mark.parametrize("command", [["report"], ["fit", "--resume"]])
def test_a_command_about_runs_speaks_of_runs(command, capsys):
    assert misspelt([*command, "nothing"], capsys).endswith("there is no run folder 'nothing'")


def test_a_folder_without_runs_is_called_one(capsys, tmp_path):
    said = misspelt(["report", str(tmp_path)], capsys)
    assert f"{tmp_path} is a folder without runs" in said


def test_a_recipe_is_no_run(capsys):
    said = failure(["test", "demo/digits-bn"], capsys)
    assert "demo/digits-bn is a recipe: name its run folder instead, or add --ckpt FILE" in said


@pytest.mark.parametrize(
    ("option", "near"),
    [
        ("--epoch=3", "--epochs"),
        ("--trainr.max_epochs=3", "--trainer.max_epochs"),
        ("--trainer.max_epoch=3", "--trainer.max_epochs"),
        ("--model.hiden_size=8", "--model.hidden_size"),
        ("--model.init_args.hiden_size=8", "--model.hidden_size"),
        ("--optimizer.lrr=8", "--optimizer.lr"),
        ("--seed_everythin=8", "--seed_everything"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest(option, near, capsys):
    said = misspelt(["fit", "demo/digits-bn", option], capsys)
    assert f"no option is called {option.partition('=')[0]}" in said.replace("'", "")
    assert near in re.split(": the nearest (?:is|are) ", said)[1].split(", ")


@pytest.mark.parametrize("command", ["fit", "test", "compare", "search", "bench"])
def test_the_value_of_a_misspelt_option_is_not_taken_for_a_recipe(command, capsys):
    said = misspelt([command, "--sede", "3", "demo/digits-bn"], capsys)
    assert "no option is called '--sede'" in said


def test_a_callbacks_option_with_a_value_of_another_type_is_not_called_unknown(capsys):
    said = misspelt(["fit", "demo/digits-bn", "--trainer.callbacks.batch_size=many"], capsys)
    assert said.endswith("Parser key \"batch_size\": Expected a <class 'int'>")
    said = misspelt(["fit", "demo/digits-bn", "--trainer.callbacks.batch_siz=3"], capsys)
    assert said.endswith("no option is called --trainer.callbacks.batch_siz")


def test_an_option_of_the_norm_that_is_not_yaml_is_named(capsys):
    said = misspelt(["fit", "demo/digits-bn", "--model.norm_options.gamma=["], capsys)
    assert "--model.norm_options.gamma=[ has no value that YAML reads" in said


def test_missing_files(capsys, tmp_path):
    said = failure(["fit", "cooijmans2016/pmnist-bn", "--data-dir", str(tmp_path)], capsys)
    assert "train-images-idx3-ubyte.gz" in said
    assert "https://" in said


def test_existing_run_folder(capsys, tmp_path):
    said = failure(["fit", "demo/digits-bn", "--run-dir", str(tmp_path)], capsys)
    assert f"run folder {tmp_path} exists" in said


@pytest.mark.parametrize(("option", "least"), [("--checkpoint-every", 1), ("--samples", 0)])
def test_a_number_that_is_too_small_is_refused_by_its_option(option, least, capsys):
    said = failure(["fit", "demo/digits-bn", option, "-1"], capsys)
    assert f"{option} must be at least {least}, got -1" in said


def test_missing_recipe(capsys):
    assert "needs a recipe" in failure(["fit"], capsys)
    assert "arguments are required: RUN" in misspelt(["test", "--ckpt", "x"], capsys)


def test_missing_checkpoint(capsys):
    assert "there is no checkpoint none.ckpt" in failure(
        ["test", "demo/digits-bn", "--ckpt", "none.ckpt"], capsys
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["fit", "demo/digits-bn", "--epochs=many"],
        ["fit", "demo/digits-bn", "--scale", "tiny"],
        ["fit", "demo/digits-bn", "--trainer.max_epochs=many"],
        ["fit", "demo/digits-bn", "--trainer.epochs=3"],
        ["recipes", "--trainer.max_epochs=1"],
        ["test", "--ckpt"],
    ],
)
def test_a_misspelt_option_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert arguments[-1].split("=")[0].lstrip("-") in said
    assert said.startswith("usage: rnnorm ")
    # our own usage and one line, not that of the trainer's hundred options
    assert "--trainer.accelerator" not in said
    assert "tip:" not in said
    assert len(said.splitlines()) < 12


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model.init_args.hidden_size=many", "\"hidden_size\": Expected a <class 'int'>."),
        ("--optimizer.lr=nan", "Parser key \"lr\": Expected a <class 'float'>"),
        ("--data.init_args.step=column", "['pixel', 'row']. Got value: column"),
    ],
)
def test_a_wrong_argument_of_model_or_data_is_told_in_one_line(option, said, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "demo/digits-bn", option])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("rnnorm fit: error: ")
    assert said in last
    assert "NoneType" not in last
    assert "Expected a path" not in last


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--lr=nan", "lr must be a finite number of at least 0, got nan"),
        ("--lr=-1", "lr must be a finite number of at least 0, got -1.0"),
        ("--seed=-1", "seed must be from 0 to 4294967295, got -1"),
        ("--trainer.max_epochs=0", "trainer.max_epochs must be above 0 in a training, got 0"),
        ("--trainer.gradient_clip_val=-1", "trainer.gradient_clip_val must be 0 (no clipping) or"),
        ("--data.permutation_seed=-1", "permutation_seed must be from 0 to 4294967295, got -1"),
        ("--trainer.max_steps=0", "trainer.max_steps must be above 0"),
        ("--trainer.limit_train_batches=0", "trainer.limit_train_batches must be above 0"),
        ("--trainer.accumulate_grad_batches=-1", "trainer.accumulate_grad_batches must be above 0"),
        ("--trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch must be above 0"),
        ("--trainer.val_check_interval=0", "trainer.val_check_interval must be above 0"),
        ("--trainer.overfit_batches=2", "trainer.overfit_batches must be 0, got 2"),
        ("--trainer.barebones=true", "trainer.barebones must be false, got true"),
        ("--seed_everything=true", "seed_everything must be a number, got true"),
        ("--seed_everything=-4", "seed_everything must be from 0 to 4294967295, got -4"),
        ("--model.num_classes=5", "num_classes must be 10, the classes of digits, got 5"),
        ("--model.input_size=3", "input_size must be 1, the values of a pixel, got 3"),
        ("--data.step=row", "input_size must be 8, the values of a row, got 1"),
        ("--model.dropout=2", "dropout must be from 0 to 1, got 2.0"),
        ("--trainer.devices=many", "the trainer cannot be made: "),
    ],
)
def test_a_number_out_of_range_is_refused_before_there_is_a_run_folder(option, said, capsys):
    assert said in failure(["fit", "demo/digits-bn", option, "--run-dir=run"], capsys)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data.train_size=1"], "expected at least 2 active rows"),
        (["--optimizer=torch.optim.SparseAdam"], "SparseAdam does not support dense gradients"),
        (
            [
                "--lr_scheduler=torch.optim.lr_scheduler.LambdaLR",
                "--lr_scheduler.lr_lambda=os.getcwd",
                "--trust",
            ],
            "getcwd() takes no arguments",
        ),
    ],
)
def test_what_the_first_step_refuses_leaves_the_name_free(options, said, capsys):
    assert said in failure(["fit", "demo/digits-bn", *options, "--run-dir=run"], capsys)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("option", "override"),
    [
        ("--lr=0.1", "--optimizer.lr=0.2"),
        ("--seed=3", "--seed_everything=4"),
        ("--epochs=2", "--trainer.max_epochs=1"),
        ("--batch-size=5", "--data.init_args.batch_size=6"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(option, override, capsys):
    said = failure(["fit", "demo/digits-bn", option, override], capsys)
    assert "one option may be given once" in said
    assert said.endswith(f" and {override}\n")


@pytest.mark.parametrize(
    "option", ["logger=false", "enable_progress_bar=false", "default_root_dir=here"]
)
def test_an_option_that_would_be_without_effect_is_refused(option, capsys):
    said = misspelt(["fit", "demo/digits-bn", f"--trainer.{option}"], capsys)
    assert f"--trainer.{option} has no effect" in said


def test_a_run_folder_that_is_a_file_is_called_one(capsys):
    Path("file").touch()
    assert "file is a file" in failure(["fit", "demo/digits-bn", "--run-dir=file"], capsys)


def test_a_seed_of_the_data_alone_is_refused(capsys):
    said = misspelt(["fit", "demo/digits-bn", "--data.seed=3"], capsys)
    assert said.endswith("--data.seed=3 is the seed of the weights too: --seed_everything")


@pytest.mark.parametrize("command", [["fit"], ["fit", "--resume"], ["report"], ["compare"]])
def test_a_name_that_the_system_refuses_is_told_in_one_line(command, capsys):
    said = misspelt([*command, 300 * "a"], capsys)
    assert "File name too long: aaa" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["compare", "demo/digits-bn", "demo/digits-lstm", "--reach=nan"],
            "reach must be a finite",
        ),
        (["demo", "--picture=page.html"], "a picture must end with .png, .svg, .pdf or the like"),
        (["demo", "--picture=folder"], "folder is a folder: name a file"),
        (["demo", "--picture=file/one.png"], "file is not a folder: it is a file"),
        (["fit", "demo/digits-bn", "--run-dir=file/run"], "file is not a folder: it is a file"),
        (["bench", "--out=file"], "file is not a folder"),
        (["bench", "demo/digits-bn", "--out=file"], "file is not a folder"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_done_first(arguments, said, capsys):
    Path("folder").mkdir()
    Path("file").touch()
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert "seed 1" not in shown.out
    assert "processor" not in shown.out
    assert not Path("runs").exists()


def test_a_models_refusal_is_told_in_its_own_words(capsys):
    said = failure(["fit", "demo/digits-bn", "--model.init_args.norm=bacth"], capsys)
    assert said.startswith("rnnorm fit: norm must be None or one of batch, layer, ")
    assert said.endswith("got 'bacth'\n")


def test_demo_wants_a_folder(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is not a folder" in failure(
        ["demo", "--out", str(tmp_path / "file")], capsys
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "demo/digits-bn", f"--seeds={10**20}"], "seeds must be at most 10,000, got 1"),
        (["test", "demo/digits-bn", "--ckpt="], ". is not a whole checkpoint: "),
    ],
)
def test_arguments_of_no_sense_end_in_one_line(words, said, capsys):
    assert said in failure(words, capsys)


def test_a_search_has_no_more_trials_than_a_study_holds(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(
        "base: demo/digits-bn\n"
        f"search: {{trials: {10**20}, space: {{optimizer.lr: {{low: 1e-4, high: 1e-2}}}}}}\n"
    )
    assert "trials must be at most 100,000" in failure(["search", str(path), "--out=out"], capsys)
