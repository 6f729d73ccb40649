"""Data of cloze questions: documents with queries that lack a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.questions.cnn import ENTITY
from rnnorm.experiments.data.questions.corpora import ClozeDataset, load_questions
from rnnorm.experiments.data.questions.encode import Numbering, QuestionBatches, Raw, read_raw
from rnnorm.experiments.data.questions.question import BLANK, is_word, most_relevant
from rnnorm.experiments.data.text.vocabulary import KeepsVocabulary

#: the tasks of bAbI whose answers are words of their stories, but for task 3 with its long stories
BABI_TASKS = (1, 2, 4, 5, 11, 12, 13, 14, 16)


class ClozeData(KeepsVocabulary):
    """Questions in minibatches :class:`rnnorm.experiments.data.questions.encode.ClozeBatch`.

    A training question whose answer is not in its document is left out; in validation and test it
    counts as an error. Their number is printed once, when a training starts.

    Args:
        dataset: ``"cnn"``, ``"babi"`` or ``"chinese"``, see
            :func:`rnnorm.experiments.data.questions.corpora.load_questions`.
        tasks: numbers of bAbI's tasks; by default those whose answers stand in their stories.
        sentences: cut each document to this many sentences
            (:func:`rnnorm.experiments.data.questions.question.most_relevant`); None for all.
        words: size of the vocabulary
            (``Numbering``); None for all words of the
            training questions.
        placeholders: numbers for words that the vocabulary lacks, shuffled in each text.
        train_size: keep only this many training questions, a fixed random choice; the vocabulary
            is that of all.
        eval_size: keep only this many questions for validation and as many for test.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        numbering: numbers of the words, once the data are loaded.

    Raises:
        ValueError: if an argument is unknown or less than its minimum.
    """

    def __init__(
        self,
        dataset: ClozeDataset = "babi",
        tasks: list[int] | None = None,
        sentences: int | None = None,
        words: int | None = None,
        placeholders: int = 0,
        train_size: int | None = None,
        eval_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_at_least(1, sentences=sentences, words=words)
        check_at_least(0, placeholders=placeholders)
        if tasks is not None and dataset != "babi":
            raise ValueError(f"tasks must be None for {dataset}, they are bAbI's, got {tasks}")
        self.numbering: Numbering | None = None

    def load(self) -> dict[str, QuestionBatches]:
        """Read the questions.

        Raises:
            ValueError: if a file is broken, or no training question has its answer in its document.
            FileNotFoundError: if ``data_dir`` lacks a file.
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
        self.vocabulary = self.numbering.vocabulary
        self.source = f"the training questions of {dataset}"
        summaries, loaders = [], {}
        for part, questions_of_part in raw.items():
            loaders[part], summary = self._batches(part, questions_of_part, self.numbering)
            summaries.append(summary)
        self.notes = [f"questions: {'; '.join(summaries)}"]
        return loaders

    def _batches(
        self, part: str, raw: Sequence[Raw], numbering: Numbering
    ) -> tuple[QuestionBatches, str]:
        """Make minibatches of a part, and a summary of it in words."""
        given, train = self.hparams, part == "train"
        # shuffle before some are left out, since neighbours share a story or a task
        order = np.random.RandomState(0).permutation(len(raw))
        chosen = [raw[i] for i in order[: given["train_size" if train else "eval_size"]]]
        questions = [numbering.question(question) for question in chosen]
        without = [r.source for r, q in zip(chosen, questions, strict=True) if q.answer < 0]
        summary = f"{len(questions)} {part}"
        if without:
            fate = "left out" if train else "errors"
            summary += (
                f", {len(without)} of them {fate} since their documents have not their answers"
            )
            summary += f" ({without[0]})"
        if train:
            questions = [question for question in questions if question.answer >= 0]
            if not questions:
                raise ValueError(f"no document of the training questions has its answer: {summary}")
        rows, seed = self.rows_and_seed(part)
        return QuestionBatches(questions, rows, numbering.unknown + 1, seed), summary


def _is_entity(word: str) -> bool:
    return ENTITY.fullmatch(word) is not None


def _is_answer(word: str) -> bool:
    return is_word(word) and word != BLANK
