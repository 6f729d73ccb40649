"""The ``rnnorm`` command. Everything it does is a function that can be called from Python."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from rnnorm.experiments.commands.parser import command_parser

_NEEDS = (
    "jinja2",
    "jsonargparse",
    "kaldi_native_fbank",
    "kaldiio",
    "lightning",
    "matplotlib",
    "numpy",
    "optuna",
    "pooch",
    "sklearn",
    "soundfile",
    "tensorboard",
    "torchmetrics",
    "tqdm",
    "yaml",
)
_OF_A_RECIPE = ("fit", "test", "search", "write")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: those of the process by default.

    Returns:
        The exit status: 0, 1 if the command failed, 2 if it was misspelt.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = command_parser()
    # a recipe stands directly behind the command: a later value may belong to an override
    recipe = (
        given.pop(1) if given[:1] and given[0] in _OF_A_RECIPE and _is_value(given[1:2]) else None
    )
    options, overrides = parser.parse_known_args(given)
    if stray := _stray(overrides, options.command):
        command = options.command
        # a recipe that was found stands where it should: this is some other word
        if command in _OF_A_RECIPE and recipe is None and _is_value([stray]):
            commands[command].error(
                f"the recipe stands directly behind {command}: rnnorm {command} {stray} ..."
            )
        commands.get(command, parser).error(f"unrecognized argument {stray!r}")
    if options.command is None:
        parser.print_help()
        return 0
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"rnnorm {options.command} needs {', '.join(missing)}: "
            'pip install "rnnorm[experiments]"',
            file=sys.stderr,
        )
        return 1
    from rnnorm.experiments.training.recipe import OverrideError

    try:
        _COMMANDS[options.command](options, recipe, overrides)
    except OverrideError as error:
        commands[options.command].error(str(error))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"rnnorm {options.command}: {_message(error)}", file=sys.stderr)
        return 1
    return 0


def _demo(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.commands.demo import demo

    demo(
        options.out,
        picture=options.picture,
        seeds=options.seeds,
        epochs=options.epochs,
        overrides=overrides,
    )


def _fit(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.training.fit import fit

    run = fit(
        recipe,
        data_dir=options.data_dir,
        run_dir=options.run_dir,
        resume=options.resume,
        scale=options.scale,
        every_n_steps=options.checkpoint_every,
        overrides=overrides,
    )
    print(run.summary())


def _test(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.measuring.measure import measure

    if recipe is None:
        raise ValueError("name the recipe: rnnorm test RECIPE --ckpt FILE")
    measured = measure(
        recipe,
        options.ckpt,
        data_dir=options.data_dir,
        scale=options.scale,
        estimate=options.estimate,
        statistics=options.statistics,
        lengths=options.lengths,
        overrides=overrides,
    )
    print("\n".join(map(str, measured)))


def _search(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.searching.search import search

    if recipe is None:
        raise ValueError("name the recipe: rnnorm search RECIPE --out DIR")
    found = search(
        recipe,
        options.out,
        data_dir=options.data_dir,
        scale=options.scale,
        trials=options.trials,
        epochs=options.epochs,
        seed=options.seed,
        overrides=overrides,
    )
    print(found.table())


def _results(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.reporting.results import results

    print(results(options.runs, docs=options.docs))


def _compare(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.comparing.compare import compare

    compare(
        options.runs,
        options.out,
        epochs=options.epochs,
        minutes=options.minutes,
        seeds=options.seeds,
        scale=options.scale or "paper",
        data_dir=options.data_dir,
        reach=options.reach,
        overrides=overrides,
    )


def _write(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.measuring.writing import write

    if recipe is None:
        raise ValueError("name the recipe: rnnorm write RECIPE --ckpt FILE")
    for text in write(
        recipe,
        options.ckpt,
        options.begin,
        temperature=options.temperature,
        sentences=options.sentences,
        seed=options.seed,
        max_length=options.max_length,
        scale=options.scale,
        overrides=overrides,
    ):
        print(text)


def _bench(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    given = {name: getattr(options, name) for name in ("threads", "seconds", "out")}
    given = {name: value for name, value in given.items() if value is not None}
    if options.recipes:
        from rnnorm.experiments.bench.recipes import bench_recipes

        if options.shape:
            raise ValueError("--shape is of layers: name no recipe")
        data = {"data_dir": options.data_dir, "scale": options.scale, "overrides": overrides}
        bench_recipes(options.recipes, **data, **given)
        return
    from rnnorm.experiments.bench.layers import read_shape
    from rnnorm.experiments.bench.machine import SHAPES, bench

    if overrides or options.data_dir or options.scale:
        raise ValueError("--data-dir, --scale and overrides are of recipes: name one")
    bench([read_shape(text) for text in options.shape or ()] or SHAPES, **given)


def _report(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.reporting.report import report

    print(f"page: {report(options.runs, options.out, data_dir=options.data_dir)}")


def _recipes(options: argparse.Namespace, recipe: str | None, overrides: list[str]) -> None:
    from rnnorm.experiments.training.recipe import recipes_table

    print(recipes_table())


_COMMANDS = {
    "demo": _demo,
    "fit": _fit,
    "test": _test,
    "search": _search,
    "compare": _compare,
    "report": _report,
    "results": _results,
    "write": _write,
    "bench": _bench,
    "recipes": _recipes,
}


def _is_value(word: list[str]) -> bool:
    return bool(word) and not word[0].startswith("-")


def _stray(overrides: list[str], command: str | None) -> str | None:
    """The first argument that is neither an option of ours nor looks like one of LightningCLI."""
    if not overrides:
        return None
    first = overrides[0]
    takes = command in ("demo", "bench", "compare", *_OF_A_RECIPE)
    known = first.startswith(("--trainer.", "--model.", "--data.", "--optimizer", "--lr_scheduler"))
    return None if takes and (known or first.startswith("--seed_everything")) else first


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        known = error.filename is None or str(error.filename) in error.strerror
        return error.strerror if known else f"{error.strerror}: {error.filename}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
