"""Which classes a recipe or a run folder may name: a class of somebody else's is code that runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

_PACKAGES = ("rnnorm", "torch", "lightning")
_trusted: ContextVar[bool] = ContextVar("_trusted", default=False)


class UntrustedError(ValueError):
    """A recipe or a run folder names what is no class of rnnorm, torch or lightning."""


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Let recipes and run folders name classes of any package, which imports and runs their code.

    Args:
        trust: whether they may.
    """
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def trusts() -> bool:
    """Whether recipes and run folders may name classes of any package."""
    return _trusted.get()


@contextmanager
def only_trusted_classes() -> Iterator[None]:
    """Let jsonargparse import classes of rnnorm, torch and lightning alone, if not :func:`trusts`.

    Raises:
        UntrustedError: something else is named; nothing of it was imported or made.
    """
    from jsonargparse import _actions, _typehints
    from jsonargparse._util import import_object

    if trusts():
        yield
        return
    refused: list[str] = []
    load: Callable[..., Any] = import_object

    def checked(name: Any, *args: Any, **options: Any) -> Any:
        # what comes from signatures, not from values, is code that is here already
        if options.get("check_path") is False:
            return load(name, *args, **options)
        parts = name.split(".") if isinstance(name, str) else []
        if len(parts) < 2 or not all(map(str.isidentifier, parts)):
            # a number, a file: jsonargparse says what it is instead
            return load(name, *args, **options)
        if parts[0] in _PACKAGES and _is_trusted(found := load(name, *args, **options)):
            return found
        refused.append(name)
        # jsonargparse tries other types of the option, if it has some
        raise ImportError(name)

    try:
        with (
            patch.object(_typehints, "import_object", checked),
            patch.object(_actions, "import_object", checked),
        ):
            yield
    finally:
        # whatever else jsonargparse says of the option, or makes of the name
        if refused:
            raise UntrustedError(
                f"{refused[0]} is no optimizer, schedule, callback, model, data or part of a "
                "trainer that rnnorm, torch or lightning defines, so that its code would run: add "
                "--trust if you trust who wrote it"
            ) from None


def _is_trusted(found: Any) -> bool:
    """Whether an object is a class that one of the packages defines for what a recipe names."""
    import lightning.pytorch as lightning
    from lightning.fabric.plugins import ClusterEnvironment
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.plugins import CheckpointIO, LayerSync, Precision
    from lightning.pytorch.profilers import Profiler
    from lightning.pytorch.strategies import Strategy
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    bases = (
        *(lightning.LightningModule, lightning.LightningDataModule, lightning.Callback),
        *(Optimizer, LRScheduler, Accelerator, Strategy, Profiler, Logger),
        *(CheckpointIO, ClusterEnvironment, LayerSync, Precision),
    )
    # torch.os.system is reached through torch, and defined elsewhere
    return (
        inspect.isclass(found)
        and found.__module__.partition(".")[0] in _PACKAGES
        and issubclass(found, bases)
    )
