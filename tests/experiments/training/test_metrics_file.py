import pytest

from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.training.metrics import MetricsFile, read_metrics

HEAD = "step,epoch,seconds,name,value\n"
LINE = "4,0,1.250,val/loss,0.5\n"


@pytest.fixture
def read(tmp_path):
    def of(text):
        (tmp_path / "metrics.csv").write_text(text)
        return read_metrics(tmp_path / "metrics.csv")

    return of


def test_curves_by_name(read):
    assert read(HEAD + LINE * 2) == {"val/loss": [(4, 0, 1.25, 0.5)] * 2}
    assert read(HEAD) == {}


def test_a_line_that_was_cut_off_is_left_out(read):
    assert read(HEAD + LINE + "5,0,1.3")["val/loss"] == [(4, 0, 1.25, 0.5)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD + LINE + "4,0,1.250,val/loss\n", "in line 3: it must have 5 values, got 4"),
        (HEAD + "4,0,1.250,val/loss,0.5,1\n", "in line 2: it must have 5 values, got 6"),
        (HEAD + "4,0,1.250,val/loss,half\n", "in line 2: could not convert"),
        (HEAD + "4.5,0,1.250,val/loss,0.5\n", "in line 2: invalid literal"),
        (HEAD + f"4,0,1.250,{'x' * 140_000},0.5\n", "in line 2: field larger than field limit"),
        (HEAD + "4,-1,1.250,val/loss,0.5\n", "in line 2: epoch must be from 0 to .*, got -1"),
        (HEAD + "-1,0,1.250,val/loss,0.5\n", "in line 2: step must be from 0 to .*, got -1"),
        (HEAD + f"{2**63},0,1,val/loss,0.5\n", f"in line 2: step must be .*, got {2**63}"),
        (HEAD + f"4,{'9' * 400},1,val/loss,0.5\n", "in line 2: epoch must be from 0 to .*, got 9"),
        (HEAD + "4,0,-1,val/loss,0.5\n", "in line 2: seconds must be a finite number of .*got -1"),
        (HEAD + "4,0,nan,val/loss,0.5\n", "in line 2: seconds must be a finite .*, got nan"),
        (HEAD + "4,0,inf,val/loss,0.5\n", "in line 2: seconds must be a finite .*, got inf"),
        ("epoch,step,seconds,name,value\n" + LINE, "in line 1: it must begin with step,epoch"),
    ],
)
def test_a_broken_line_is_named(read, text, what):
    with pytest.raises(ValueError, match=rf"metrics\.csv is broken {what}"):
        read(text)


def test_a_number_without_an_epoch_is_of_the_one_before(tmp_path):
    log = MetricsFile(tmp_path / "metrics.csv", Clock(), 0)
    log.log_metrics({"val/loss": 0.5, "epoch": 2}, 7)
    log.log_metrics({"rate, of Adam": 0.25}, 8)
    # a resumed training reads and writes it anew
    log = MetricsFile(tmp_path / "metrics.csv", Clock(), 9)
    log.log_metrics({"rate, of Adam": 0.125}, 9)
    found = read_metrics(tmp_path / "metrics.csv")["rate, of Adam"]
    assert [(point.epoch, point.value) for point in found] == [(2, 0.25), (2, 0.125)]
