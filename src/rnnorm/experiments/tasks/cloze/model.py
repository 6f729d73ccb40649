"""The Attentive Reader, which fills the blank of a query with a word of a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rnnorm.diagnostics import plot_attention
from rnnorm.experiments.data.questions.encode import ClozeBatch
from rnnorm.experiments.models.attention import Attention
from rnnorm.experiments.models.layers import initialise, set_forget_bias
from rnnorm.experiments.models.measures import cross_entropy
from rnnorm.experiments.models.recurrent_model import RecurrentModel, side_by_side
from rnnorm.experiments.tasks.cloze.data import ClozeData
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClozeReader(RecurrentModel):
    """The Attentive Reader: a layer over the document, one over the query, and attention.

    The probability of a candidate a is proportional to exp(w_a · g + b_a), with g of
    :class:`rnnorm.experiments.models.attention.Attention`.

    Args:
        vocabulary_size: number of words of the data, placeholders included.
        attention_norm: whether to batch-normalise the four terms of the attention.
        bidirectional: whether to read in both directions.
        embedding_size: width of the embedding, which document and query share.
        forget_bias: the forget gate's bias, or None to leave it as ``init`` has it.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`;
            ``hidden_size`` is also the width of the attention.

    Attributes:
        score: the metric of the best checkpoint, the share of wrong answers.

    Raises:
        ValueError: if a name is unknown, or the cell is an HMLSTM.
    """

    score = Score("error", "min")

    def __init__(
        self,
        vocabulary_size: int = 100,
        attention_norm: bool = False,
        bidirectional: bool = False,
        embedding_size: int = 240,
        forget_bias: float | None = None,
        **layers: Any,
    ) -> None:
        super().__init__(**layers)
        if self.hparams["cell"] == "HMLSTM":
            raise ValueError("cell must be another one to answer questions, got 'HMLSTM'")
        # torch synchronises the statistics of the attention's BatchNorm1d on GPUs alone
        self.in_processes = not attention_norm
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.document_encoder = self.make_layer(embedding_size, bidirectional=bidirectional)
        self.query_encoder = self.make_layer(embedding_size, bidirectional=bidirectional)
        hidden_size = self.query_encoder.hidden_size
        width = hidden_size * (1 + bidirectional)
        self.attention = Attention(width, hidden_size, attention_norm)
        self.answer = nn.Linear(hidden_size, vocabulary_size)
        for layer in (self.document_encoder, self.query_encoder):
            initialise(layer, self.hparams["init"])
            set_forget_bias(layer, forget_bias)

    def check_data(self, data: ClozeData) -> None:
        """Check that the data have as many numbers as the model.

        Raises:
            ValueError: if the data need another ``vocabulary_size``.
        """
        numbering = data.numbering
        assert numbering is not None
        what = (
            f"the {len(numbering.vocabulary)} words of the training questions, the unknown word "
            f"and {numbering.placeholders} placeholders"
        )
        self.expect_size("vocabulary_size", len(numbering), what)

    def forward(self, batch: ClozeBatch) -> tuple[Tensor, Tensor]:
        """Score the candidates of a minibatch, and return the attention.

        Args:
            batch: the questions.

        Returns:
            Scores of the candidates ``(C, B)``, minus infinity in the padding, and the attention
            ``(T, B)``.
        """
        y, _ = self._encode(self.document_encoder, batch.x, batch.lengths)
        _, state = self._encode(self.query_encoder, batch.query, batch.query_lengths)
        h = state[0] if isinstance(state, tuple) else state
        g, s = self.attention(y, batch.lengths, side_by_side(h))
        numbers = batch.candidates.clamp(min=0)
        scores = (self.answer.weight[numbers] * g).sum(2) + self.answer.bias[numbers]
        return scores.masked_fill(batch.candidates < 0, -torch.inf), s

    def examples(self, data: ClozeData) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Show the attention to the documents of two validation questions, in evaluation mode.

        Args:
            data: the loaded data.

        Yields:
            A title, a caption, and a function that draws the figure.
        """
        numbering = data.numbering
        assert numbering is not None
        batch = next(iter(data.val_dataloader()))
        batch = self.transfer_batch_to_device(batch, self.device, 0)
        scores, s = self(batch)

        def words(numbers: Tensor) -> list[str]:
            return [numbering.name(number) for number in numbers.tolist()]

        for i in range(min(2, len(batch.answers))):
            document = words(batch.x[: batch.lengths[i], i])
            query = words(batch.query[: batch.query_lengths[i], i])
            choices, answer = batch.candidates[:, i], int(batch.answers[i])
            prediction = words(choices[scores[:, i].argmax().reshape(1)])[0]
            right = words(choices[[answer]])[0] if answer >= 0 else "none of the document's words"
            weights = s[: len(document), i].cpu()
            most = [document[at] for at in weights.argsort(descending=True)[:3].tolist()]
            yield (
                f"Attention to a document, question {i + 1}",
                f"{' '.join(query)} Answer: {right}; the model says: {prediction}. Most attention: "
                f"{', '.join(most)}.",
                partial(plot_attention, words=document, weights=weights),
            )

    def _encode(self, encoder: nn.Module, words: Tensor, lengths: Tensor) -> Any:
        longest = int(lengths.max())
        return encoder(self.embedding(words[:longest]), lengths=lengths)

    def predict(self, name: str, batch: ClozeBatch) -> Tensor:
        """Compute the scores of the candidates ``(B, C)``."""
        scores: Tensor = self(batch)[0]
        return scores.T

    def training_step(self, batch: ClozeBatch, batch_idx: int) -> Tensor:
        """Compute the cross-entropy of a minibatch's answers among its candidates, in nats."""
        scores = self.predict("train", batch)
        loss = cross_entropy(scores, batch.answers)
        rows = len(batch.answers)
        self.log("train/loss", loss, prog_bar=True, batch_size=rows)
        self.log_score("train", _wrong(scores, batch))
        return loss * processes.loss_weight(rows)

    def statistics_step(self, batch: ClozeBatch) -> None:
        """Run the model over a minibatch to collect its statistics."""
        self(self.transfer_batch_to_device(batch, self.device, 0))

    def evaluate(self, name: str, batch: ClozeBatch) -> None:
        """Log error and cross-entropy of a minibatch."""
        scores = self.prediction(name, batch)
        answered = batch.answers >= 0
        if answerable := int(answered.sum()):
            loss = cross_entropy(scores[answered], batch.answers[answered])
            self.log(f"{name}/loss", loss, batch_size=answerable)
        self.log_score(name, _wrong(scores, batch))


def _wrong(scores: Tensor, batch: ClozeBatch) -> Tensor:
    """Return 1 for each question with a wrong answer, else 0."""
    return (scores.argmax(1) != batch.answers).float()
