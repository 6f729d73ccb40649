"""Reader of bAbI: stories with questions among their sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from rnnorm.experiments.data.questions.question import Question, check_question
from rnnorm.experiments.data.tar_file import read_members
from rnnorm.experiments.data.text_file import as_text, numbered_lines, read_text
from rnnorm.experiments.files import BrokenFileError, added_by_system, how_to_raise, raised_limit

_NAME = re.compile(r"qa([0-9]{1,2})_.*_(train|test)\.txt")
_TOKEN = re.compile(r"[^\W_]+|[^\w\s]")
# patterns of the files, with up to two folders above them as browsers unpack archives
_FILES = ("qa*.txt", "en-10k/qa*.txt", "*/en-10k/qa*.txt", "*/*/en-10k/qa*.txt")
_ARCHIVES = ("*.tar.gz", "*.tgz", "*.tar.xz", "*.tar")
# most words of all documents of a file: each question repeats the words of its story
_MOST_WORDS = 1 << 27


def read_babi(folder: Path, tasks: Sequence[int], part: str) -> Iterator[Question]:
    """Read the questions of some tasks in turn, with words in lower case.

    Args:
        folder: folder with ``qaN_*_train.txt`` and ``qaN_*_test.txt``, itself or in a folder
            ``en-10k`` (also that of ``tasks_1-20_v1-2``), or with one archive (.tar.gz, .tgz,
            .tar.xz, .tar) of them.
        tasks: numbers of the tasks.
        part: ``"train"`` or ``"test"``.

    Raises:
        FileNotFoundError: if a task's file is missing.
        BrokenFileError: if a file or the archive is broken.
    """
    texts = _texts(folder, tasks, part)
    if missing := [task for task in tasks if task not in texts]:
        names = ", ".join(f"qa{task}_*_{part}.txt" for task in missing)
        raise FileNotFoundError(f"{folder} lacks {names}: name their folder with --data-dir")
    story = 0
    for task in tasks:
        source, text = texts[task]
        for question in stories(text, source):
            yield question._replace(story=(story := story + (question.story == 0)))


def stories(text: str, source: str) -> Iterator[Question]:
    """Read a file's questions; ``story`` is the question's place in its story.

    A document consists of the story's sentences before the question.

    Args:
        text: the file's text: ``n sentence`` a line, or ``n question``, the answer and the numbers
            of supporting sentences with tabs between them; ``n`` starts at 1 in each story.
        source: the file, for the error.

    Raises:
        BrokenFileError: if a line has another form, the last line is not a question, or the
            documents have too many words.
    """
    sentences: list[list[str]] = []
    expected = asked = words_before = words_in_all = i = 0
    answer: list[str] = []
    for i, line in numbered_lines(text):
        mark, _, rest = line.strip().partition(" ")
        if mark == "1":
            sentences, expected, asked, words_before = [], 0, 0, 0
        expected += 1
        if mark != str(expected):
            raise BrokenFileError(
                f"{source} has {mark[:20]!r} in line {i}, not sentence {expected}"
            )
        words, *answer = rest.split("\t")
        tokens = _TOKEN.findall(words.lower())
        if not answer:
            if not tokens:
                raise BrokenFileError(f"{source} has an empty sentence in line {i}")
            sentences.append(tokens)
            words_before += len(tokens)
            continue
        if len(answer) != 2:
            raise BrokenFileError(
                f"{source} has {len(answer)} fields behind the question of line {i}"
            )
        words_in_all += words_before
        if words_in_all > (most := raised_limit(_MOST_WORDS)):
            raise BrokenFileError(
                f"{source} is too large: up to line {i} its documents have more than {most:,} "
                f"words, the limit; {how_to_raise()}"
            )
        yield check_question(
            Question(
                list(sentences), tokens, answer[0].strip().lower(), f"{source}, line {i}", asked
            )
        )
        asked += 1
    if not answer:
        raise BrokenFileError(f"{source} is truncated: it ends in line {i} without a question")


def _texts(folder: Path, tasks: Sequence[int], part: str) -> dict[int, tuple[str, str]]:
    """Read the source and the text of each task."""
    for pattern in _FILES:
        found = {
            int(name.group(1)): path
            for path in _glob(folder, pattern)
            if (name := _NAME.fullmatch(path.name)) and name.group(2) == part
        }
        if found:
            return {t: (str(p), read_text(p)) for t, p in found.items() if t in tasks}
    archives = [path for ending in _ARCHIVES for path in _glob(folder, ending)]
    if len(archives) != 1:
        return {}
    return _from_archive(archives[0], tasks, part)


def _glob(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    return [path for path in found if not added_by_system(path.relative_to(folder))]


def _from_archive(path: Path, tasks: Sequence[int], part: str) -> dict[int, tuple[str, str]]:
    """Read the source and the text of each task from an archive."""

    def choose(names: Sequence[PurePosixPath]) -> set[PurePosixPath]:
        found = {name: named for name in names if (named := _NAME.fullmatch(name.name))}
        folders = {name.parent for name in found}
        # the published archive has other sizes and languages beside en-10k
        return {
            name
            for name, named in found.items()
            if (name.parent.name == "en-10k" or len(folders) == 1)
            and named.group(2) == part
            and int(named.group(1)) in tasks
        }

    texts = {}
    for name, data in read_members(path, choose):
        source = f"{path}, {name}"
        if named := _NAME.fullmatch(name.name):
            texts[int(named.group(1))] = source, as_text(data, source)
    return texts
