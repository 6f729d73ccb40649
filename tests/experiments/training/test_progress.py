import io
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from rnnorm.experiments.training.clock import Clock, StopAfter
from rnnorm.experiments.training.progress import ProgressLines, StepsBar, TimeAhead
from rnnorm.experiments.training.score import Score


@pytest.fixture
def said(capsys):
    """What is said after steps of so many seconds each, of a training of so many."""

    def train(seconds, steps, about, callbacks=()):
        clock = Clock()
        ahead = TimeAhead(about, clock)
        for step in range(1, 31):
            clock.seconds += seconds
            ahead.on_train_batch_end(
                SimpleNamespace(
                    global_step=step, estimated_stepping_batches=steps, callbacks=callbacks
                )
            )
        return capsys.readouterr().out

    return train


PAPER = {"recipe": "demo/digits-bn", "scale": "paper"}


def test_it_says_once_how_long_the_training_takes(said):
    assert said(0.1, 321, PAPER) == "about 30 s to go: 300 steps of 100 ms, without validation\n"


def test_slow_steps_are_told_after_ten_seconds(said):
    assert "998 steps of 6000 ms" in said(6.0, 1001, {**PAPER, "scale": "small"})


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"recipe": "cooijmans2016/pmnist-bn", "scale": "paper"}, True),
        ({"recipe": "cooijmans2016/pmnist-bn", "scale": "small"}, False),
        ({"recipe": "demo/digits-bn", "scale": "paper"}, False),
    ],
)
def test_a_long_training_names_the_small_scale_where_there_is_one(said, about, named):
    assert ("--scale small ends within minutes" in said(1.0, 10_000, about)) is named


def test_a_budget_in_steps_ends_it_earlier(said):
    assert "about 10 s to go: 100 steps" in said(0.1, 321, PAPER, [StopAfter(121)])


def test_a_training_without_an_end_says_nothing(said):
    assert said(0.1, float("inf"), PAPER) == ""


def test_a_line_of_an_epoch_has_no_scores_of_an_earlier_step(capsys):
    clock = Clock()
    lines = ProgressLines(clock)
    metrics = {"train/loss": 2.0, "val/loss": 3.0, "val/accuracy": 0.5}
    trainer = SimpleNamespace(
        global_step=10, max_epochs=2, current_epoch=0, callback_metrics=metrics
    )
    model = SimpleNamespace(score=Score("accuracy", "max"))
    lines.on_validation_end(trainer, model)
    lines.on_train_epoch_end(trainer, model)
    assert "validation accuracy 50.00 %" in capsys.readouterr().out
    trainer.global_step = 13
    lines.on_train_epoch_end(trainer, model)
    said = capsys.readouterr().out
    assert "13 steps, training loss 2.0000 nats" in said
    assert "validation" not in said
    trainer.global_step = 1
    lines.on_train_epoch_end(trainer, model)
    assert ", 1 step, training" in capsys.readouterr().out


@pytest.fixture
def bar():
    with tqdm(file=io.StringIO(), mininterval=0) as made:
        yield made


def train(callback, start, end, steps):
    trainer = SimpleNamespace(
        global_step=start,
        estimated_stepping_batches=steps,
        callbacks=[],
        callback_metrics={"val/accuracy": 0.5},
    )
    callback.on_train_start(trainer, None)
    for step in range(start + 1, end + 1):
        trainer.global_step = step
        callback.on_train_batch_end(trainer)
    callback.on_validation_end(trainer, None)


def test_one_bar_counts_the_steps_of_all_trainings(bar):
    for name in ("first", "second"):
        train(StepsBar(Score("accuracy", "max"), bar, name, trainings=2), 0, 10, 10)
    assert (bar.n, bar.total) == (20, 20)
    assert "second" in str(bar)
    assert "validation accuracy 50.00 %" in str(bar)


def test_the_time_left_of_a_resumed_training_is_by_the_steps_taken_now(bar):
    train(StepsBar(Score("accuracy", "max"), bar), 90, 95, 100)
    assert (bar.n, bar.initial, bar.total) == (95, 90, 100)


def test_without_a_terminal_there_is_no_bar(capsys):
    callback = StepsBar(Score("accuracy", "max"))
    train(callback, 0, 3, 3)
    callback.teardown(None, None, "fit")
    assert capsys.readouterr() == ("", "")
