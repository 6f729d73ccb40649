"""Reading comprehension: which word of a document belongs into the blank of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import rnnorm
from rnnorm.diagnostics import plot_attention
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.questions.batches import ClozeBatch, QuestionBatches
from rnnorm.experiments.data.questions.cnn import ENTITY
from rnnorm.experiments.data.questions.corpora import ClozeDataset, load_questions
from rnnorm.experiments.data.questions.numbered import Numbering, Raw, read_raw
from rnnorm.experiments.data.questions.question import BLANK, is_word, most_relevant
from rnnorm.experiments.models.attention import Attention
from rnnorm.experiments.models.layers import initialise, recurrent
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: the tasks of bAbI whose answers stand in their stories; so do those of task 3, which are long
BABI_TASKS = (1, 2, 4, 5, 11, 12, 13, 14, 16)


class ClozeData(LoadedData):
    """Questions in minibatches :class:`rnnorm.experiments.data.questions.batches.ClozeBatch`.

    A training question whose answer is not in its document is left out; in validation and test it
    counts as an error. How many there are is told once, when a training starts.

    Args:
        dataset: ``"cnn"``, ``"babi"`` or ``"chinese"``, see
            :func:`rnnorm.experiments.data.questions.corpora.load_questions`.
        data_dir: folder of its files.
        tasks: numbers of bAbI's tasks; by default those whose answers stand in their stories.
        sentences: cut each document to so many sentences
            (:func:`rnnorm.experiments.data.questions.question.most_relevant`); None for all.
        words: size of the vocabulary
            (``Numbering``); None for all words of the
            training questions.
        placeholders: how many numbers there are for words that it lacks, shuffled in each text.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        train_size: keep only this many training questions; the vocabulary is that of all.
        eval_size: keep only this many questions for validation and as many for test.
        seed: seed of the order of the training questions and of their placeholders, new ones each
            epoch.

    Attributes:
        numbering: the vocabulary, once the data are loaded.

    Raises:
        ValueError: an argument is none of these, or less than 1.
    """

    def __init__(
        self,
        dataset: ClozeDataset = "babi",
        data_dir: str | None = None,
        tasks: list[int] | None = None,
        sentences: int | None = None,
        words: int | None = None,
        placeholders: int = 0,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        train_size: int | None = None,
        eval_size: int | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.check_sizes()
        for name, value in (("sentences", sentences), ("words", words)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be None or at least 1, got {value}")
        if placeholders < 0:
            raise ValueError(f"placeholders must be at least 0, got {placeholders}")
        if tasks is not None and dataset != "babi":
            raise ValueError(f"tasks must be None for {dataset}, they are bAbI's, got {tasks}")
        self.numbering: Numbering | None = None

    def load(self) -> dict[str, QuestionBatches]:
        """Read the questions.

        Raises:
            ValueError: a file is broken, or no training question has its answer in its document.
            FileNotFoundError: ``data_dir`` lacks a file.
        """
        given = self.hparams
        dataset, cut = given["dataset"], given["sentences"]
        tasks = given["tasks"] or (BABI_TASKS if dataset == "babi" else ())
        numbers: dict[str, int] = {}
        raw = {}
        for part, questions in load_questions(dataset, given["data_dir"], tasks).items():
            if cut is not None:
                questions = (most_relevant(question, cut) for question in questions)
            raw[part] = read_raw(questions, numbers)
        entities = dataset == "cnn"
        self.numbering = Numbering(
            numbers,
            raw["train"],
            given["words"],
            given["placeholders"],
            _is_entity if entities else _is_answer,
            anonymous=entities,
        )
        told, loaders = [], {}
        for part, some in raw.items():
            loaders[part], said = self._batches(part, some, self.numbering)
            told.append(said)
        self.notes = [f"questions: {'; '.join(told)}"]
        return loaders

    def _batches(
        self, part: str, raw: Sequence[Raw], numbering: Numbering
    ) -> tuple[QuestionBatches, str]:
        """Minibatches of a part, and what there is to tell of it."""
        given, train = self.hparams, part == "train"
        # neighbours are of one story or one task: mix them before some are left out
        order = np.random.RandomState(0).permutation(len(raw))
        chosen = [raw[i] for i in order[: given["train_size" if train else "eval_size"]]]
        questions = [numbering.question(question) for question in chosen]
        without = [r.source for r, q in zip(chosen, questions, strict=True) if q.answer < 0]
        said = f"{len(questions)} {part}"
        if without:
            fate = "left out" if train else "errors"
            said += f", {len(without)} of them {fate} since their documents have not their answers"
            said += f" ({without[0]})"
        if train:
            questions = [question for question in questions if question.answer >= 0]
            if not questions:
                raise ValueError(f"no document of the training questions has its answer: {said}")
        batch_size = given["batch_size" if train else "eval_batch_size"]
        seed = given["seed"] if train else None
        return QuestionBatches(questions, batch_size, numbering.unknown + 1, seed), said

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the questions: their vocabulary."""
        assert self.numbering is not None
        return {"vocabulary": list(self.numbering.vocabulary.symbols)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint whose words had other numbers.

        Raises:
            ValueError: the vocabularies differ.
        """
        if "vocabulary" in state_dict:
            assert self.numbering is not None
            source = f"the training questions of {self.hparams['dataset']}"
            self.numbering.vocabulary.check_same(state_dict["vocabulary"], source)


def _is_entity(word: str) -> bool:
    return ENTITY.fullmatch(word) is not None


def _is_answer(word: str) -> bool:
    return is_word(word) and word != BLANK


class ClozeReader(lightning.LightningModule):
    """The Attentive Reader: an LSTM over the document, one over the query, and attention.

    The probability of a candidate a is proportional to exp(w_a · g + b_a), with g of
    :class:`rnnorm.experiments.models.attention.Attention`.

    Args:
        vocabulary_size: how many numbers the data have, placeholders among them.
        norm: what is normalised in both LSTMs: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        attention_norm: batch-normalise the four terms of the attention, too.
        bidirectional: read in both directions.
        hidden_size: units of each LSTM and direction, and of the attention.
        embedding_size: width of the embedding, which document and query share.
        init: name of the recipe in :mod:`rnnorm.init` without its underscore, with zero biases, or
            None for ``torch.nn``'s initialisation.
        forget_bias: the forget gate's bias, or None to leave it as ``init`` has it.
        initial_noise: standard deviation of the Gaussian noise on h_0 in training.
        learn_initial_state: make h_0 and c_0 parameters.

    Attributes:
        score: the metric of the best checkpoint, the share of wrong answers.

    Raises:
        ValueError: a name is unknown.
    """

    score = Score("error", "min")

    def __init__(
        self,
        vocabulary_size: int = 100,
        norm: str | None = None,
        norm_options: dict[str, Any] | None = None,
        attention_norm: bool = False,
        bidirectional: bool = False,
        hidden_size: int = 240,
        embedding_size: int = 240,
        init: str | None = "orthogonal",
        forget_bias: float | None = None,
        initial_noise: float = 0.0,
        learn_initial_state: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)

        def encoder() -> nn.RNNBase:
            return recurrent(
                "LSTM",
                embedding_size,
                hidden_size,
                norm,
                norm_options,
                bidirectional=bidirectional,
                learn_initial_state=learn_initial_state,
                initial_noise=initial_noise,
            )

        self.document_encoder, self.query_encoder = encoder(), encoder()
        width = hidden_size * (2 if bidirectional else 1)
        self.attention = Attention(width, hidden_size, attention_norm)
        self.answer = nn.Linear(hidden_size, vocabulary_size)
        for layer in (self.document_encoder, self.query_encoder):
            if init is not None:
                initialise(layer, init)
            if forget_bias is not None:
                rnnorm.init.forget_bias_(layer, forget_bias)

    def check_data(self, data: ClozeData) -> None:
        """See whether the data have as many numbers as the model.

        Raises:
            ValueError: they have not.
        """
        assert data.numbering is not None
        size, numbers = self.hparams["vocabulary_size"], len(data.numbering)
        if size != numbers:
            words = len(data.numbering.vocabulary)
            raise ValueError(
                f"model.init_args.vocabulary_size must be {numbers}, the {words} words of the "
                f"training questions, the unknown word and {data.numbering.placeholders} "
                f"placeholders, got {size}"
            )

    def forward(self, batch: ClozeBatch) -> tuple[Tensor, Tensor]:
        """What a minibatch's answers may be, and where the model looks.

        Args:
            batch: the questions.

        Returns:
            scores of the candidates ``(C, B)``, minus infinity where there is none, and the
            attention ``(T, B)``.
        """
        y, _ = self._encode(self.document_encoder, batch.x, batch.lengths)
        _, (h, _) = self._encode(self.query_encoder, batch.query, batch.query_lengths)
        # the last states of both directions side by side
        u = h.transpose(0, 1).flatten(1)
        g, s = self.attention(y, batch.lengths, u)
        numbers = batch.candidates.clamp(min=0)
        scores = (self.answer.weight[numbers] * g).sum(2) + self.answer.bias[numbers]
        return scores.masked_fill(batch.candidates < 0, -torch.inf), s

    def examples(self, data: ClozeData) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Title, caption and picture of two validation questions: where the model looks.

        Args:
            data: the data, loaded.
        """
        numbering = data.numbering
        assert numbering is not None
        batch = next(iter(data.val_dataloader())).to(self.device)
        training = self.training
        with torch.no_grad():
            scores, s = self.eval()(batch)
        self.train(training)

        def words(numbers: Tensor) -> list[str]:
            return [numbering.name(number) for number in numbers.tolist()]

        for i in range(min(2, len(batch.answers))):
            document = words(batch.x[: batch.lengths[i], i])
            query = words(batch.query[: batch.query_lengths[i], i])
            choices, answer = batch.candidates[:, i], int(batch.answers[i])
            said = words(choices[scores[:, i].argmax().reshape(1)])[0]
            right = words(choices[[answer]])[0] if answer >= 0 else "none of the document's words"
            weights = s[: len(document), i].cpu()
            most = [document[at] for at in weights.argsort(descending=True)[:3].tolist()]
            yield (
                f"Attention to a document, question {i + 1}",
                f"{' '.join(query)} Answer: {right}; the model says: {said}. Most attention: "
                f"{', '.join(most)}.",
                partial(plot_attention, words=document, weights=weights),
            )

    def _encode(self, encoder: nn.Module, words: Tensor, lengths: Tensor) -> Any:
        longest = int(lengths.max())
        return encoder(self.embedding(words[:longest]), lengths=lengths)

    def training_step(self, batch: ClozeBatch, batch_idx: int) -> Tensor:
        """Cross-entropy of a minibatch's answers among its candidates, in nats."""
        scores, _ = self(batch)
        loss = cross_entropy(scores.T, batch.answers)
        rows = len(batch.answers)
        self.log("train/loss", loss, prog_bar=True, batch_size=rows)
        self.log("train/error", _error(scores, batch), batch_size=rows)
        return loss

    def validation_step(self, batch: ClozeBatch, batch_idx: int) -> None:
        """Error and cross-entropy on the validation questions."""
        self._evaluate("val", batch)

    def test_step(self, batch: ClozeBatch, batch_idx: int) -> None:
        """Error and cross-entropy on the test questions."""
        self._evaluate("test", batch)

    def statistics_step(self, batch: ClozeBatch) -> None:
        """Run over a minibatch for its statistics."""
        self(batch.to(self.device))

    def _evaluate(self, name: str, batch: ClozeBatch) -> None:
        scores, _ = self(batch)
        there = batch.answers >= 0
        if answerable := int(there.sum()):
            loss = cross_entropy(scores.T[there], batch.answers[there])
            self.log(f"{name}/loss", loss, batch_size=answerable)
        error = _error(scores, batch)
        self.log(f"{name}/error", error, prog_bar=True, batch_size=len(there))


def _error(scores: Tensor, batch: ClozeBatch) -> Tensor:
    """Share of the questions with a wrong answer."""
    return (scores.argmax(0) != batch.answers).float().mean()
