"""Build the model, data, optimiser and trainer of a recipe and its overrides."""

from __future__ import annotations

import logging
import re
import warnings
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from rnnorm.experiments.console import shorten
from rnnorm.experiments.private_apis import set_types, yaml_functions
from rnnorm.experiments.recipe.options import (
    FIT_SETS,
    option_values,
    why_refused,
    with_single_options,
)
from rnnorm.experiments.recipe.recipe import OverrideError, YamlLoader, dump_yaml, read_recipe
from rnnorm.experiments.recipe.trust import UntrustedError, only_trusted_classes
from rnnorm.experiments.recipe.values import check_values
from rnnorm.experiments.training.checkpoint import WholeFiles
from rnnorm.experiments.training.clock import StopAfter

#: data arguments that name a user's own files, in ``data_dir`` if it is given
FILES = ("file", "source", "target")


class OptimizerError(ValueError):
    """The recipe's optimiser or schedule refuses an argument."""


class Experiment(LightningCLI):
    """The checked model, data and configuration of a recipe; :meth:`make_trainer` follows.

    Args:
        config: the configuration that LightningCLI reads.
        overrides: command line options of LightningCLI that override ``config``, such as
            ``"--trainer.max_epochs=3"``.

    Attributes:
        model: the model; its ``configure_optimizers`` is the recipe's optimiser.
        datamodule: the data.

    Raises:
        OverrideError: if the recipe does not know an option, or refuses its type.
        UntrustedError: if a class is of another package than rnnorm, torch and lightning, and its
            code is not trusted (:mod:`rnnorm.experiments.recipe.trust`).
        ValueError: if the model or the data refuse an argument.
    """

    model: LightningModule
    datamodule: LightningDataModule

    def __init__(self, config: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # profilers and verbose callbacks report at this level
        for name in ("profilers", "callbacks"):
            logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
        try:
            with _jsonargparse(), only_trusted_classes():
                super().__init__(
                    subclass_mode_model=True,
                    subclass_mode_data=True,
                    save_config_callback=None,
                    seed_everything_default=1,
                    parser_kwargs={
                        "prog": "rnnorm",
                        "exit_on_error": False,
                        "allow_abbrev": False,
                    },
                    args=["--config", *with_single_options(config, overrides)],
                    run=False,
                    load_from_checkpoint_support=False,
                )
        except (UntrustedError, OptimizerError):
            raise
        # torch raises RuntimeError for sizes that no memory holds
        except (ArgumentError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            kind = OverrideError if isinstance(error, ArgumentError) else ValueError
            raise kind(
                why_refused(str(error), overrides, lambda: Experiment(config).as_dict())
            ) from None

    def instantiate_classes(self) -> None:
        """Make the data and the model with its optimiser; an error of the optimiser names it."""
        try:
            super().instantiate_classes()
        # torch's optimisers and schedules raise any of these for bad arguments
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if not hasattr(self, "model"):
                raise
            raise OptimizerError(
                f"optimizer or lr_scheduler cannot be made: {shorten(error)}"
            ) from error

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the seed of the data to the global seed, and let minibatch limits be integers."""
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        # with float first, jsonargparse reads 1 as the fraction 1.0: all minibatches
        set_types(parser, _LIMIT, int | float | None)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse and check ``args`` alone; LightningCLI would warn about the process's arguments."""
        self.config = parser.parse_args(args)
        if isinstance(seed := self.config["seed_everything"], bool):
            raise ValueError(f"seed_everything must be a number, got {str(seed).lower()}")
        if seed is not None and not 0 <= seed < 2**32:
            raise ValueError(f"seed_everything must be from 0 to {2**32 - 1}, got {seed}")
        if self.config["data"] is None:
            raise ValueError("data must name the class of a data set, got null")
        check_values(self.config)
        trainer = self.config["trainer"]
        for name in ("callbacks", "plugins"):
            # Lightning also accepts a single object without a list
            if trainer[name] and not isinstance(trainer[name], list):
                trainer[name] = [trainer[name]]
        # absolute, so that a run finds its data from anywhere; files are relative to data_dir
        given = self.config["data"].get("init_args") or {}
        for name in ["data_dir"] if given.get("data_dir") else FILES:
            if given.get(name):
                given[name] = str(Path(given[name]).expanduser().resolve())

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return None; :meth:`make_trainer` makes the trainer when there is a run folder."""
        return None

    def make_trainer(
        self,
        callbacks: Sequence[Callback],
        before: Sequence[Callback] = (),
        one_process: bool = False,
        **kwargs: Any,
    ) -> Trainer:
        """Return the trainer of the recipe, without a logger.

        Args:
            callbacks: called after the recipe's callbacks.
            before: callbacks that are called before the recipe's callbacks.
            one_process: refuse more than one process.
            **kwargs: arguments of the trainer that take precedence over the recipe's.

        Raises:
            ValueError: if the trainer refuses its arguments, or has several processes despite
                ``one_process``.
        """
        given = self.config_init["trainer"]
        extra = [*before, *(given.get("callbacks") or []), *callbacks]
        if given["max_steps"] >= 0:
            extra.append(StopAfter(given["max_steps"]))
            kwargs = {"max_epochs": given["max_epochs"] or -1, "max_steps": -1, **kwargs}
        try:
            trainer = super().instantiate_trainer(
                logger=False,
                callbacks=extra,
                plugins=[WholeFiles(), *(given.get("plugins") or [])],
                enable_checkpointing=any(isinstance(c, Checkpoint) for c in extra),
                enable_progress_bar=any(isinstance(c, ProgressBar) for c in extra),
                enable_model_summary=False,
                num_sanity_val_steps=0,
                **kwargs,
            )
        except (MisconfigurationException, ImportError, TypeError) as error:
            raise ValueError(f"the trainer cannot be made: {error}") from None
        if one_process:
            check_one_process(trainer.world_size)
        return trainer

    def set_up(self, stage: str) -> None:
        """Load the data, and let the model check them if it has ``check_data``.

        Args:
            stage: ``"fit"`` or ``"test"``.

        Raises:
            ValueError: if the data are broken, or do not fit the model.
            FileNotFoundError: if a file is missing.
        """
        self.datamodule.prepare_data()
        self.datamodule.setup(stage)
        if check := getattr(self.model, "check_data", None):
            check(self.datamodule)

    def as_yaml(self) -> str:
        """Return the whole configuration as YAML, defaults included.

        Raises:
            ValueError: if a value cannot be written so that it reads back.
        """
        with _jsonargparse():
            # jsonargparse would write a message in place of the value
            warnings.filterwarnings("error", rf"\s*{_LOST}")
            try:
                text: str = self.parser.dump(self.config, skip_none=False, skip_link_targets=False)
            except (UserWarning, ValueError) as error:
                if (lost := re.search(rf"{_LOST} (.*)", str(error))) is None:
                    raise
                raise ValueError(
                    f"config.yaml cannot hold {lost[1]}, the value of an argument, so no training "
                    "could resume: give it the name of a class or function"
                ) from None
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return the whole configuration in plain types, defaults included."""
        config: dict[str, Any] = yaml.load(self.as_yaml(), YamlLoader)
        return config

    def summary(self) -> str:
        """Return lines that name the model, its parameter count, the data and their notes."""
        parameters = sum(p.numel() for p in self.model.parameters())
        model, data = (_arguments(x.hparams) for x in (self.model, self.datamodule))
        lines = [f"model: {model}; {parameters} parameters", f"data: {data}"]
        return "\n".join([*lines, *getattr(self.datamodule, "notes", ())])


# jsonargparse's words for a value that it cannot write
_LOST = "Unable to serialize instance"
_LIMIT = re.compile(r"trainer\.limit_\w+_batches")


def check_one_process(count: int) -> None:
    """Refuse several processes.

    Raises:
        ValueError: if ``count`` is above 1.
    """
    if count > 1:
        raise ValueError(f"trainer.devices must be 1 except in rnnorm fit, got {count}")


def place_options(config: Mapping[str, Any]) -> list[str]:
    """Return the overrides that name the data's folder and files, which a run may know elsewhere.

    Args:
        config: a whole configuration.
    """
    given = config["data"].get("init_args") or {}
    named = [(name, given[name]) for name in ("data_dir", *FILES) if given.get(name)]
    return [f"--data.init_args.{name}={place}" for name, place in named]


def _arguments(hparams: Any) -> str:
    shown = {k: v for k, v in dict(hparams).items() if v is not None and not k.startswith("_")}
    return ", ".join(f"{k}={v}" for k, v in shown.items())


@contextmanager
def _jsonargparse() -> Iterator[None]:
    """Let jsonargparse read and write YAML as rnnorm does, without deprecation warnings.

    Lightning calls functions that jsonargparse has renamed.
    """
    with yaml_functions(YamlLoader, dump_yaml), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence the warnings of Lightning's trainer about which the user can do nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        warnings.filterwarnings("ignore", "GPU available but not used")
        # a comparison's time budget does not hold for a training resumed outside of it
        warnings.filterwarnings("ignore", ".*add the following callbacks: .*StopAfterSeconds")
        yield


def option_list(recipe: str) -> str:
    """Return a text with every option of a recipe and the option's value there."""
    whole = Experiment(read_recipe(recipe).config).as_dict()
    lines = [f"options of {recipe}, with its values at the paper's scale:"]
    for name, value in option_values(whole).items():
        # lists do not fit on the command line, and the data share the global seed
        if isinstance(value, list) or FIT_SETS.match(name) or name == "--data.seed":
            continue
        fields = value.items() if isinstance(value, dict) else ()
        for option, given in [(f"{name}.{key}", field) for key, field in fields] or [(name, value)]:
            lines.append(f"  {option}={'null' if given is None else given}")
    return "\n".join(lines)
