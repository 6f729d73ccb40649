"""Sets of cloze questions, each in three disjoint parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from rnnorm.experiments.console import check_choice
from rnnorm.experiments.data.questions.babi import read_babi
from rnnorm.experiments.data.questions.cmrc import read_cft, read_cmrc
from rnnorm.experiments.data.questions.cnn import read_cnn_part
from rnnorm.experiments.data.questions.question import Question, same_stories
from rnnorm.experiments.data.text_file import find_texts
from rnnorm.experiments.files import users_folder

ClozeDataset = Literal["cnn", "babi", "chinese"]
_CMRC_PARTS = ("doc_query", "answer")
_SUB_FOLDERS = {"cnn": ("cnn", "dailymail"), "babi": ("babi", "babi_en10k")}


def load_questions(
    dataset: ClozeDataset, data_dir: str | Path | None, tasks: Sequence[int] = ()
) -> dict[str, Iterable[Question]]:
    """Read a set by name.

    Args:
        dataset: ``"cnn"``: ``questions/{training,validation,test}``, or these three folders, in the
            folder or in its ``cnn`` or ``dailymail``; read one file at a time. ``"babi"``: the
            tasks' files or the published archive, see ``read_babi``, in the folder or in its
            ``babi`` or ``babi_en10k``; a tenth of the training stories is for validation.
            ``"chinese"``: the validation files of CMRC 2017, in the folder or in its ``cmrc2017``,
            and those of CFT, in the folder or in its ``cft``. The human questions of CFT are for
            test; training leaves out those whose text is one of the test's, and a tenth of its
            texts is for validation.
        data_dir: the folder.
        tasks: numbers of the tasks of bAbI.

    Returns:
        Questions of ``"train"``, ``"val"`` and ``"test"``.

    Raises:
        ValueError: if the name is unknown, or there are no tasks.
        FileNotFoundError: if a file is missing.
        BrokenFileError: if a file is broken.
    """
    check_choice(ClozeDataset, dataset=dataset)
    folder = users_folder(data_dir, dataset)
    if dataset == "chinese":
        return _chinese(folder)
    inner = (folder / name for name in _SUB_FOLDERS[dataset])
    folder = next((path for path in inner if path.is_dir()), folder)
    if dataset == "babi":
        if not tasks or not all(1 <= task <= 20 for task in tasks):
            raise ValueError(f"tasks must be numbers of bAbI's tasks, 1 to 20, got {list(tasks)}")
        train, val = hold_out(list(read_babi(folder, tasks, "train")))
        return {"train": train, "val": val, "test": read_babi(folder, tasks, "test")}
    folder = folder / "questions" if (folder / "questions").is_dir() else folder
    names = {"train": "training", "val": "validation", "test": "test"}
    return {part: read_cnn_part(folder / name) for part, name in names.items()}


def hold_out(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Hold out a fixed random tenth of the stories, at least one, with all their questions.

    Returns:
        The questions that are left, and those held out.
    """
    names = np.unique([question.story for question in questions])
    count = max(1, round(0.1 * len(names)))
    held = set(np.random.RandomState(0).permutation(names)[:count].tolist())
    return (
        [question for question in questions if question.story not in held],
        [question for question in questions if question.story in held],
    )


def _chinese(folder: Path) -> dict[str, Iterable[Question]]:
    names = {
        "cmrc2017": [f"{kind}.valid.{part}" for kind in ("cloze", "user") for part in _CMRC_PARTS],
        "cft": ["cft.test.auto", "cft.test.human"],
    }
    paths = [path for name, files in names.items() for path in find_texts(folder, name, files)]
    human = list(read_cft(paths[5]))
    known = [*_cmrc(paths[:4]), *read_cft(paths[4])]
    together = same_stories([*known, *human])
    test = together[len(known) :]
    seen = {question.story for question in test}
    train, val = hold_out([q for q in together[: len(known)] if q.story not in seen])
    return {"train": train, "val": val, "test": test}


def _cmrc(paths: Sequence[Path]) -> Iterator[Question]:
    yield from read_cmrc(paths[0], paths[1])
    yield from read_cmrc(paths[2], paths[3], blank=False)
