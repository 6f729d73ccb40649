"""The private parts of Lightning and jsonargparse that rnnorm uses, all of them.

Checked with lightning 2.6.6 and jsonargparse 4.53.0. Any later version may rename them: whatever
breaks then is repaired in this file alone. ``callbacks_of`` and ``end_training`` use attributes of
the trainer and its loops that are public, but not documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, _actions, _loaders_dumpers, _typehints
from jsonargparse._util import import_object
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher


@contextmanager
def checked_imports(check: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Let ``check`` decide about every object that a value given to jsonargparse names.

    Args:
        check: called with the value, which need not be a name, and with a function that imports
            the object and returns it; returns the object or raises ImportError.
    """
    load: Callable[..., Any] = import_object

    def checked(name: Any, *args: Any, **options: Any) -> Any:
        # names from signatures, not from values, are code that is imported already
        if options.get("check_path") is False:
            return load(name, *args, **options)
        return check(name, lambda: load(name, *args, **options))

    modules: tuple[Any, ...] = (_typehints, _actions)
    before = [module.import_object for module in modules]
    for module in modules:
        module.import_object = checked
    try:
        yield
    finally:
        for module, function in zip(modules, before, strict=True):
            module.import_object = function


@contextmanager
def yaml_functions(loader: type[Any], dump: Callable[[Any], str]) -> Iterator[None]:
    """Let jsonargparse read YAML with the class ``loader`` and write it with ``dump``."""
    module: Any = _loaders_dumpers
    before = module.yaml_default_loader, module.dumpers["yaml"]
    module.yaml_default_loader, module.dumpers["yaml"] = loader, dump
    try:
        yield
    finally:
        module.yaml_default_loader, module.dumpers["yaml"] = before


def set_types(parser: ArgumentParser, names: re.Pattern[str], type_: Any) -> None:
    """Set the type of the options of a jsonargparse parser whose names match a pattern."""
    for action in parser._actions:
        if names.fullmatch(action.dest):
            action._typehint = type_  # type: ignore[attr-defined]


def is_plain_launcher(launcher: object) -> bool:
    """Tell whether a launcher of Lightning starts each process as a script, as ``ddp`` does."""
    return isinstance(launcher, _SubprocessScriptLauncher)


def find_unused_parameters(strategy: DDPStrategy) -> None:
    """Let a strategy that is not set up yet find the parameters that get no gradient."""
    strategy._ddp_kwargs["find_unused_parameters"] = True


def dump_checkpoint(trainer: Trainer) -> dict[str, Any]:
    """Return the content of a checkpoint; its tensors are those of the model, not copies."""
    return trainer._checkpoint_connector.dump_checkpoint()


def log_now(trainer: Trainer) -> None:
    """Log now what Lightning would log after the current hook, and keep it from logging twice."""
    connector, loop = trainer._logger_connector, trainer.fit_loop.epoch_loop
    if connector._first_loop_iter is None:
        connector.on_epoch_end()
        # Lightning logs an epoch's metrics at its last step
        loop._batches_that_stepped -= 1
        connector.update_train_epoch_metrics()
        loop._batches_that_stepped += 1
        return
    connector.on_batch_end()
    connector.update_train_step_metrics()
    for logged in loop._results.values():
        logged._forward_cache = None


Kind = TypeVar("Kind", bound=Callback)


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """Return the trainer's callbacks of a class, in the order of their calls."""
    own: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in own if isinstance(callback, kind)]


def end_training(trainer: Trainer) -> None:
    """End a training, even if ``min_epochs`` or ``min_steps`` ask for more."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
