"""Options that several commands share. Each is called as the argument of the function it is for."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable


def overrides(
    parser: ArgumentParser,
    such_as: str = "--trainer.max_epochs=5 --model.hidden_size=50 --optimizer.lr=0.002",
    but: str = "",
) -> None:
    """Let the command take the options of recipes.

    Args:
        parser: the command's.
        such_as: an example of them.
        but: which ones are refused.
    """
    parser.set_defaults(overrides=[])
    parser.epilog = (
        f"Any option of the recipe can be given too{but}, for example {such_as}; "
        "rnnorm fit RECIPE --help lists them."
    )


def overrides_of_a_run(parser: ArgumentParser) -> None:
    """The same for a command that uses a trained model."""
    but = ", but for a run those of training"
    overrides(parser, "--data.eval_batch_size=50 --trainer.accelerator=cpu", but)


def recipe_name(word: str) -> str:
    """A recipe, for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown_recipe

    return _checked(refuse_unknown_recipe, word)


def recipe_or_run(word: str) -> str:
    """A recipe, a run folder or a folder of them, for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown

    return _checked(refuse_unknown, word)


def run_folder(word: str) -> str:
    """A run folder or a folder of them, for ``type=``."""
    from rnnorm.experiments.training.run_names import runs_in

    return _checked(runs_in, word)


def trained(parser: ArgumentParser) -> None:
    """The model that a command uses."""
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
    """Where the data are.

    Args:
        parser: the command's.
        without: what is so without the option.
    """
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"folder with the data set's files; {without}"
    )


def scale(parser: ArgumentParser) -> None:
    """The paper's scale or a small one."""
    parser.add_argument(
        "--scale",
        choices=("paper", "small"),
        help="small ends within minutes on two cores; its numbers are not the paper's "
        "(paper, or the run's own)",
    )


def trust(parser: ArgumentParser) -> None:
    """Whether recipes and run folders may name classes of any package."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let recipes and run folders name classes of other packages than rnnorm, torch and "
        "lightning, whose code runs",
    )


def training(parser: ArgumentParser) -> None:
    """What is changed most often in a training."""
    parser.add_argument(
        "--epochs", metavar="N", type=int, help="passes over the training data (the recipe's)"
    )
    parser.add_argument("--lr", metavar="X", type=float, help="learning rate (the recipe's)")
    parser.add_argument(
        "--batch-size", metavar="N", type=int, help="rows of a training minibatch (the recipe's)"
    )


def draws(parser: ArgumentParser) -> None:
    """The seed of random draws."""
    parser.add_argument("--seed", metavar="N", type=seed, default=1, help="seed of the draws (1)")


def seed(word: str) -> int:
    """A seed that torch takes, for ``type=``."""
    number = int(word)
    if not 0 <= number < 2**64:
        raise ArgumentTypeError(f"it must be from 0 to {2**64 - 1}, got {word}")
    return number


def message(error: Exception) -> str:
    """What an error says, without the number of one of the system's."""
    if isinstance(error, OSError) and error.strerror:
        known = error.filename is None or str(error.filename) in error.strerror
        return error.strerror if known else f"{error.strerror}: {error.filename}"
    return str(error)


def _checked(refuse: Callable[[str], object], word: str) -> str:
    try:
        refuse(word)
    except (ValueError, OSError) as error:
        # a name may be too long, or a folder another user's
        raise ArgumentTypeError(message(error)) from None
    return word
