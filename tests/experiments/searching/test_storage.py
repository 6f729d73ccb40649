import sqlite3
from contextlib import closing
from types import SimpleNamespace

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import _file as journals

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.searching.lease import status
from rnnorm.experiments.searching.storage import naming_file, naming_storage, open_storage
from rnnorm.experiments.searching.study import open_study, read_searches
from rnnorm.experiments.training.score import Score

ABOUT = {"recipe": "r", "scale": "paper", "score": "loss", "overrides": []}


@pytest.fixture
def journal(tmp_path):
    """A journal whose last line is a trial."""
    path = tmp_path / "study.journal"
    write(path)
    with open_storage(f"journal:{path}") as storage:
        optuna.load_study(study_name="r", storage=storage).enqueue_trial({})
    return path


def write(path):
    with open_study(path.parent, ABOUT, Score("loss", "min"), f"journal:{path}"):
        pass


def test_a_full_disk_is_named_beside_the_file():
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA max_page_count = 1")
        said = r"No space left on device: 'study\.db'"
        with pytest.raises(OSError, match=said), naming_file("study.db"):
            database.execute("CREATE TABLE studies (name)")
    with pytest.raises(OSError, match=said), naming_file("study.db"):
        raise StorageInternalError("An exception is raised") from sqlite3.Error("disk is full")


def test_an_error_of_a_training_is_none_of_the_journals(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"^lacks train-images$"),
        open_storage(f"journal:{tmp_path}/study.journal"),
    ):
        raise FileNotFoundError("lacks train-images")


def test_a_storage_that_fails_in_mid_work_is_named_without_its_password():
    url = "postgresql://me:secret@host/studies"
    with (
        pytest.raises(RuntimeError, match=r"me:\*\*\*@host/studies failed: gone\. Repeat the"),
        naming_storage(url),
    ):
        raise StorageInternalError("gone\n(Background on this error)")


# within the last line, of it the first byte alone, its line break alone
@pytest.mark.parametrize("left", [-20, 1, -1])
def test_a_journal_that_ends_within_a_line_goes_on_without_it(journal, capsys, left):
    *before, last = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*before, last[:left]]))
    cut = journal.read_bytes()
    assert ", 0 waiting" in status(f"journal:{journal}")
    assert journal.read_bytes() == cut
    write(journal)
    said = f"{journal} ended within line {len(before) + 1}, which is cut off"
    assert capsys.readouterr().err.startswith(said)
    assert journal.read_bytes().startswith(b"".join(before))
    assert ", 0 waiting" in status(f"journal:{journal}")
    write(journal)
    assert capsys.readouterr().err == ""


def test_what_another_process_is_writing_is_not_cut_off(journal, capsys, monkeypatch):
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])

    class Lock(journals.JournalFileSymlinkLock):
        def acquire(self):
            # whoever had the lock has written the line by now
            journal.write_bytes(whole)
            return super().acquire()

    monkeypatch.setattr("rnnorm.experiments.searching.storage.JournalFileSymlinkLock", Lock)
    with open_storage(f"journal:{journal}"):
        pass
    assert journal.read_bytes() == whole
    assert capsys.readouterr().err == ""


def test_the_lock_of_a_process_that_was_killed_is_released(journal, monkeypatch):
    monkeypatch.chdir(journal.parent.parent)
    path = journal.relative_to(journal.parent.parent)
    clock = iter(range(0, 10000, 10))
    told = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(journals, "time", told)
    with open_storage(f"journal:{path}") as storage:
        storage._backend._lock.acquire()
        optuna.create_study(storage=storage, study_name="other")
    assert not journal.with_name("study.journal.lock").is_symlink()


@pytest.mark.parametrize(
    ("text", "line", "byte"),
    [
        ("a note\n", 1, 0),
        ("a note", 1, 0),
        ("{", 1, 0),
        ("[1, 2]\n", 1, 0),
        ("{}\n", 1, 0),
        ('{"op_code":0}\n{"op_code":1, {"op_code":1}\n', 2, 14),
        ('{"op_code":0}\na note', 2, 14),
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(tmp_path, text, line, byte):
    path = tmp_path / "notes"
    path.write_text(text)
    said = rf"journal:{path} is not a study: line {line}, from byte {byte} on, is not a JSON object"
    for opened in (write, lambda path: status(f"journal:{path}")):
        with pytest.raises(ValueError, match=said):
            opened(path)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ['{"op_code":0}', '{"op_code":99}', '{"op_code":4}'])
def test_a_line_that_says_nothing_is_refused_with_the_journals_name(tmp_path, line):
    (tmp_path / "study.journal").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"journal:\S*study\.journal is not a study: "):
        write(tmp_path / "study.journal")


@pytest.mark.parametrize("url", ["journal:typo/study.journal", "sqlite:///typo.db"])
def test_what_only_reads_makes_no_file(tmp_path, monkeypatch, capsys, url):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert main(["search", "--storage", url, "--status"]) == 1
    assert f"there is no study in {url}: there is no such file" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_searches(url)
    assert set(tmp_path.iterdir()) == before


def test_what_only_reads_leaves_another_database_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE users (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"other\.db cannot be opened: .*no such table"):
        status(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_journal_without_a_study_says_so(tmp_path):
    (tmp_path / "study.journal").touch()
    assert status(f"journal:{tmp_path}/study.journal") == "no study yet"
