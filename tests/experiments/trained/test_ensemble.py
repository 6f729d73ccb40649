"""``rnnorm test RUN RUN ...``: the mean of several runs' predictions."""

import pytest
import torch
from stroke_files import write_kanji
from torch.nn.functional import nll_loss

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.trained.load import load_trained
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit

TEXT = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.hidden_size=6",
    "--data.init_args.length=20",
    "--data.init_args.batch_size=10",
]


def trained(name, tiny, seed=1, *more):
    options = [*tiny, f"--seed_everything={seed}", *more]
    return fit(f"demo/digits-{name}", run_dir=f"{name}-{seed}", overrides=options).folder


def test_the_mean_of_the_probabilities_is_measured(tiny):
    runs = [trained("bn", tiny), trained("bn", tiny, 2), trained("lstm", tiny)]
    population, batch = measure(runs[0], beside=runs[1:])
    assert (population.statistics, batch.statistics) == ("population", "batch")
    experiments = [load_trained(run).experiment for run in runs]
    experiments[0].set_up("test")
    losses, right, rows = 0.0, 0.0, 0
    with torch.no_grad():
        for x, y in experiments[0].datamodule.test_dataloader():
            mean = sum(e.model.eval()(x).softmax(1) for e in experiments) / 3
            losses += float(nll_loss(mean.log(), y, reduction="sum"))
            right += int((mean.argmax(1) == y).sum())
            rows += len(y)
    assert population.metrics["test/loss"] == pytest.approx(losses / rows, rel=1e-5)
    assert population.metrics["test/accuracy"] == pytest.approx(right / rows, rel=1e-6)
    assert batch.metrics["test/loss"] != pytest.approx(losses / rows, rel=1e-4)


@pytest.mark.parametrize("estimate", [False, True])
def test_a_run_beside_itself_scores_as_it_does_alone(tiny, estimate):
    run = trained("bn", tiny)
    alone = measure(run, estimate=estimate)
    both = measure(run, beside=[run], estimate=estimate)
    for one, two in zip(alone, both, strict=True):
        # the noise on h_0 is drawn anew for each estimate
        assert two.metrics["test/loss"] == pytest.approx(one.metrics["test/loss"], rel=1e-4)


def test_each_model_of_a_text_carries_its_own_state(sentences):
    options = {"data_dir": sentences, "overrides": [*TEXT, "--model.vocabulary_size=19"]}
    one = fit("cooijmans2016/ptb-char-lstm", run_dir="one", **options).folder
    (alone,), (both,) = measure(one), measure(one, beside=[one, one])
    assert both.metrics == pytest.approx(alone.metrics, rel=1e-5)


def test_nothing_of_several_runs_is_kept(tiny, capsys):
    runs = [str(trained("lstm", tiny)), str(trained("lstm", tiny, 2))]
    assert main(["test", *runs]) == 0
    shown = capsys.readouterr()
    assert "test accuracy" in shown.out
    assert "not kept: the predictions are of several runs" in shown.err
    assert not list(trained("lstm", tiny, 3).parent.rglob("tests.json"))


def test_runs_of_other_data_are_refused(tiny):
    one = trained("lstm", tiny)
    other = trained("lstm", tiny, 2, "--data.permutation=none")
    with pytest.raises(
        ValueError, match=r"lstm-2 must have the data .*: permutation is .fixed. and .none."
    ):
        measure(one, beside=[other])


def test_a_checkpoint_is_refused_beside_several_runs(tiny):
    one = trained("lstm", tiny)
    with pytest.raises(ValueError, match="checkpoint must be None with several runs"):
        measure(one, one / "checkpoints" / "last.ckpt", beside=[one])


def test_models_that_predict_no_classes_are_refused(tmp_path):
    folder = write_kanji(tmp_path / "handwriting").parent
    sizes = ["--model.init_args.hidden_size=4", "--model.init_args.components=2"]
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.log_every_n_steps=1",
        "--data.init_args.batch_size=10",
        *sizes,
    ]
    run = fit("handwriting/kanji-lstm", data_dir=folder, epochs=1, overrides=overrides).folder
    with pytest.raises(ValueError, match=r"several runs must predict classes.*Writer does not"):
        measure(run, beside=[run])
