"""Options that several commands share, named after the arguments of the functions they call."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable


def overrides(
    parser: ArgumentParser,
    such_as: str = "--trainer.max_epochs=5 --model.hidden_size=50 --optimizer.lr=0.002",
    but: str = "",
) -> None:
    """Let a command take the options of recipes.

    Args:
        parser: the command's parser.
        such_as: examples of such options.
        but: the clause that names the options it refuses.
    """
    parser.set_defaults(overrides=[])
    parser.epilog = (
        f"Any option of the recipe can be given too{but}, for example {such_as}; "
        "rnnorm fit RECIPE --help lists them."
    )


def overrides_of_a_run(parser: ArgumentParser) -> None:
    """Let a command that uses a trained model take the options of its recipe."""
    but = ", but for a run those of training"
    overrides(parser, "--data.eval_batch_size=50 --trainer.accelerator=cpu", but)


def recipe_name(word: str) -> str:
    """Check that a word names a recipe, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown_recipe

    return _checked(refuse_unknown_recipe, word)


def recipe_or_run(word: str) -> str:
    """Check that a word names a recipe, a run or a folder of runs, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown

    return _checked(refuse_unknown, word)


def run_folder(word: str) -> str:
    """Check that a word names a run or a folder of runs, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import runs_in

    return _checked(runs_in, word)


def trained(parser: ArgumentParser) -> None:
    """Add the arguments that name a trained model."""
    parser.add_argument(
        "run", metavar="RUN", type=recipe_or_run, help="its run folder; or a recipe, with --ckpt"
    )
    parser.add_argument(
        "--ckpt",
        metavar="FILE",
        dest="checkpoint",
        help="another checkpoint than the run's best one",
    )


def data_dir(parser: ArgumentParser, without: str = "MNIST is downloaded without it") -> None:
    """Add the option that names the folder of the data.

    Args:
        parser: the command's parser.
        without: what happens without the option, for its help.
    """
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"folder with the data set's files; {without}"
    )


def scale(parser: ArgumentParser) -> None:
    """Add the option that chooses the paper's scale or a small one."""
    parser.add_argument(
        "--scale",
        choices=("paper", "small"),
        help="small ends within minutes on two cores; its numbers are not the paper's "
        "(paper, or the run's own)",
    )


def trust(parser: ArgumentParser) -> None:
    """Add the option that lets recipes and run folders name classes of any package."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let recipes and run folders name classes of other packages than rnnorm, torch and "
        "lightning, whose code runs",
    )


def training(parser: ArgumentParser) -> None:
    """Add the options of a training that are changed most often."""
    parser.add_argument(
        "--epochs", metavar="N", type=int, help="passes over the training data (the recipe's)"
    )
    parser.add_argument("--lr", metavar="X", type=float, help="learning rate (the recipe's)")
    parser.add_argument(
        "--batch-size", metavar="N", type=int, help="rows of a training minibatch (the recipe's)"
    )


def draws(parser: ArgumentParser) -> None:
    """Add the option that sets the seed of random draws."""
    parser.add_argument("--seed", metavar="N", type=seed, default=1, help="seed of the draws (1)")


def seed(word: str) -> int:
    """Check that torch accepts a seed, and return it; for ``type=``.

    Raises:
        ArgumentTypeError: if the seed is not from 0 to 2**64 - 1.
    """
    number = int(word)
    if not 0 <= number < 2**64:
        raise ArgumentTypeError(f"it must be from 0 to {2**64 - 1}, got {word}")
    return number


def message(error: Exception) -> str:
    """Return the message of an error, without the error number of the system."""
    if isinstance(error, OSError) and error.strerror:
        known = error.filename is None or str(error.filename) in error.strerror
        return error.strerror if known else f"{error.strerror}: {error.filename}"
    return str(error)


def _checked(refuse: Callable[[str], object], word: str) -> str:
    """Return a word, or turn its refusal into an error of argparse.

    Raises:
        ArgumentTypeError: if ``refuse`` raises an error.
    """
    try:
        refuse(word)
    except (ValueError, OSError) as error:
        # OSError: a name is too long, or a folder belongs to another user
        raise ArgumentTypeError(message(error)) from None
    return word
