"""The command: its package, its streams, and what follows from one run to the next."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from refusals import failure, misspelt

import rnnorm
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.training.build import Experiment


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


@pytest.mark.parametrize(
    "command",
    [["demo"], ["bench"], ["recipes"], ["fit", "demo/digits-bn"], ["test", "x", "--ckpt", "y"]],
)
def test_without_the_extra_the_answer_says_how_to_get_it(command, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(command) == 1
    assert 'pip install ".[experiments]"' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["numpy", "tqdm", "lightning"])
def test_a_single_missing_package_is_named(name, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == name else real(n))
    assert main(["fit", "demo/digits-bn"]) == 1
    assert f"rnnorm fit needs {name}: pip" in capsys.readouterr().err


def test_an_interrupt_while_the_command_is_read_is_no_traceback(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.util.find_spec", interrupted)
    assert main(["fit", "demo/digits-bn"]) == 130


@pytest.mark.skipif(os.name != "posix", reason="no process ends by a signal")
@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["check", "--device=cuda"], signal.SIGINT),
        (["fit", "demo/digits-bn", "--help"], signal.SIGINT),
        (["check", "--device=cuda"], signal.SIGTERM),
    ],
)
def test_a_signal_while_torch_is_imported_ends_the_process(words, number):
    code = (
        "import signal, sys\nfrom rnnorm.experiments.commands.cli import console\n"
        "class Finder:\n    def find_spec(name, *_):\n"
        f"        if name == 'numpy.linalg':\n            signal.raise_signal({number:d})\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"sys.argv = ['rnnorm', *{words}]\nsys.exit(console())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-number, "")


@pytest.mark.skipif(os.name != "posix", reason="no process ends by a signal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_exit_is_no_traceback(number):
    code = (
        f"import atexit, runpy, signal, sys\natexit.register(signal.raise_signal, {number:d})\n"
        "sys.argv = ['rnnorm', '--version']\nrunpy.run_module('rnnorm', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-number, "")
    assert ran.stdout == f"rnnorm {rnnorm.__version__}\n"


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM ends a process at once")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_file_is_written_leaves_no_part_of_it(number):
    code = (
        "import os, pathlib, signal, sys\nfrom rnnorm.experiments.commands import cli, recipes\n"
        "from rnnorm.experiments.writing import write_whole\n"
        f"os.fsync = lambda _: signal.raise_signal({number:d})\n"
        "recipes.run = lambda **_: write_whole(pathlib.Path('page'), b'text')\n"
        "cli._RESUMABLE = ('recipes',)\n"
        "sys.argv = ['rnnorm', 'recipes']\nsys.exit(cli.console())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (128 + number, "")
    assert ran.stdout == "resume with: rnnorm recipes\n"
    assert not [*Path().iterdir()]


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
    assert "resume it by rnnorm fit --resume run" in misspelt(["fit", "run"], capsys)


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
