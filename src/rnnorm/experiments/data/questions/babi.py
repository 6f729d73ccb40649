"""The files of bAbI: stories with questions among their sentences."""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rnnorm.experiments.data.questions.question import Question, check_question, numbered_lines
from rnnorm.experiments.data.text_file import TextError, read_text

_NAME = re.compile(r"qa(\d+)_.*_(train|test)\.txt")
_TOKEN = re.compile(r"[^\W_]+|[^\w\s]")
_ARCHIVES = ("*.tar.gz", "*.tgz", "*.tar.xz")


def read_babi(folder: Path, tasks: Sequence[int], part: str) -> Iterator[Question]:
    """Read tasks, one behind the other. Words are in lower case.

    Args:
        folder: holds ``qaN_*_train.txt`` and ``qaN_*_test.txt``, itself or in a folder ``en-10k``
            (also that of ``tasks_1-20_v1-2``), or one archive (.tar.gz, .tgz, .tar.xz) of them.
        tasks: their numbers.
        part: ``"train"`` or ``"test"``.

    Raises:
        FileNotFoundError: a task's file is missing.
        TextError: a file or the archive is broken.
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

    A document is the story's sentences before the question.

    Args:
        text: the file's text: ``n sentence`` a line, or ``n question``, the answer and the numbers
            of supporting sentences with tabs between them; ``n`` starts at 1 in each story.
        source: the file, for the error.

    Raises:
        TextError: a line is neither.
    """
    sentences: list[list[str]] = []
    expected = asked = 0
    for i, line in numbered_lines(text):
        mark, _, rest = line.strip().partition(" ")
        if mark == "1":
            sentences, expected, asked = [], 0, 0
        expected += 1
        if mark != str(expected):
            raise TextError(f"{source} has {mark[:20]!r} in line {i}, not sentence {expected}")
        words, *answer = rest.split("\t")
        tokens = _TOKEN.findall(words.lower())
        if not answer:
            if not tokens:
                raise TextError(f"{source} has an empty sentence in line {i}")
            sentences.append(tokens)
            continue
        if len(answer) != 2:
            raise TextError(f"{source} has {len(answer)} fields behind the question of line {i}")
        yield check_question(
            Question(
                list(sentences), tokens, answer[0].strip().lower(), f"{source}, line {i}", asked
            )
        )
        asked += 1


def _texts(folder: Path, tasks: Sequence[int], part: str) -> dict[int, tuple[str, str]]:
    """Source and text of each task."""
    for inner in (".", "en-10k", "tasks_1-20_v1-2/en-10k"):
        found = {
            int(name.group(1)): path
            for path in sorted((folder / inner).glob("qa*.txt"))
            if (name := _NAME.fullmatch(path.name)) and name.group(2) == part
        }
        if found:
            return {t: (str(p), read_text(p)) for t, p in found.items() if t in tasks}
    archives = sorted(path for ending in _ARCHIVES for path in folder.glob(ending))
    if len(archives) != 1:
        return {}
    return _from_archive(archives[0], tasks, part)


def _from_archive(path: Path, tasks: Sequence[int], part: str) -> dict[int, tuple[str, str]]:
    texts = {}
    try:
        with tarfile.open(path) as archive:
            members = [m for m in archive if _NAME.fullmatch(Path(m.name).name)]
            folders = {Path(member.name).parent for member in members}
            # the published archive has other sizes and languages beside en-10k
            chosen = [folder for folder in folders if folder.name == "en-10k" or len(folders) == 1]
            for member in members:
                name = _NAME.fullmatch(Path(member.name).name)
                task, of = (int(name.group(1)), name.group(2)) if name else (0, "")
                if Path(member.name).parent in chosen and of == part and task in tasks:
                    file = archive.extractfile(member)
                    data = file.read() if file else b""
                    texts[task] = (f"{path}, {member.name}", data.decode("utf-8"))
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise TextError(f"{path} is truncated or corrupted: {error}") from None
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path}, {member.name} is no UTF-8 text: it has {data[error.start]:02x} at byte "
            f"{error.start}"
        ) from None
    return texts
