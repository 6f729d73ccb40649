import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rnnorm
from rnnorm.experiments.commands import cli
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.training.build import Experiment


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(words, capsys):
    assert main(words) == 0
    said = capsys.readouterr().out
    names = ("demo", "fit", "test", "compare", "bench", "report", "recipes", "write", "search")
    assert all(f"  {name} " in said for name in names)
    assert "results" not in said


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_help_names_each_default(name):
    for option in cli._parser(name, cli._COMMANDS[name])._actions:
        default = str(option.default).removesuffix(".0")
        if default not in ("None", "False", "[]", argparse.SUPPRESS):
            assert f"({default}" in option.help, option.option_strings


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rnnorm {rnnorm.__version__}\n"


def test_the_package_is_the_command():
    def run(*words):
        command = [sys.executable, "-m", "rnnorm", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"rnnorm {rnnorm.__version__}\n")
    ran = run("trian")
    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: rnnorm COMMAND")


def test_the_package_names_what_the_command_lacks():
    code = (
        "import runpy, sys\nfrom importlib import util\nfind = util.find_spec\n"
        "util.find_spec = lambda name: find(name) if name.startswith('rnnorm') else None\n"
        "sys.argv = ['rnnorm', 'fit', 'demo']\nrunpy.run_module('rnnorm', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert 'pip install ".[experiments]"' in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("words", [["--help"], ["recipes"]])
def test_a_reader_who_leaves_is_no_failure(words):
    code = f"import sys\nfrom rnnorm.experiments.commands.cli import main\nsys.exit(main({words}))"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as run:
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize(
    ("where", "status", "said"),
    [(">&-", 0, ""), (">/dev/full", 1, "No space left on device\n")],
)
def test_output_that_is_closed_or_full_has_no_traceback(where, status, said):
    code = "import sys; from rnnorm.experiments.commands.cli import main; sys.exit(main())"
    command = ["sh", "-c", f'exec "$0" "$@" {where}', sys.executable, "-c", code, "--version"]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == status
    assert ran.stderr.endswith(said)
    assert "Traceback" not in ran.stderr


def test_help_recipes_and_usage_errors_import_neither_torch_nor_lightning():
    code = """
import sys
from rnnorm.experiments.commands.cli import _COMMANDS, main
for words in (
    [],
    *([name, "--help"] for name in _COMMANDS),
    ["recipes", "ptb"],
    ["fly"],
    ["fit", "nothing"],
    ["fit", "demo/digits-bn", "--epoch=3"],
    ["test", "runs/nothing"],
    ["test", "demo/digits-bn"],
    ["report", "demo/digits-bn"],
    ["compare", "demo/digits-bn", "runs/nothing"],
    ["search", "demo/digits-bn"],
):
    try:
        main(words)
    except SystemExit:
        pass
    heavy = {"torch", "lightning", "matplotlib", "sklearn", "torchmetrics", "jsonargparse"}
    assert not heavy & sys.modules.keys(), (words, heavy & sys.modules.keys())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "command",
    [["demo"], ["bench"], ["recipes"], ["fit", "demo/digits-bn"], ["test", "x", "--ckpt", "y"]],
)
def test_without_the_extra_the_answer_says_how_to_get_it(command, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(command) == 1
    assert 'pip install ".[experiments]"' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fit", "check", "recipes"])
def test_help_needs_no_extra(name):
    code = (
        "import sys\nfor name in ('yaml', 'numpy', 'torch'): sys.modules[name] = None\n"
        "from importlib import util\nutil.find_spec = lambda name: None\n"
        "from rnnorm.experiments.commands import cli\n"
        f"sys.exit(cli._run(['{name}', '--help']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert f"rnnorm {name}" in run.stdout


def test_help_of_a_broken_recipe_says_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text("model: [")
    assert main(["fit", str(path), "--help"]) == 1
    said = capsys.readouterr()
    assert "--resume" in said.out
    assert f"rnnorm fit: {path} is not YAML" in said.err


@pytest.mark.parametrize("name", ["numpy", "tqdm", "lightning"])
def test_a_single_missing_package_is_named(name, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == name else real(n))
    assert main(["fit", "demo/digits-bn"]) == 1
    assert f"rnnorm fit needs {name}: pip" in capsys.readouterr().err


def failure(arguments, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"rnnorm {arguments[0]}: ")
    assert "Traceback" not in said
    return said


def misspelt(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: rnnorm ")
    return said.splitlines()[-1]


def test_a_misspelt_recipe_is_answered_with_the_nearest(capsys):
    said = misspelt(["fit", "pmnist-bn"], capsys)
    assert "no recipe is called 'pmnist-bn': the nearest are" in said
    assert "cooijmans2016/pmnist-bn" in said
    assert "'coijmans2016/pmnist-bn'" in misspelt(["fit", "coijmans2016/pmnist-bn"], capsys)


@pytest.mark.parametrize("command", ["fit", "test", "compare", "write"])
def test_a_path_that_is_none_is_called_one(command, capsys):
    said = misspelt([command, "runs/cooijmans2016-pmnist-bn"], capsys)
    assert said.endswith("there is no file or folder runs/cooijmans2016-pmnist-bn")


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
    assert near in said.partition(": the nearest are ")[2].split(", ")


def test_a_callbacks_option_with_a_value_of_another_type_is_not_called_unknown(capsys):
    said = misspelt(["fit", "demo/digits-bn", "--trainer.callbacks.batch_size=many"], capsys)
    assert said.endswith("Parser key \"batch_size\": Expected a <class 'int'>")
    said = misspelt(["fit", "demo/digits-bn", "--trainer.callbacks.batch_siz=3"], capsys)
    assert said.endswith("no option is called --trainer.callbacks.batch_siz")


def test_an_option_of_the_norm_that_is_not_yaml_is_named(capsys):
    said = misspelt(["fit", "demo/digits-bn", "--model.norm_options.gamma=["], capsys)
    assert "--model.norm_options.gamma=[ has no value that YAML reads" in said


def test_help_of_a_recipe_lists_what_it_takes(capsys):
    assert main(["fit", "demo/digits-bn", "--help"]) == 0
    lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert {"--model.hidden_size=100", "--trainer.max_epochs=25", "--model.norm=batch"} <= lines
    assert {"--optimizer.lr=0.001", "--data.batch_size=100", "--seed_everything=1"} <= lines
    assert "--data.seed=1" not in lines
    # nor what fit refuses
    assert not any(line.startswith("--trainer.logger") for line in lines)


def test_help_of_a_recipe_lists_the_fields_that_it_gives_a_norm(capsys):
    assert main(["fit", "cooijmans2016/pmnist-bn", "--help"]) == 0
    assert "\n  --model.norm_options.momentum=0.01\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["test", "export", "write"])
def test_help_has_no_example_that_is_refused_for_a_run(name):
    said = " ".join(cli._parser(name, cli._COMMANDS[name]).format_help().split())
    assert "but for a run those of training, for example --data.eval_batch_size=50" in said


def test_missing_files(capsys, tmp_path):
    said = failure(["fit", "cooijmans2016/pmnist-bn", "--data-dir", str(tmp_path)], capsys)
    assert "train-images-idx3-ubyte.gz" in said
    assert "https://" in said


def test_existing_run_folder(capsys, tmp_path):
    said = failure(["fit", "demo/digits-bn", "--run-dir", str(tmp_path)], capsys)
    assert f"run folder {tmp_path} exists" in said


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


def test_an_interrupt_while_the_command_is_read_is_no_traceback(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.util.find_spec", interrupted)
    assert main(["fit", "demo/digits-bn"]) == 130


@pytest.mark.parametrize("given", ["1", "1.0", "0.5", "null"])
def test_a_limit_of_minibatches_is_a_number_of_them_or_a_share(given):
    names = [f"limit_{part}_batches" for part in ("train", "val", "test")]
    limits = [f"--trainer.{name}={given}" for name in names]
    experiment = Experiment(read_recipe("demo/digits-bn").config, limits)
    wanted = yaml.safe_load(given)
    for config in (experiment.config["trainer"], experiment.as_dict()["trainer"]):
        for found in (config[name] for name in names):
            assert found == wanted
            assert type(found) is type(wanted)


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


def test_closed_streams_lead_nowhere():
    code = (
        "import sys; from rnnorm.experiments.commands.cli import _open_streams; _open_streams()\n"
        "streams = sys.stdin, sys.stdout, sys.stderr\n"
        "print(sys.stdin.read(), file=sys.stderr, flush=True)\n"
        "sys.exit([stream.fileno() for stream in streams] != [0, 1, 2])"
    )
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*shell, sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("words", [["search", "--help"], ["recipes"]])
def test_output_that_knows_no_dash_gets_another(words):
    code = "import sys; from rnnorm.experiments.commands.cli import main; sys.exit(main())"
    narrow = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], env=narrow, capture_output=True, check=False
    )
    assert ran.returncode == 0
    assert ran.stderr == b""
    assert b"\\u20" in ran.stdout


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
        (["bench", "--out=file"], "file is no folder"),
        (["bench", "demo/digits-bn", "--out=file"], "file is no folder"),
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
    assert f"{tmp_path / 'file'} is no folder" in failure(
        ["demo", "--out", str(tmp_path / "file")], capsys
    )


def test_fit_then_test_knows_everything_from_the_run(capsys, tiny):
    assert main(["fit", "--run-dir", "run", "demo/digits-bn", *tiny]) == 0
    said = capsys.readouterr().out
    assert said.startswith("demo/digits-bn, hidden_size=8, shrink=2, train_size=130, batch_size=20")
    assert "epoch 3/3, 21 steps" in said
    assert "best validation accuracy " in said
    assert said.endswith("next: rnnorm test run\n")
    assert main(["test", "run"]) == 0
    first = capsys.readouterr().out
    assert "test accuracy " in first
    assert " %  population statistics" in first
    assert main(["test", "run", "--ckpt", "run/checkpoints/best.ckpt"]) == 0
    assert capsys.readouterr().out == first
    assert main(["test", "demo/digits-bn", "--ckpt", "run/checkpoints/best.ckpt"]) == 0
    assert capsys.readouterr().out == first
    assert main(["test", "run", "--estimate"]) == 0
    kept = [m for m in read_measurements("run") if m.statistics == "population"]
    # too near for what is printed
    assert len({m.metrics["test/loss"] for m in kept}) == len({m.estimated for m in kept}) == 2


def test_the_next_command_is_of_the_run_whatever_it_is_called(capsys, tiny):
    short = [*tiny, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1"]
    for name in ("-x", "a b's $(x)"):
        assert main(["fit", "demo/digits-bn", f"--run-dir={name}", *short]) == 0
        (following,) = re.findall(r"^next: rnnorm (.*)$", capsys.readouterr().out, re.MULTILINE)
        assert main(shlex.split(following)) == 0
        assert (Path(name) / "tests.json").is_file()


def test_fit_takes_the_usual_options(capsys, tiny):
    given = ["--epochs", "1", "--lr", "0.5", "--batch-size", "60", "--seed", "3"]
    assert main(["fit", "demo/digits-lstm", "--run-dir", "run", *tiny[1:5], *given]) == 0
    assert "epoch 1/1, 3 steps" in capsys.readouterr().out
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["optimizer"]["init_args"]["lr"] == 0.5
    assert config["data"]["init_args"]["batch_size"] == 60
    assert config["seed_everything"] == config["data"]["init_args"]["seed"] == 3
    assert "epochs must be at least 1" in failure(["fit", "demo/digits-bn", "--epochs=0"], capsys)


def test_a_run_is_no_recipe(capsys, tiny):
    assert main(["fit", "demo/digits-lstm", "--run-dir", "run", *tiny[1:], "--epochs", "1"]) == 0
    capsys.readouterr()
    assert "go on with it by rnnorm fit --resume run" in misspelt(["fit", "run"], capsys)


def test_an_option_of_the_norm_can_be_none(tiny):
    given = ["--model.norm_options.cell=null", "--model.norm_options.gamma=0.5", "--epochs", "1"]
    assert main(["fit", "demo/digits-bn", "--run-dir", "run", *tiny[1:], *given]) == 0
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["model"]["init_args"]["norm_options"] == {"cell": None, "gamma": 0.5}


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "demo/digits-bn", f"--seeds={10**20}"], "seeds must be at most 10,000, got 1"),
        (["test", "demo/digits-bn", "--ckpt="], ". is no whole checkpoint: "),
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
