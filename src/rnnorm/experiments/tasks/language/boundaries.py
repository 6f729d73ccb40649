"""The boundaries of an HM-LSTM in a text: those that the symbols give, and their picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rnnorm.diagnostics import plot_boundaries
from rnnorm.experiments.data.text.corpora import ENDS
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.data.text.windows import TextData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rnnorm.experiments.tasks.language.model import LanguageModel

# most symbols that are legible side by side
_SHOWN = 50


def check_boundaries(boundaries: Sequence[Sequence[str]] | None, given: Mapping[str, Any]) -> None:
    """Check that symbols are named exactly where an HM-LSTM is given its boundaries.

    Args:
        boundaries: the symbols that end a unit of each layer but the last, or None.
        given: the other arguments of the model.

    Raises:
        ValueError: if symbols are named without given boundaries, not for every layer, or not at
            all.
    """
    if (given["cell_options"] or {}).get("boundary") != "given":
        if boundaries is not None:
            raise ValueError(
                f"boundaries must be None without cell_options boundary 'given', got {boundaries}"
            )
    elif boundaries is None or len(boundaries) != given["num_layers"] - 1 or not all(boundaries):
        raise ValueError(
            "boundaries must name the symbols that end a unit of each layer but the last, for "
            f"{given['num_layers'] - 1} layers, with cell_options boundary 'given', got "
            f"{boundaries}"
        )


def ends_of_units(boundaries: Sequence[Sequence[str]], vocabulary: Vocabulary) -> Tensor:
    """Return whether each symbol ends a unit of each layer, 0 or 1, ``(V, L - 1)``.

    What ends a unit of a layer ends those of the layers below, as the end of a sentence is the end
    of a word.

    Raises:
        ValueError: if a symbol is not in the training text.
    """
    ends = torch.zeros(len(vocabulary), len(boundaries))
    for layer, symbols in enumerate(boundaries, 1):
        for symbol in symbols:
            if (number := vocabulary.number(symbol)) is None:
                raise ValueError(
                    f"model.init_args.boundaries must be of symbols of the training text, got "
                    f"{symbol!r}"
                )
            ends[number, :layer] = 1
    return ends


def boundaries_in_a_sentence(
    model: LanguageModel, data: TextData
) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
    """Show an HM-LSTM's boundaries in a sentence: yield title, caption and picture."""
    x = next(iter(data.val_dataloader())).x[:_SHOWN, :1]
    symbols = [data.vocabulary.symbols[number] for number in x[:, 0].tolist()]
    if (end := ENDS.get(data.hparams["dataset"])) in symbols[1:]:
        symbols = symbols[: symbols.index(end, 1)]
    _, _, boundaries = model.read(x[: len(symbols)].to(model.device))
    assert boundaries is not None
    z = boundaries.z[:, 0].cpu()
    shares = ", ".join(f"{share:.0%}" for share in z.mean(0).tolist())
    yield (
        "boundaries in a sentence",
        "How the first sentence of the validation text begins. Boundaries of all steps, from "
        f"the lowest layer: {shares}.",
        partial(plot_boundaries, z=z, symbols=symbols),
    )
