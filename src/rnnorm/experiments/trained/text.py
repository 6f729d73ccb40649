"""Let a trained language model write: what ``rnnorm write`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.language.writing import numbers, texts
from rnnorm.experiments.trained.load import load_trained


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
        run: run folder of the training, or a recipe if a checkpoint is given. The model
            is one of characters or words.
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
    model, data = trained.model(LanguageModel), trained.experiment.datamodule
    vocabulary = Vocabulary(trained.kept("vocabulary"))
    dataset = data.hparams["dataset"]
    started = [numbers(beginning, vocabulary, dataset) for beginning in beginnings]
    return texts(
        model,
        vocabulary,
        dataset,
        started,
        count=sentences,
        temperature=temperature,
        seed=seed,
        max_length=max_length,
    )
