"""A translation model: a bidirectional encoder, and a decoder that attends to it."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.text.parallel import ParallelBatch, ParallelBatches
from rnnorm.experiments.data.text.vocabulary import END
from rnnorm.experiments.models.bleu import CorpusBleu
from rnnorm.experiments.models.feeding import write, writing_freely
from rnnorm.experiments.models.generation_training import (
    Progress,
    Task,
    Teacher,
    Way,
    likelihood_loss,
    training_by_name,
)
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.measures import Likelihood
from rnnorm.experiments.models.recurrent_model import RecurrentModel, side_by_side
from rnnorm.experiments.tasks.translation.beam import beam_search
from rnnorm.experiments.tasks.translation.data import TranslationData
from rnnorm.experiments.tasks.translation.decoder import Decoder, DecoderState
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score


class Translator(RecurrentModel):
    """A bidirectional encoder of a sentence, and a decoder with attention that translates it.

    The decoder's first states are functions of the encoder's last ones, as in Bahdanau et al. 2015.

    Args:
        source_size: number of source words, the end and the unknown word included.
        target_size: number of target words, the end and the unknown word included.
        embedding_size: width of both embeddings.
        dropout: dropout of embeddings, of the encoder's outputs and of the decoder's features,
            never of a recurrent connection.
        training: way to train, see :mod:`rnnorm.experiments.models.generation_training`.
        training_options: arguments of the way's class.
        beam: hypotheses of beam search in validation, test and translation; 1 is greedy.
        limit: most words of a translation, the end included.
        statistics: symbols that are fed when population statistics are computed again:
            ``"teacher"``, the truth, or ``"free"``, the decoder's own.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`;
            ``hidden_size`` is that of the encoder in each direction and of the decoder.

    Attributes:
        score: the metric of the best checkpoint, BLEU.
        in_processes: whether the decoder is fed the truth alone. Free running takes a different
            number of steps in every process, and processes would wait for each other.

    Raises:
        ValueError: if a name is unknown, the cell is an HMLSTM, or a number is out of range.
    """

    score = Score("bleu", "max")
    kind = "a translator"
    writes = "translates: write RUN --from FILE"

    def __init__(
        self,
        source_size: int = 5002,
        target_size: int = 5002,
        embedding_size: int = 256,
        dropout: float = 0.0,
        training: Way = "teacher",
        training_options: dict[str, Any] | None = None,
        beam: int = 1,
        limit: int = 60,
        statistics: Literal["teacher", "free"] = "teacher",
        **layers: Any,
    ) -> None:
        super().__init__(**layers)
        if self.hparams["cell"] == "HMLSTM":
            raise ValueError("cell must be another one to translate, got 'HMLSTM'")
        check_at_least(1, beam=beam, limit=limit)
        self.in_processes = training == statistics == "teacher"
        self.way = training_by_name(training, training_options)
        self.embedding = nn.Embedding(source_size, embedding_size)
        self.encoder = self.make_layer(embedding_size, bidirectional=True)
        # the encoder provides the decoder's first states
        rnn = self.make_layer(embedding_size, learn_initial_state=False)
        hidden_size = rnn.hidden_size
        self.decoder = Decoder(target_size, rnn, 2 * hidden_size, dropout)
        states = 2 if self.hparams["cell"] == "LSTM" else 1
        self.first_states = nn.ModuleList(
            nn.Linear(2 * hidden_size, hidden_size) for _ in range(states)
        )
        # only MIXER uses it, but with it a model of any way can continue in any other
        self.baseline = nn.Linear(hidden_size, 1).requires_grad_(training == "mixer")
        for layer in (self.encoder, rnn):
            initialise(layer, self.hparams["init"])
        self.val_bleu, self.test_bleu = CorpusBleu(), CorpusBleu()
        self.val_likelihood, self.test_likelihood = Likelihood(), Likelihood()

    def check_data(self, data: TranslationData) -> None:
        """Check that the data have as many words as the model.

        Raises:
            ValueError: if the data need another ``source_size`` or ``target_size``.
        """
        for name, numbers in (("source", data.source), ("target", data.target)):
            words = len(numbers.vocabulary)
            what = f"the {words} words of the {name}, the end and the unknown word"
            self.expect_size(f"{name}_size", len(numbers), what)

    def encode(self, source: Tensor, lengths: Tensor) -> DecoderState:
        """Encode sentences: return the decoder's memory and first states.

        Args:
            source: numbers of words ``(S, B)``.
            lengths: words of each sentence ``(B,)``.
        """
        rate = self.hparams["dropout"]
        words = source[: int(lengths.max())]
        y, last = self.encoder(drop(self.embedding(words), rate, self.training), lengths=lengths)
        memory = self.decoder.attention.memory(drop(y, rate, self.training), lengths)
        ends = map(side_by_side, last if isinstance(last, tuple) else (last,))
        h, *c = (f(end).unsqueeze(0) for f, end in zip(self.first_states, ends, strict=True))
        # h is within -1 and 1, c need not be
        return DecoderState(memory, (h.tanh(), *c) if c else h.tanh())

    def task(self, batch: ParallelBatch) -> Task:
        """Return the task of a minibatch for a way to train."""
        target = batch.target[: int(batch.target_lengths.max())]
        return Task(
            partial(write, self.decoder, self.encode(batch.source, batch.source_lengths)),
            self.decoder.scores,
            torch.cat([torch.full_like(target[:1], END), target[:-1]]),
            target,
            batch.target_lengths,
            self.hparams["target_size"],
            lambda features: self.baseline(features).squeeze(1),
        )

    @torch.no_grad()
    def translate(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Write translations, greedily or by beam search.

        Args:
            source: numbers of words ``(S, B)``.
            lengths: words of each sentence ``(B,)``.

        Returns:
            Numbers of words ``(T, B)``, to be read up to each row's first end symbol.
        """
        at, given = self.encode(source, lengths), self.hparams
        if given["beam"] > 1:
            return beam_search(self.decoder, at, given["beam"], given["limit"])
        free = writing_freely(len(lengths), given["limit"], source.device)
        return write(self.decoder, at, free).chosen

    def write_samples(self, data: TranslationData, count: int) -> list[str]:
        """Translate the first validation sentences, and return both sides of each."""
        loader = data.loaders["val"]
        assert isinstance(loader, ParallelBatches)
        sources = [source for source, _ in loader.pairs[:count]]
        lengths = torch.tensor([len(source) for source in sources], device=self.device)
        found = self.translate(pad_sequence(sources).to(self.device), lengths)
        return [
            f"{data.source.sentence(source.tolist())} → {data.target.sentence(target.tolist())}"
            for source, target in zip(sources, found.T, strict=True)
        ]

    def training_step(self, batch: ParallelBatch, batch_idx: int) -> Tensor:
        """Compute the loss of the way to train."""
        progress = Progress(self.global_step, self.current_epoch)
        found = self.way.loss(self.task(batch), progress)
        symbols = int(batch.target_lengths.sum())
        for name, value in found.items():
            self.log(f"train/{name}", value, prog_bar=name == "loss", batch_size=symbols)
        return found["loss"] * processes.loss_weight(symbols)

    def statistics_step(self, batch: ParallelBatch) -> None:
        """Run over a minibatch to collect its statistics, fed with the truth or freely."""
        batch = self.transfer_batch_to_device(batch, self.device, 0)
        if self.hparams["statistics"] == "free":
            at, limit = self.encode(batch.source, batch.source_lengths), self.hparams["limit"]
            write(self.decoder, at, writing_freely(len(batch[1]), limit, self.device))
            return
        task = self.task(batch)
        task.write(Teacher().feeding(task, Progress()))

    def evaluate(self, name: str, batch: ParallelBatch) -> None:
        """Log BLEU of the translations, and the cross-entropy with the truth fed."""
        task, symbols = self.task(batch), int(batch.target_lengths.sum())
        loss = likelihood_loss(task, Teacher().feeding(task, Progress()))
        likelihood, bleu = getattr(self, f"{name}_likelihood"), getattr(self, f"{name}_bleu")
        likelihood(loss, symbols)
        bleu.update(self.translate(batch.source, batch.source_lengths), batch.target)
        self.log(f"{name}/loss", likelihood, batch_size=symbols)
        self.log(f"{name}/bleu", bleu, prog_bar=True, batch_size=symbols)
