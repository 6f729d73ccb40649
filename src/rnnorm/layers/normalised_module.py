"""The base of the sequence and the one-step classes: their kernel and their statistics."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import Cell
from rnnorm.kernels import dispatch, own_cell
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cuda import layer as cuda
from rnnorm.layers.call.autocast import autocast_dtype
from rnnorm.layers.norm_parameters import populations
from rnnorm.layers.ranks import Ranks
from rnnorm.norm.population import Population
from rnnorm.norm.spec import Norm
from rnnorm.tracing import known

_NO_STATISTIC = (
    "evaluation before any statistic was taken: the buffers serve as they are, at first mean 0 and "
    "variance 1"
)


def warn_without_statistic(model: nn.Module) -> None:
    """Warn if a model that is prepared for evaluation has taken no statistics."""
    if any(
        isinstance(module, Population) and known(module.num_batches_tracked.any()) == 0
        for module in model.modules()
    ):
        warnings.warn(_NO_STATISTIC, stacklevel=_stacklevel())


class NormalisedModule(nn.Module):
    """Base of ``SequenceLayer`` and ``OneStep``; a subclass names its cell."""

    cell: Cell
    input_size: int
    hidden_size: int
    norm: Norm | None
    #: names of the weights that torch.nn's class does not have
    own_weights: tuple[str, ...] = ()
    #: processes over whose rows statistics are taken, None for this one alone
    ranks: Ranks | None = None
    _frozen = False
    _warned_of_step = False
    # whether training may use the population for too few rows, and which warnings were given
    _population_serves = True
    _few_rows: tuple[bool, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse another norm, and modules under the names ``cell`` and ``norm``."""
        own = name == "norm" or (name == "cell" and getattr(self, name, None) is not None)
        if own and isinstance(value, nn.Module):
            raise TypeError(
                f"{name} is what the layer itself computes with: give the module "
                f"{type(value).__name__} another name"
            )
        if name == "norm" and value != self.__dict__.get(name, value):
            raise AttributeError(
                "norm belongs to the parameters and statistics that the layer was built with: "
                f"build another with norm={value!r}"
            )
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, whose own error does not name the cause."""
        raise RuntimeError(
            f"torch.jit.script does not take {type(self).__name__} of rnnorm: rnnorm.fold(model) "
            "gives torch.nn's layers where that is exact, and torch.export or torch.jit.trace take "
            "the others in evaluation"
        )

    def reset_running_stats(self) -> None:
        """Forget the population statistics, as a torch.nn batch norm layer does."""
        for population in populations(self):
            population.reset_running_stats()

    def frozen(self) -> bool:
        """Tell whether the layer is part of a frozen copy, and keeps its statistics."""
        return self._frozen

    def norm_takes_statistics(self) -> bool:
        """Tell whether the norm takes statistics over rows, even if of no site of the cell."""
        return self.norm is not None and self.norm.takes_statistics

    def synchronized(self) -> bool:
        """Tell whether statistics are taken over the rows of several processes."""
        return self.norm_takes_statistics() and self.ranks is not None and self.ranks.several()

    def _needed_weights(self) -> list[str]:
        """Return the names, without suffix, of the weights that no call can do without."""
        projection = ["weight_hr"] * (getattr(self, "proj_size", 0) > 0)
        # a bias that is gone is zero
        return [*self.cell.weights(self.input_size, self.hidden_size, False), *projection]

    def _has_statistics(self) -> bool:
        """Tell whether a site of the cell is normalised by statistics over rows."""
        return any([spec.takes_statistics for spec in self.cell.norms(self.norm).values()])

    def _choose(self, data: Tensor, **asked: Any) -> tuple[dispatch.Kernel, bool]:
        """Choose the kernel of a call, and tell whether torch.compile may trace it."""
        asked = self._asked(data) | asked
        if torch.compiler.is_compiling() or own_cell.built_in(self.cell) or self._fits(data):
            kernel = dispatch.choose(**asked)
        else:
            # the call will be refused, for which no cell need be compiled
            with own_cell.without_compiling():
                kernel = dispatch.choose(**asked)
        # neither an exchange between processes nor a user's compiled cell can be in a graph
        traceable = kernel.layer not in (cpu.layer, cuda.layer) or own_cell.built_in(self.cell)
        return kernel, kernel.traceable and traceable and not asked["synchronized"]

    def _fits(self, data: Tensor) -> bool:
        """Tell whether an input may have the features and the dtype of the layer."""
        dtype = next(self.parameters()).dtype
        right = data.dtype == dtype or autocast_dtype(data.device) is not None
        return right and data.shape[-1:] == (self.input_size,)

    def _asked(self, data: Tensor) -> dict[str, Any]:
        """Return the properties of a call by which its kernel is chosen, for all classes."""
        heads = self.cell.heads
        return {
            "cell": self.cell,
            "norm": self.norm,
            "device": data.device,
            "dtype": data.dtype,
            "synchronized": self.training and self.synchronized(),
            "compiled": torch.compiler.is_dynamo_compiling(),
            "head_size": self.hidden_size // heads if heads > 1 else 0,
        }

    def explained(self, *args: Any, **kwargs: Any) -> tuple[str, dict[str, str]]:
        """Return ``dispatch.explain`` of a call with these arguments.

        Raises:
            NotImplementedError: if a subclass does not override this method.
        """
        raise NotImplementedError

    def _warn(self, streams: bool) -> None:
        """Warn once of an evaluation without statistics, or of a stream without ``step``.

        Args:
            streams: whether a state was given without ``step``.
        """
        own = populations(self)
        if any([population.first_use_without_count() for population in own]):
            warnings.warn(_NO_STATISTIC, stacklevel=_stacklevel())
        if not streams or self._warned_of_step:
            return
        if any(population.differs_by_step() for population in own):
            # set only now: torch.export of torch 2.6 refuses new attributes
            self._warned_of_step = True
            warnings.warn(
                "hx was given without step in evaluation: the first frame gets the statistics of "
                "step 0. Pass step, the number of frames before it (0 where a sequence begins, or "
                "where training, too, began at 0 in each of its windows), or choose "
                'norm=BatchNorm(population="shared"), the same statistics at every step',
                stacklevel=_stacklevel(),
            )

    def warn_of_few_rows(self, estimated: bool, text: str) -> None:
        """Warn that training uses the population's statistics for too few rows.

        Args:
            estimated: whether there is an estimate; each case is warned of once.
            text: text of the warning.
        """
        if estimated not in self._few_rows:
            self._few_rows += (estimated,)
            warnings.warn(text, stacklevel=_stacklevel())


def _stacklevel() -> int:
    """Return the ``stacklevel`` of the user's code that called a layer or a function."""
    own = ("rnnorm.", "torch.")
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(own):
        level, frame = level + 1, frame.f_back
    return level


@contextmanager
def temporarily(modules: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Set attributes of modules within the context, where a module has the attribute.

    An attribute that is a module, such as a subclass's own ``dropout``, stays as it is.
    """
    before = [(module, _values_of(module, values), set(vars(module))) for module in modules]
    try:
        for module, old, _ in before:
            for name in old:
                setattr(module, name, values[name])
        yield
    finally:
        for module, old, names in before:
            for name, value in old.items():
                setattr(module, name, value)
                if name not in names:
                    # the attribute was of the class: the instance needs none
                    vars(module).pop(name, None)


def _values_of(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return {name: value for name, value in found.items() if not isinstance(value, nn.Module)}
