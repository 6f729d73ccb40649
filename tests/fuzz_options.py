"""Gives options values of no sense: `python tests/fuzz_options.py --help`.

Each option of a recipe of every task, and of each command that takes a recipe, may be taken, or
refused by an error of one line that names it. All else is a failure: a traceback, an error that
blames something else, seconds or gigabytes. Nothing is trained. A new option is found by itself.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import patch

from lightning.pytorch import Trainer

from rnnorm.experiments.commands.cli import _COMMANDS, _parser, main
from rnnorm.experiments.recipe.options import FIT_SETS, option_values
from rnnorm.experiments.recipe.recipe import read_recipe, recipe_names
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.ddp import refuse_trainer

SECONDS, BYTES = 20, 4 << 30
HUGE = "99999999999999999999"
VALUES = ("null", "-1", "0", HUGE, "1e308", "nan", "inf", ".nan", "-.inf", "", "text", "[1, 2]")
SMALL = ["--model.hidden_size=4", "--trainer.accelerator=cpu"]
RECIPE = "demo/digits-bn"
# what messages call some
ALIASES = {
    "lr": "learning rate",
    "eps": "epsilon",
    "betas": "beta parameter",
    "ckpt": "checkpoint",
    "start": "there is no ",
    "out": "name a file",
}
OWN = f"""base: {RECIPE}
search: {{trials: 2, space: {{optimizer.lr: {{low: 1e-4, high: 1e-2}}}}}}
"""
# what each command is given besides
WORDS = {
    "fit": [RECIPE, "--run-dir=new"],
    "test": [RECIPE, "--ckpt=nothing.ckpt"],
    "write": [RECIPE, "--ckpt=nothing.ckpt"],
    "export": [RECIPE, "--ckpt=nothing.ckpt", "--out=new.onnx"],
    "compare": [RECIPE, "--vary=model.norm=batch,null", "--out=new"],
    "search": ["own.yaml", "--out=new"],
}


class Enough(BaseException):
    """A training would begin here."""


def of_tasks():
    """A recipe of each pair of classes of model and data."""
    found = {}
    for name in (RECIPE, *recipe_names()):
        config = read_recipe(name).config
        found.setdefault((config["model"]["class_path"], config["data"]["class_path"]), name)
    return found.values()


def of_recipe(name):
    """The options of a recipe, and of the classes of schedules that torch has."""
    for option, value in option_values(Experiment(read_recipe(name).config).as_dict()).items():
        again = name != RECIPE and option.startswith("--trainer.")
        if not again and not FIT_SETS.match(option) and option != "--data.seed":
            yield option
            if isinstance(value, dict):
                yield from (f"{option}.{field}" for field in value)


def build(name, option):
    """What comes before the first step, without data that are not there."""
    experiment = Experiment(read_recipe(name).config, [*SMALL, option])
    refuse_trainer(experiment)
    experiment.make_trainer([])
    experiment.model.configure_optimizers()
    if name == RECIPE:
        experiment.set_up("fit")
        next(iter(experiment.datamodule.train_dataloader()))


def cases():
    """For each option a name, and what takes a value of it."""
    for recipe in of_tasks():
        for option in of_recipe(recipe):
            yield (
                f"{recipe} {option}",
                option,
                lambda value, recipe=recipe, option=option: build(recipe, f"{option}={value}"),
            )
    for name, command in _COMMANDS.items():
        # the others begin to measure or to draw at once
        parser = _parser(name, command)
        for action in parser._actions if name in WORDS else ():
            if action.option_strings and action.nargs != 0:
                option = action.option_strings[-1]
                yield (
                    f"{name} {option}",
                    option,
                    lambda value, name=name, option=option: called(name, option, value),
                )


def called(name, option, value):
    """A command with an option; raises what it says."""
    words = WORDS[name]
    words = [word for word in words if not word.startswith(f"{option}=")]
    said = io.StringIO()
    with tempfile.TemporaryDirectory(dir=".") as folder, working_in(folder):
        Path("own.yaml").write_text(OWN)
        status = quietly(said, [name, *words, f"{option}={value}"])
    if status:
        raise ValueError(said.getvalue().strip().splitlines()[-1])


def quietly(said, words):
    """The exit status of a command, whose errors are caught."""
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            return main(words)
        except SystemExit as error:
            return error.code


@contextlib.contextmanager
def working_in(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def stop(*_):
    raise TimeoutError(f"more than {SECONDS} seconds")


def failure(option, take, value):
    """What an option does with a value that it must not do, or None."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        take(value)
    except Enough:
        return None
    except ValueError as error:
        said, last = str(error), option.lstrip("-").rpartition(".")[2]
        told = last.replace("-", "_") in said.replace("-", "_")
        told |= ALIASES.get(last, last) in said or "nothing.ckpt" in said
        return None if told and "\n" not in said else error
    except Exception as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def run():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", metavar="N", type=int, help="only N pairs drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--only", default="", help="only the cases whose name has this")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, stop)
    pairs = [(*case, value) for case in cases() if given.only in case[0] for value in VALUES]
    if given.sample:
        pairs = random.Random(given.seed).sample(pairs, min(given.sample, len(pairs)))
    failures = 0
    training = patch.object(Trainer, "fit", side_effect=Enough)
    with tempfile.TemporaryDirectory() as folder, working_in(folder), training:
        for name, option, take, value in pairs:
            if error := failure(option, take, value):
                failures += 1
                print(f"{name}={value}: {error!r}", flush=True)
    print(f"{len(pairs)} values given")
    sys.exit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    run()
