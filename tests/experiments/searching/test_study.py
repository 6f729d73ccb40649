import sqlite3
from contextlib import closing

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from rnnorm.experiments.searching.lease import status
from rnnorm.experiments.searching.study import open_study, read_search, read_searches
from rnnorm.experiments.training.score import Score

SCORE = Score("loss", "min")
ABOUT = {"recipe": "r", "scale": "paper", "score": "loss", "overrides": []}


def database(path, *statements):
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()


def both_refuse(folder, what):
    before = (folder / "study.db").read_bytes()
    with pytest.raises(ValueError, match=rf"study\.db is not a study: {what}"):
        read_search(folder)
    with (
        pytest.raises(ValueError, match=rf"study\.db is not a study: {what}"),
        open_study(folder, {}, SCORE),
    ):
        pass
    assert (folder / "study.db").read_bytes() == before


def test_an_empty_file_is_no_study_but_may_become_one(tmp_path):
    (tmp_path / "study.db").touch()
    with pytest.raises(ValueError, match=r"study\.db is empty"):
        read_search(tmp_path)
    assert not (tmp_path / "study.db").stat().st_size
    with open_study(tmp_path, {"seed": 1}, SCORE) as study:
        assert study.user_attrs == {"seed": 1}


@pytest.mark.parametrize("data", [b"not a database at all" * 50, bytes(range(256)) * 16])
def test_a_file_of_something_else_is_refused(tmp_path, data):
    (tmp_path / "study.db").write_bytes(data)
    both_refuse(tmp_path, "file is not a database")


def test_another_database_is_refused_and_left_as_it_is(tmp_path):
    database(tmp_path / "study.db", "CREATE TABLE users (name TEXT)")
    both_refuse(tmp_path, "it is another database")


def test_a_view_that_never_ends_is_refused(tmp_path):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    statements = ("CREATE TABLE studies (x)", f"CREATE VIEW trials AS {endless}")
    database(tmp_path / "study.db", *statements)
    both_refuse(tmp_path, "it is another database")


@pytest.mark.parametrize(
    "name", ["a?1", "50%20d", "#a", "{a}", "a b'\"", "é", "a:b@c", "-x", "a\nb"]
)
def test_a_study_is_in_its_folder_whatever_that_is_called(tmp_path, name):
    for folder in (tmp_path / name, tmp_path / f"{name}?2"):
        with open_study(folder, {**ABOUT, "seed": 1}, SCORE) as study:
            assert not study.trials
            study.add_trial(optuna.trial.create_trial(value=0.5))
        assert [trial.value for trial in read_search(folder).trials] == [0.5]
        assert [path.name for path in folder.iterdir()] == ["study.db"]
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}?2", "cwd"}


@pytest.mark.parametrize("name", ["a?1", "50%20d", "#a", "{a}", "a b'\"", "é", "a:b@c", "a\nb"])
def test_a_journal_is_where_it_is_named(tmp_path, name):
    journal = f"journal:{tmp_path / name / 'study?'}"
    with open_study(tmp_path / "out", ABOUT, SCORE, journal) as study:
        study.add_trial(optuna.trial.create_trial(value=0.5))
    assert (tmp_path / name / "study?").is_file()
    assert [len(found.trials) for found in read_searches(journal)] == [1]
    assert "1 complete" in status(journal)


def test_a_question_mark_that_a_url_would_leave_out_is_refused(tmp_path):
    for ask in (lambda url: open_study(tmp_path, ABOUT, SCORE, url).__enter__(), status):
        with pytest.raises(ValueError, match=r"storage must be a URL.*lr\?1.*journal:FILE"):
            ask(f"sqlite:///{tmp_path}/lr?1/study.db")
    assert [path.name for path in tmp_path.iterdir()] == ["cwd"]


def test_a_database_with_braces_is_where_its_url_says(tmp_path):
    url = f"sqlite:///{tmp_path}/{{a}}.db"
    with open_study(tmp_path, ABOUT, SCORE, url):
        pass
    assert (tmp_path / "{a}.db").is_file()
    assert len(read_searches(url)) == 1


def test_a_broken_number_in_a_study_is_refused(tmp_path):
    with open_study(tmp_path, {"recipe": "r"}, SCORE):
        pass
    database(tmp_path / "study.db", "UPDATE study_user_attributes SET value_json = '[1'")
    with pytest.raises(ValueError, match=r"study\.db is not a study"):
        read_search(tmp_path)


@pytest.mark.parametrize(
    ("score", "order"),
    [(Score("loss", "min"), [2, 0, 3, 1]), (Score("accuracy", "max"), [3, 0, 2, 1])],
)
def test_the_best_trial_is_of_the_lowest_loss_or_of_the_highest_accuracy(tmp_path, score, order):
    with open_study(tmp_path, {**ABOUT, "score": score.name}, score) as study:
        for value in (2.0, None, 1.0, 3.0):
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
            study.add_trial(create_trial(value=value, state=state))
        assert study.best_trial.number == order[0]
    assert [trial.number for trial in read_search(tmp_path).trials] == order
