"""Let a trained language model write: what ``rnnorm write`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.text.corpora import ENDS
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.models.feeding import draw_at
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.trained.load import expect_model, load_trained


def write(
    run: str | Path,
    checkpoint: str | Path | None = None,
    beginnings: Sequence[str] = ("the",),
    *,
    temperature: float = 1.0,
    sentences: int = 1,
    seed: int = 1,
    max_length: int = 400,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Continue beginnings up to the end of the sentence or line.

    Args:
        run: the run folder; or a recipe, with a checkpoint. The model is one of characters or
            words.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint. The data are not
            needed.
        beginnings: words with spaces between them, or any characters.
        temperature: what the scores are divided by before the softmax; 0 for the most probable
            symbol each time.
        sentences: number of sentences for each beginning.
        seed: seed of the draws.
        max_length: where a sentence is cut off that has not ended, in symbols after its beginning.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        overrides: options of LightningCLI.

    Returns:
        The sentences, beginnings included, in readable form.

    Raises:
        ValueError: if a number is out of range, the recipe is not a language model's, a beginning
            is empty or has a symbol unknown to the training, or the checkpoint does not fit.
        FileNotFoundError: if the checkpoint is missing.
    """
    check_at_least(1, sentences=sentences, max_length=max_length)
    trained = load_trained(run, checkpoint, scale=scale, overrides=overrides)
    model, data = (
        expect_model(LanguageModel, trained.experiment.model, run),
        trained.experiment.datamodule,
    )
    vocabulary = Vocabulary(trained.kept("vocabulary"))
    dataset = data.hparams["dataset"]
    started = [_numbers(beginning, vocabulary, dataset) for beginning in beginnings]
    end = vocabulary.number(ENDS[dataset]) if dataset in ENDS else None
    generator = torch.Generator().manual_seed(seed)
    written = []
    for beginning in started:
        for _ in range(sentences):
            symbols = continuation(model, beginning, end, temperature, max_length, generator)
            ended = symbols[:-1] if symbols[-1] == end else symbols
            written.append(_readable([*beginning.tolist(), *ended], vocabulary, dataset))
    return written


@torch.no_grad()
def continuation(
    model: LanguageModel,
    beginning: Tensor,
    end: int | None,
    temperature: float,
    max_length: int,
    generator: torch.Generator,
) -> list[int]:
    """Draw symbols one by one, carrying the state and the time step of the statistics.

    Args:
        model: the model, which is set to evaluation.
        beginning: numbers of symbols ``(N,)``, one or more.
        end: the symbol after which nothing is drawn.
        temperature: what the scores are divided by; 0 for the most probable symbol.
        max_length: how many symbols are drawn at most.
        generator: where the draws come from.

    Returns:
        The symbols after the beginning, ``end`` the last of them if it was drawn.

    Raises:
        ValueError: if ``temperature`` is not a number of at least 0.
    """
    check_at_least(0, temperature=temperature)
    model.eval()
    x, state, step = beginning.long().unsqueeze(1), None, 0
    written: list[int] = []
    while len(written) < max_length and (not written or written[-1] != end):
        scores, state = model(x, state, step)
        step += len(x)
        x = draw_at(scores[-1], temperature, generator).unsqueeze(1)
        written.append(int(x))
    return written


def _numbers(beginning: str, vocabulary: Vocabulary, dataset: str) -> Tensor:
    """Return the numbers of a beginning's symbols, ``(N,)``."""
    if not beginning.strip():
        raise ValueError(f"a beginning must have a symbol, got {beginning!r}")
    where = f"the beginning {beginning!r}"
    if dataset == "ptb-word":
        return vocabulary.words(beginning.split(), beginning, where)
    text = beginning.replace(" ", "_") if dataset == "ptb-char" else beginning
    return vocabulary.characters(text, beginning, where)


def _readable(numbers: Sequence[int], vocabulary: Vocabulary, dataset: str) -> str:
    """Return symbols as readable text, with spaces between words."""
    symbols = [vocabulary.symbols[number] for number in numbers]
    if dataset == "ptb-word":
        return " ".join(symbols)
    text = "".join(symbols)
    return text.replace("_", " ") if dataset == "ptb-char" else text
