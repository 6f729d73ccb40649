"""Help names commands, options and defaults, and needs neither torch nor an extra."""

import argparse
import subprocess
import sys

import pytest

from rnnorm.experiments.commands import cli
from rnnorm.experiments.commands.cli import main


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


def test_help_recipes_and_usage_errors_import_neither_torch_nor_lightning():
    code = """
import sys
from rnnorm.experiments.commands.cli import _COMMANDS, main
for words in (
    [],
    *([name, "--help"] for name in _COMMANDS),
    ["recipes", "ptb"],
    ["fly"],
    ["fit"],
    ["fit", "nothing"],
    ["fit", "demo/digits-bn", "--epoch=3"],
    ["test", "runs/nothing"],
    ["test", "demo/digits-bn"],
    ["report", "demo/digits-bn"],
    ["compare", "demo/digits-bn", "runs/nothing"],
    ["search", "demo/digits-bn"],
    ["bench", "--scale=small"],
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
    assert "--data.eval_batch_size=50" in said
    assert ("--trainer.accelerator=cpu" in said) == (name == "test")
