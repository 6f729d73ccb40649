import os
import signal
import threading

import pytest
import torch
from lightning.pytorch import Callback

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.finite import StopIfNotFinite
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import MetricsFile
from rnnorm.experiments.training.signals import Stopped, StopSignals, signals_deferred

RECIPE = "demo/digits-bn"
# a training of 3 epochs of 7 steps


def unbroken_by(*numbers):
    """Sends signals within; and the list of those that were, and did not end it."""
    sent = []

    def send():
        with signals_deferred():
            for number in numbers:
                signal.raise_signal(number)
                sent.append(number)

    return send, sent


def test_a_signal_waits_for_the_end_of_what_is_unbroken(tmp_path):
    send, sent = unbroken_by(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        send()
    assert sent == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    send, sent = unbroken_by(signal.SIGTERM)
    with pytest.raises(Stopped), StopSignals(tmp_path):
        send()
    assert sent == [signal.SIGTERM]


def test_a_second_signal_does_not_wait():
    send, sent = unbroken_by(signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        send()
    assert sent == [signal.SIGINT]


class Send(Callback):
    """Sends the process a signal within a hook, once the training has come to a step."""

    def __init__(self, number, hook, step):
        def send(trainer, *_):
            if trainer.global_step == step:
                os.kill(os.getpid(), number)

        setattr(self, hook, send)


def last(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")


def test_a_signal_before_the_first_step_tells_how_to_resume(tmp_path, tiny, monkeypatch, capsys):
    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    folder = str(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("rnnorm.experiments.training.fit.MetricsFile", interrupted)
        assert main(["fit", RECIPE, "--run-dir", folder, *tiny]) == 130
    assert f"resume with: rnnorm fit --resume {folder}" in capsys.readouterr().out
    assert main(["fit", "--resume", folder]) == 0
    assert last(tmp_path / "run")["global_step"] == 21


def assert_same_training(one, two):
    for name, value in one["state_dict"].items():
        assert torch.equal(value, two["state_dict"][name]), name
    for index, state in one["optimizer_states"][0]["state"].items():
        other = two["optimizer_states"][0]["state"][index]
        assert all(
            torch.equal(torch.as_tensor(v), torch.as_tensor(other[k])) for k, v in state.items()
        )
    for name in ("numpy", "python"):
        assert one["callbacks"]["RandomState"][name] == two["callbacks"]["RandomState"][name]
    assert torch.equal(*(s["callbacks"]["RandomState"]["torch"] for s in (one, two)))
    assert one["global_step"] == two["global_step"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folders = {}

    def run(overrides):
        key = tuple(overrides)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole") / "run"
            fit(RECIPE, run_dir=folders[key], overrides=overrides, quiet=True)
        return last(folders[key])

    return run


# where the signal comes, and the step that is kept: an epoch's last one is kept after validation
STOPS = [
    ("on_train_start", 0, None),
    ("on_train_batch_start", 0, 1),
    ("on_before_optimizer_step", 0, 1),
    ("on_before_optimizer_step", 3, 4),
    ("on_before_zero_grad", 6, 6),
    ("on_train_batch_end", 7, 6),
    ("on_validation_start", 7, 6),
    ("on_validation_batch_end", 14, 13),
    ("on_train_epoch_end", 14, 14),
    # between two steps: while data are read
    ("on_train_batch_start", 10, 11),
    ("on_train_batch_start", 20, 20),
]


# both signals have one handler: they take turns
@pytest.mark.parametrize(
    ("number", "hook", "step", "kept"),
    [((signal.SIGINT, signal.SIGTERM)[k % 2], *stop) for k, stop in enumerate(STOPS)],
)
def test_a_stopped_training_goes_on_as_if_nothing_had_been(
    tmp_path, tiny, whole, capsys, number, hook, step, kept
):
    folder = tmp_path / "run"
    with pytest.raises(Stopped) as stopped:
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[Send(number, hook, step)])
    assert (stopped.value.status, stopped.value.folder) == (128 + number, folder)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    said = capsys.readouterr().out
    if kept is None:
        assert "stopped. No checkpoint had been written yet" in said
    else:
        assert f"last.ckpt (step {kept})" in said
        assert last(folder)["global_step"] == kept
    fit(resume=folder)
    assert f"resuming at step {kept or 0}\n" in capsys.readouterr().out
    assert_same_training(whole(tiny), last(folder))


def test_with_accumulated_gradients_a_validation_costs_one_step_too(tmp_path, tiny):
    # six minibatches an epoch: steps of three and three
    tiny = [*tiny, "--trainer.limit_train_batches=6", "--trainer.accumulate_grad_batches=3"]
    folder = tmp_path / "run"
    send = Send(signal.SIGINT, "on_validation_start", 4)
    with pytest.raises(Stopped):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[send])
    assert last(folder)["global_step"] == 3


def test_a_training_is_stopped_within_the_pass_that_estimates_statistics(tmp_path, tiny, whole):
    folder, calls = tmp_path / "run", []

    class Slow(Callback):
        def on_fit_start(self, trainer, module):
            module.register_forward_hook(self.forward)
            self.module = module

        def forward(self, *_):
            # in update_bn there is no gradient, and not everything is in evaluation
            training = any(module.training for module in self.module.modules())
            if training and not torch.is_grad_enabled():
                calls.append(1)
                if len(calls) == 3:
                    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[Slow()])
    assert len(calls) == 3
    assert last(folder)["global_step"] == 6
    fit(resume=folder)
    assert_same_training(whole(tiny), last(folder))


# an exception within a queue's lock can leave the thread that writes a log waiting for minutes
@pytest.mark.parametrize(("metric", "kept"), [("train/loss", 6), ("val/loss", 7)])
def test_a_signal_waits_while_metrics_are_logged(tmp_path, tiny, whole, monkeypatch, metric, kept):
    folder, logged = tmp_path / "run", []
    log = MetricsFile.log_metrics

    def send(self, metrics, **given):
        if metric in metrics and given["step"] == 6 and not logged:
            os.kill(os.getpid(), signal.SIGTERM)
            logged.append(metric)
        log(self, metrics, **given)

    monkeypatch.setattr(MetricsFile, "log_metrics", send)
    tiny = [*tiny, "--trainer.log_every_n_steps=1"]
    with pytest.raises(Stopped):
        fit(RECIPE, run_dir=folder, overrides=tiny)
    assert logged == [metric]
    assert last(folder)["global_step"] == kept
    fit(resume=folder)
    assert_same_training(whole(tiny), last(folder))


def test_a_signal_at_the_end_of_a_training_stops_what_called_it(tmp_path, tiny):
    with pytest.raises(Stopped):
        fit(
            RECIPE,
            run_dir=tmp_path / "run",
            overrides=tiny,
            callbacks=[Send(signal.SIGTERM, "on_train_end", 21)],
        )


def test_a_validation_within_an_epoch_is_repeated(tmp_path, tiny, whole):
    tiny = [*tiny, "--trainer.val_check_interval=3"]
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        fit(
            RECIPE,
            run_dir=folder,
            overrides=tiny,
            every_n_steps=1,
            callbacks=[Send(signal.SIGINT, "on_validation_batch_end", 10)],
        )
    assert last(folder)["global_step"] == 9
    fit(resume=folder)
    assert_same_training(whole(tiny), last(folder))


def test_a_second_signal_stops_within_the_step(tmp_path, tiny, whole):
    folder = tmp_path / "run"
    twice = [Send(signal.SIGINT, "on_before_zero_grad", 4) for _ in range(2)]
    with pytest.raises(Stopped) as stopped:
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=3, callbacks=twice)
    assert stopped.value.status == 130
    assert last(folder)["global_step"] == 3
    fit(resume=folder)
    assert_same_training(whole(tiny), last(folder))


@pytest.mark.parametrize(
    ("command", "goes_on", "number"),
    [
        (["fit", RECIPE, "--run-dir", "a b"], ["fit", "--resume", "'a b'"], signal.SIGTERM),
        (["compare", RECIPE, "demo/digits-ln", "--out", "a b"], None, signal.SIGTERM),
        (["demo", "--seeds", "1", "--out", "a"], None, signal.SIGINT),
    ],
)
def test_a_stopped_command_says_how_it_goes_on(tiny, monkeypatch, capsys, command, goes_on, number):
    def send(*_):
        os.kill(os.getpid(), number)

    monkeypatch.setattr(StopIfNotFinite, "on_before_optimizer_step", send)
    assert main([*command, *tiny]) == 128 + number
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    again = goes_on or [f"'{word}'" if " " in word else word for word in [*command, *tiny]]
    assert said.out.splitlines()[-1] == f"resume with: rnnorm {' '.join(again)}"


def test_ctrl_c_before_a_training_is_no_traceback(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rnnorm.experiments.commands.recipes.run", interrupted)
    assert main(["recipes"]) == 130
    assert capsys.readouterr().out == ""


def test_ignored_signals_stay_ignored(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals(tmp_path) as signals:
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.came is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_another_machine_may_never_come_a_signal_ends_the_process(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    signals = StopSignals(tmp_path)
    signals.wait = False
    with signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(number) is signal.SIG_DFL
        signals.on_train_start(None, None)
        signals.on_train_batch_start()
        signal.raise_signal(signal.SIGTERM)
        assert signals.came == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_changes(tmp_path):
    handlers = []

    def enter():
        with StopSignals(tmp_path):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
