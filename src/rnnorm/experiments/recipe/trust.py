"""The classes that recipes and run folders may name, since naming a class runs its code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_PACKAGES = ("rnnorm", "torch", "lightning")
_trusted: ContextVar[bool] = ContextVar("_trusted", default=False)


class UntrustedError(ValueError):
    """Error for a class in a recipe or run folder that is not of rnnorm, torch or lightning."""


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Let recipes and run folders name classes of any package, which imports and runs their code.

    Args:
        trust: whether they may name any class.
    """
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def trusts() -> bool:
    """Tell whether recipes and run folders may name classes of any package."""
    return _trusted.get()


@contextmanager
def only_trusted_classes() -> Iterator[None]:
    """Restrict jsonargparse to classes of rnnorm, torch and lightning, unless :func:`trusts`.

    Raises:
        UntrustedError: if another object is named; it was neither imported nor called.
    """
    if trusts():
        yield
        return
    from rnnorm.experiments.private_apis import checked_imports

    refused: list[str] = []

    def check(name: Any, load: Callable[[], Any]) -> Any:
        parts = name.split(".") if isinstance(name, str) else []
        if len(parts) < 2 or not all(map(str.isidentifier, parts)):
            # a number or a file, which jsonargparse handles
            return load()
        if parts[0] in _PACKAGES and _is_trusted(found := load()):
            return found
        refused.append(name)
        # jsonargparse then tries the option's other types
        raise ImportError(name)

    try:
        with checked_imports(check):
            yield
    finally:
        # replaces jsonargparse's own error, and refuses a name it accepted
        if refused:
            raise UntrustedError(
                f"{refused[0]} is no optimizer, schedule, callback, model, data or part of a "
                "trainer that rnnorm, torch or lightning defines: to build it would run its code. "
                "Add --trust if you trust who wrote it"
            ) from None


def _is_trusted(found: Any) -> bool:
    """Tell whether an object is a class for recipes that one of the packages defines."""
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
    # torch.os.system is reached through torch but defined elsewhere
    return (
        inspect.isclass(found)
        and found.__module__.partition(".")[0] in _PACKAGES
        and issubclass(found, bases)
    )
