"""A recurrent model that transcribes speech by connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics.text import WordErrorRate

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.speech.batches import TranscriptBatch
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.models.classifiers import StepClassifier
from rnnorm.experiments.models.ctc import read_off, summed_ctc
from rnnorm.experiments.tasks.transcription.data import SpokenData
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score


class Transcriber(StepClassifier):
    """Recurrent layers, a softmax over the symbols and the blank at every step, and CTC.

    Args:
        input_size: values of a step.
        num_symbols: number of symbols without the blank.
        num_layers: number of layers.
        bidirectional: whether each layer also reads backwards.
        beam: prefixes that are kept when symbols are decoded
            (:func:`rnnorm.experiments.models.ctc.best_prefix`); 1 for the best path.
        unit: unit that errors are counted in, ``"word"`` or ``"phone"``.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint: substitutions, deletions and insertions over the
            words or phones that were said; lower is better.

    Raises:
        ValueError: if a name is unknown, or ``beam < 1``.
    """

    kind = "one that transcribes"
    writes = "transcribes recordings: write RUN WAV ..."
    in_processes = True

    def __init__(
        self,
        input_size: int = 123,
        num_symbols: int = 10,
        num_layers: int = 2,
        bidirectional: bool = True,
        beam: int = 1,
        unit: Literal["word", "phone"] = "word",
        **layers: Any,
    ) -> None:
        super().__init__(input_size, 1 + num_symbols, num_layers, bidirectional, **layers)
        check_at_least(1, beam=beam)
        self.score = Score(f"{unit}_error", "min")
        self.val_error, self.test_error = WordErrorRate(), WordErrorRate()
        self._text: Callable[[tuple[str, ...]], str] = " ".join
        self._vocabulary = Vocabulary(())

    def check_data(self, data: SpokenData) -> None:
        """Check that features and symbols fit the model, and keep the data's vocabulary.

        Raises:
            ValueError: if the data need another ``input_size`` or ``num_symbols``.
        """
        self.expect_size("input_size", data.num_features, "the values of a step")
        symbols = "the symbols of the training utterances"
        self.expect_size("num_symbols", len(data.vocabulary), symbols)
        self._text, self._vocabulary = data.text, data.vocabulary

    def symbols(self, scores: Tensor, lengths: Tensor, beam: int | None = None) -> list[list[int]]:
        """Decode the numbers, from 0 on, of each row's symbols; ``beam`` is the model's by default.

        Raises:
            ValueError: if ``beam < 1``.
        """
        read = read_off(scores, lengths, self.hparams["beam"] if beam is None else beam)
        return [[number - 1 for number in row] for row in read]

    def training_step(self, batch: TranscriptBatch, batch_idx: int) -> Tensor:
        """Compute the negative log-likelihood of a minibatch, in nats a symbol."""
        loss, symbols = self._loss(self._scores(batch), batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=symbols)
        return loss * processes.loss_weight(symbols)

    def evaluate(self, name: str, batch: TranscriptBatch) -> None:
        """Log the errors of a minibatch, and the loss of the utterances that can be aligned."""
        scores, errors = self._scores(batch), getattr(self, f"{name}_error")
        loss, symbols = self._loss(scores, batch)
        if symbols:
            self.log(f"{name}/loss", loss, batch_size=symbols)
        read = [_escape(self._as_text(row)) for row in self.symbols(scores, batch.lengths)]
        expected = [_escape(self._text(row)) for row in batch.transcripts]
        errors.update(read, expected)
        self.log(f"{name}/{self.score.name}", errors, prog_bar=True, batch_size=len(expected))
        if name == "test":
            counted = [_errors(*row) for row in zip(read, expected, strict=True)]
            self.log_sampling_error(*torch.tensor(counted).T)

    def _scores(self, batch: TranscriptBatch) -> Tensor:
        scores: Tensor = self(batch.x, lengths=batch.lengths)[0]
        return scores

    def _loss(self, scores: Tensor, batch: TranscriptBatch) -> tuple[Tensor, int]:
        symbols = int(batch.target_lengths.sum())
        given = (batch.lengths, batch.targets.T, batch.target_lengths)
        return summed_ctc(scores, *given) / max(1, symbols), symbols

    def _as_text(self, numbers: Sequence[int]) -> str:
        return self._text(tuple(self._vocabulary.symbols[number] for number in numbers))

    def example(self, data: SpokenData, batch: TranscriptBatch, scores: Tensor) -> tuple[str, None]:
        """Return a caption with transcript and prediction; no classes, since times are unknown."""
        (read,) = self.symbols(scores, batch.lengths)
        caption = (
            "Posterior of the symbols that matter against the step; 0 is the blank. Said: "
            f"{data.text(batch.transcripts[0])}; read: {self._as_text(read) or 'nothing'}."
        )
        return caption, None


def _escape(text: str) -> str:
    """Escape all but ASCII: torchmetrics also splits at Unicode's spaces, which a word may hold."""
    return text.encode("unicode_escape").decode()


def _errors(read: str, transcript: str) -> tuple[float, float]:
    """Count the errors and the words of an utterance."""
    rate = WordErrorRate()
    rate.update(read, transcript)
    return float(rate.errors), float(rate.total)
