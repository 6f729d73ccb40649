"""Run folders of rnnorm at commit a471234 load, are measured and go on as they did there.

``runs_before/`` holds what ``rnnorm fit`` and then ``rnnorm test`` wrote on the reference kernel:
``digits`` after its only epoch, ``words`` after 2 epochs on the texts of the fixture ``published``,
``accumulated`` cut off after the first of the 4 steps of its second epoch. All numbers here are
that code's as well, which has trained each for one epoch more.
"""

import shutil
import tarfile
from pathlib import Path

import pytest

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.metrics import read_metrics

FOLDER = Path(__file__).parent / "runs_before"
RUNS = ["digits", "words", "accumulated"]
# the kernels round differently
NEAR = 1e-3


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    for run in RUNS:
        with tarfile.open(FOLDER / f"{run}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(autouse=True)
def _copies(before):
    for run in RUNS:
        shutil.copytree(before / run, run)


@pytest.fixture
def data(published):
    """The option that names where a run's data are now, by the run."""
    return {"digits": [], "words": [f"--data-dir={published}"], "accumulated": []}


@pytest.mark.parametrize(
    ("name", "recipe", "epochs", "steps", "best", "best_epoch", "best_step"),
    [
        ("digits", "demo/digits-bn", 1, 10, 0.288888901, 1, 10),
        ("words", "laurent2015/ptb-word-small-bn", 2, 10, 5.64039278, 2, 10),
        ("accumulated", "demo/digits-ln", 1, 5, 0.125925928, 1, 4),
    ],
)
def test_an_older_run_has_the_same_outcome(
    name, recipe, epochs, steps, best, best_epoch, best_step
):
    outcome = read_outcome(name)
    assert (outcome.recipe, outcome.epochs, outcome.steps) == (recipe, epochs, steps)
    assert outcome.best == pytest.approx(best, rel=1e-6)
    assert (outcome.best_epoch, outcome.best_step) == (best_epoch, best_step)
    assert "hidden_size=4" in outcome.changes
    (place,) = outcome.places
    assert place["kernels"] == "reference"


@pytest.mark.parametrize("name", RUNS)
def test_an_older_run_has_the_same_test_score(name, data):
    kept = read_measurements(name)
    (Path(name) / "tests.json").unlink()
    assert main(["test", name, *data[name]]) == 0
    again = read_measurements(name)
    assert [(m.epoch, m.step, m.statistics) for m in again] == [
        (m.epoch, m.step, m.statistics) for m in kept
    ]
    for new, old in zip(again, kept, strict=True):
        assert new.metrics == pytest.approx(old.metrics, rel=NEAR)


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.parametrize(
    ("name", "epochs", "steps", "loss", "best"),
    [
        ("digits", 2, 20, 1.96377921, 0.348148137),
        ("words", 3, 15, 1.58773339, 4.89264679),
        ("accumulated", 2, 8, 2.23810911, 0.144444451),
    ],
)
def test_an_older_run_resumes_to_the_same_scores(name, epochs, steps, loss, best, data):
    further = ["fit", "--resume", name, f"--trainer.max_epochs={epochs}", *data[name]]
    assert main(further) == 0
    losses = read_metrics(Path(name) / "metrics.csv")["val/loss"]
    assert [point.epoch for point in losses] == list(range(epochs))
    assert losses[-1].value == pytest.approx(loss, rel=NEAR)
    outcome = read_outcome(name)
    assert (outcome.epochs, outcome.steps, outcome.best_epoch) == (epochs, steps, epochs)
    assert outcome.best == pytest.approx(best, rel=NEAR)


def test_a_report_of_older_runs_names_them_all():
    # the texts of the run on words are not where they were
    assert main(["report", *RUNS, "--out", "page.html"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    for name in RUNS:
        assert read_outcome(name).recipe in page
    assert "28.89" in page
    assert "5.640" in page
