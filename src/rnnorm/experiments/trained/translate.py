"""Let a trained model translate: what ``rnnorm write RUN --from FILE`` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.text.parallel import words_of_lines
from rnnorm.experiments.data.text.vocabulary import Vocabulary, WordNumbers
from rnnorm.experiments.data.text_file import as_text, read_text
from rnnorm.experiments.files import read_into
from rnnorm.experiments.tasks.translation.model import Translator
from rnnorm.experiments.trained.load import load_trained

# sentences in one minibatch
_ROWS = 64


def translate(
    run: str | Path,
    checkpoint: str | Path | None = None,
    *,
    source: str | Path,
    beam: int | None = None,
    limit: int | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Translate the sentences of a file.

    Args:
        run: run folder of the training, or a recipe if a checkpoint is given. The model
            is a translator.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint. The data are not
            needed.
        source: file to translate, a sentence a line; ``"-"`` for standard input. The sentences are
            tokenised as those of the training: with spaces between words. A word that the training
            had not is read as unknown.
        beam: hypotheses of beam search; the model's own by default.
        limit: most words of a translation, its end among them; the model's own by default.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        overrides: options of LightningCLI.

    Returns:
        The translations, one for each line.

    Raises:
        ValueError: if a number is out of range, the model does not translate, or the checkpoint
            does not fit the model.
        BrokenFileError: if the file or one of its lines is empty, binary or not UTF-8.
        FileNotFoundError: if the checkpoint or the file is missing.
    """
    given = {"beam": beam, "limit": limit}
    options = [f"--model.init_args.{n}={value}" for n, value in given.items() if value is not None]
    trained = load_trained(run, checkpoint, scale=scale, overrides=[*overrides, *options])
    model, data = trained.model(Translator), trained.experiment.datamodule
    words, target = (WordNumbers(Vocabulary(trained.kept(side))) for side in ("source", "target"))
    sentences = words_of_lines(*_read(source), data.hparams["lower"])
    model.eval()
    written: list[str] = []
    for first in range(0, len(sentences), _ROWS):
        numbers = [words.numbers(sentence) for sentence in sentences[first : first + _ROWS]]
        lengths = torch.tensor([len(each) for each in numbers])
        found = model.translate(pad_sequence(numbers), lengths)
        written += [target.sentence(row) for row in found.T.tolist()]
    return written


def _read(source: str | Path) -> tuple[str, str]:
    """Return the text of a file or of standard input, and its name for messages."""
    if str(source) != "-":
        return read_text(source), str(source)
    data, name = bytearray(), "standard input"
    read_into(data, sys.stdin.buffer, name)
    return as_text(bytes(data), name), name
