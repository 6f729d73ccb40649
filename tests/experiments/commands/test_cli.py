import importlib.util
import subprocess
import sys

import pytest

from rnnorm.experiments.commands.cli import main


def test_help_lists_the_commands_that_work(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    names = ("demo", "fit", "test", "compare", "bench", "report", "recipes")
    assert all(f"    {name} " in said for name in names)


def test_help_needs_no_extra():
    code = (
        "import sys; from rnnorm.experiments.commands.cli import main; main([])\n"
        "heavy = {'lightning', 'matplotlib', 'sklearn', 'torchmetrics', 'jsonargparse', 'yaml'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "command",
    [["demo"], ["bench"], ["recipes"], ["fit", "demo/digits-bn"], ["test", "x", "--ckpt", "y"]],
)
def test_without_the_extra_the_answer_says_how_to_get_it(command, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(command) == 1
    assert 'pip install "rnnorm[experiments]"' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["numpy", "tqdm", "lightning"])
def test_a_single_missing_package_is_named(name, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == name else real(n))
    assert main(["fit", "demo/digits-bn"]) == 1
    assert f"rnnorm fit needs {name}: pip" in capsys.readouterr().err


def test_recipes(capsys):
    assert main(["recipes"]) == 0
    said = capsys.readouterr().out
    assert "cooijmans2016/pmnist-bn " in said
    assert "95.4" in said


def failure(arguments, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"rnnorm {arguments[0]}: ")
    assert "Traceback" not in said
    return said


def test_unknown_recipe(capsys):
    assert "cooijmans2016/pmnist-bn" in failure(["fit", "pmnist-bn"], capsys)


def test_missing_files(capsys, tmp_path):
    said = failure(["fit", "cooijmans2016/pmnist-bn", "--data-dir", str(tmp_path)], capsys)
    assert "train-images-idx3-ubyte.gz" in said
    assert "https://" in said


def test_existing_run_folder(capsys, tmp_path):
    said = failure(["fit", "demo/digits-bn", "--run-dir", str(tmp_path)], capsys)
    assert f"run folder {tmp_path} exists" in said


def test_missing_recipe(capsys):
    assert "needs a recipe" in failure(["fit"], capsys)
    assert "name the recipe" in failure(["test", "--ckpt", "x"], capsys)


def test_missing_checkpoint(capsys):
    assert "there is no checkpoint none.ckpt" in failure(
        ["test", "demo/digits-bn", "--ckpt", "none.ckpt"], capsys
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["fit", "demo/digits-bn", "--epochs=3"],
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


@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_recipe_in_the_wrong_place_is_told_the_right_one(command, capsys):
    ckpt = ["--ckpt", "x"] if command == "test" else []
    with pytest.raises(SystemExit) as error:
        main([command, "--scale", "small", "demo/digits-bn", *ckpt])
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: rnnorm {command} RECIPE")
    assert f"the recipe stands directly behind {command}: rnnorm {command} demo/digits-bn" in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model.init_args.hidden_size=many", "\"hidden_size\": Expected a <class 'int'>."),
        ("--model.init_args.hiden=8", "Option 'hiden' is not accepted"),
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


def test_a_models_refusal_is_told_in_its_own_words(capsys):
    said = failure(["fit", "demo/digits-bn", "--model.init_args.norm=bacth"], capsys)
    assert said.startswith("rnnorm fit: norm must be None or one of batch, layer, ")
    assert said.endswith("got 'bacth'\n")


def test_demo_wants_a_folder(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is no folder" in failure(
        ["demo", "--out", str(tmp_path / "file")], capsys
    )


def test_fit_then_test(capsys, tiny):
    assert main(["fit", "demo/digits-bn", "--run-dir", "run", *tiny]) == 0
    said = capsys.readouterr().out
    assert "epoch 3/3, 21 steps" in said
    assert "best val/accuracy 0." in said
    assert "next: rnnorm test demo/digits-bn --ckpt run/checkpoints/best.ckpt" in said
    command = ["test", "demo/digits-bn", "--ckpt", "run/checkpoints/best.ckpt"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "test/accuracy  0." in first
    assert main([*command, "--estimate"]) == 0
    assert capsys.readouterr().out != first


def test_another_model_than_the_checkpoints_is_refused(capsys, tiny):
    assert main(["fit", "demo/digits-bn", "--run-dir", "run", *tiny]) == 0
    command = ["test", "demo/digits-bn", "--ckpt", "run/checkpoints/last.ckpt"]
    said = failure([*command, "--model.init_args.hidden_size=9"], capsys)
    assert "hidden_size was 8 and is 9" in said
    said = failure([*command, "--data.init_args.shrink=1"], capsys)
    assert "shrink was 2 and is 1" in said
    said = failure(["test", "demo/digits-ln", *command[2:]], capsys)
    assert "is of recipe demo/digits-bn, not of demo/digits-ln" in said


def test_a_divergence_is_told_in_one_message(capsys, tiny):
    arguments = ["fit", "demo/digits-lstm", *tiny, "--optimizer.init_args.lr=1e38"]
    assert "training diverged at step" in failure(arguments, capsys)


def test_an_option_value_is_not_taken_for_a_recipe(capsys, tiny):
    assert main(["fit", "demo/digits-bn", "--run-dir", "run", *tiny]) == 0
    assert main(["fit", "--resume", "run", "--trainer.max_epochs", "4"]) == 0
    assert "epoch 4/4" in capsys.readouterr().out
