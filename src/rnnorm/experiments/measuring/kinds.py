"""What a trained model writes, and how to ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from rnnorm.experiments.tasks.handwriting.model import Writer
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.transcription.model import Transcriber
from rnnorm.experiments.tasks.translation.model import Translator

Kind = TypeVar("Kind", bound=nn.Module)

# what a model is called, and how it is asked
_KINDS: dict[type[nn.Module], tuple[str, str]] = {
    LanguageModel: ("one of characters or words", "continues a text: write RUN --begin TEXT"),
    Translator: ("a translator", "translates: write RUN --from FILE"),
    Transcriber: ("one that transcribes", "transcribes recordings: write RUN WAV ..."),
    Writer: ("one of handwriting", "draws: write RUN --out PICTURE"),
}


def expect(kind: type[Kind], model: nn.Module, run: str | Path) -> Kind:
    """The model, of a kind.

    Args:
        kind: its class.
        model: the model.
        run: where it is from, for the message.

    Raises:
        ValueError: it is of another kind; the message says how to let it write, if it can.
    """
    if isinstance(model, kind):
        return model
    others = (how for other, (_, how) in _KINDS.items() if isinstance(model, other))
    raise ValueError(
        f"the model must be {_KINDS[kind][0]}, that of {run} is not; it "
        f"{next(others, 'writes nothing')}"
    )
