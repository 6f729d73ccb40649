"""The options of every command."""

from __future__ import annotations

import argparse

_OVERRIDES = (
    "Any other option goes to LightningCLI and changes the recipe, for example "
    "--trainer.max_epochs=5 --model.init_args.hidden_size=50 --optimizer.init_args.lr=0.002"
)


def command_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and that of each command by its name.

    Returns:
        The parser of the whole command line, and those of its commands.
    """
    parser = argparse.ArgumentParser(
        prog="rnnorm", description="Train normalised recurrent networks.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train LSTM, BN-LSTM and LN-LSTM side by side on data that comes along",
        allow_abbrev=False,
    )
    demo.add_argument("--out", default="runs/demo", help="folder for picture and curves")
    demo.add_argument("--picture", help="another place for the picture")
    demo.add_argument("--seeds", type=int, default=3, help="how many seeds (3)")
    demo.add_argument("--epochs", type=int, help="epochs of each training")

    fit = commands.add_parser(
        "fit",
        help="train a recipe",
        usage="rnnorm fit RECIPE [options] [overrides]\n       rnnorm fit --resume DIR [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    _common(fit)
    fit.add_argument("--run-dir", metavar="DIR", help="a new folder for this run (runs/RECIPE)")
    fit.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    fit.add_argument(
        "--checkpoint-every",
        metavar="N",
        type=int,
        default=100,
        help="steps between checkpoints, besides one after every epoch (100)",
    )

    test = commands.add_parser(
        "test",
        help="measure a trained model on the test set",
        usage="rnnorm test RECIPE --ckpt FILE [options] [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    _common(test)
    test.add_argument("--ckpt", metavar="FILE", required=True, help="a checkpoint of that recipe")
    test.add_argument(
        "--estimate",
        action="store_true",
        help="first take the population statistics anew, exactly, over the training set",
    )
    test.add_argument(
        "--statistics",
        choices=("population", "batch"),
        help="which ones normalise (both, where there are several rows)",
    )
    test.add_argument(
        "--lengths",
        metavar="N",
        type=int,
        nargs="+",
        default=[],
        help="measure on windows of each of these lengths (texts alone)",
    )

    search = commands.add_parser(
        "search",
        help="train a recipe with options drawn at random from the paper's ranges",
        usage="rnnorm search RECIPE --out DIR [options] [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    _common(search)
    search.add_argument("--out", metavar="DIR", required=True, help="the study; it goes on there")
    search.add_argument("--trials", metavar="N", type=int, help="how many (the paper's number)")
    search.add_argument("--epochs", metavar="N", type=int, help="epochs of each trial")
    search.add_argument("--seed", metavar="N", type=int, default=1, help="seed of the draws (1)")

    results = commands.add_parser(
        "results",
        help="write the page of results anew, with more runs",
        allow_abbrev=False,
    )
    results.add_argument("runs", metavar="RUN", nargs="*", help="run folders to record first")
    results.add_argument(
        "--docs", metavar="DIR", default="docs", help="holds results.md and results/ (docs)"
    )

    compare = commands.add_parser(
        "compare",
        help="train recipes with the same data and budget, and compare them",
        usage="rnnorm compare RECIPE|RUN RECIPE|RUN ... [options] [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    compare.add_argument("runs", nargs="+", metavar="RECIPE|RUN", help="recipes and run folders")
    _common(compare)
    compare.add_argument(
        "--out", metavar="DIR", default="runs/compare", help="folder for runs, picture and curves"
    )
    compare.add_argument("--epochs", metavar="N", type=int, help="budget of each training")
    compare.add_argument(
        "--minutes", metavar="M", type=float, help="budget of each, in minutes of training steps"
    )
    compare.add_argument(
        "--seeds", metavar="N", type=int, default=1, help="seeds of each recipe, from 1 on (1)"
    )
    compare.add_argument(
        "--reach",
        metavar="S",
        type=float,
        help="give steps and seconds to this score (the best of the first model)",
    )

    write = commands.add_parser(
        "write",
        help="let a trained language model continue a beginning",
        usage="rnnorm write RECIPE --ckpt FILE [options] [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    _scale(write)
    write.add_argument("--ckpt", metavar="FILE", required=True, help="a checkpoint of that recipe")
    write.add_argument(
        "--begin", metavar="TEXT", nargs="+", default=["the"], help="what to continue (the)"
    )
    write.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=1.0,
        help="divides the scores (1); 0 for the most probable symbol each time",
    )
    write.add_argument(
        "--sentences", metavar="N", type=int, default=1, help="how many of each beginning (1)"
    )
    write.add_argument("--seed", metavar="S", type=int, default=1, help="seed of the draws (1)")
    write.add_argument(
        "--max-length",
        metavar="N",
        type=int,
        default=400,
        help="stop after so many symbols where no end comes (400)",
    )

    bench = commands.add_parser(
        "bench",
        help="time layers beside torch.nn's on this machine, or the training steps of recipes",
        usage="rnnorm bench [options]\n       rnnorm bench RECIPE ... [options] [overrides]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    bench.add_argument("recipes", metavar="RECIPE", nargs="*", help="ratios are to the first")
    _common(bench)
    bench.add_argument("--threads", metavar="N", type=int, help="how many (torch's number)")
    bench.add_argument("--seconds", metavar="S", type=float, help="for each line of the table")
    bench.add_argument(
        "--shape",
        metavar="TxBxIxH",
        action="append",
        help="time steps, rows, input size and units of the layers; may be repeated",
    )
    bench.add_argument("--out", metavar="DIR", help="folder for a table (CSV) and a picture")

    report = commands.add_parser(
        "report",
        help="write one page about runs: curves, table beside the paper, diagnostics",
        allow_abbrev=False,
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    report.add_argument("--data-dir", metavar="DIR", help="folder with the data sets' files")
    report.add_argument(
        "--out", metavar="FILE", default="runs/report.html", help="the page (runs/report.html)"
    )

    commands.add_parser("recipes", help="list the recipes, with the paper's number for each")
    return parser, commands.choices


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data set's files")
    _scale(parser)


def _scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale",
        choices=("paper", "small"),
        help="small ends within minutes on two cores; its numbers are not the paper's",
    )
