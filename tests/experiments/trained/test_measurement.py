import json
from dataclasses import asdict, replace

import pytest

from rnnorm.experiments.trained.measurement import (
    Measurement,
    keep_measurements,
    read_measurements,
)


def measurement(value, **given):
    fields = {
        "checkpoint": "best.ckpt",
        "epoch": 2,
        "statistics": "population",
        "length": None,
        "estimated": False,
        "overrides": (),
    }
    return Measurement(**fields | given, metrics={"test/accuracy": value})


def test_what_is_kept_is_what_was_measured(tmp_path):
    kept = [measurement(0.5), measurement(0.25, statistics="batch", overrides=("--a=1",))]
    keep_measurements(tmp_path, kept)
    assert read_measurements(tmp_path) == kept
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["tests.json"]


def test_the_same_measured_again_replaces_the_value(tmp_path):
    other = [measurement(0.1, length=50), measurement(0.2, epoch=3), measurement(0.3)]
    keep_measurements(tmp_path, [measurement(0.5), *other[:2]])
    keep_measurements(tmp_path, other[2:])
    assert read_measurements(tmp_path) == other


def test_a_run_without_a_test_has_none(tmp_path):
    assert read_measurements(tmp_path) == []


LISTED = json.dumps([asdict(measurement(0.5)) | {"length": [50]}])


@pytest.mark.parametrize(
    "content", ["[", "[{}]", "[1]", '[{"checkpoint": 1, "overrides": []}]', LISTED]
)
def test_a_broken_file_is_named_and_kept(tmp_path, content):
    (tmp_path / "tests.json").write_text(content)
    with pytest.raises(ValueError, match=r"tests\.json holds no measurements"):
        keep_measurements(tmp_path, [measurement(0.5)])
    assert (tmp_path / "tests.json").read_text() == content


def test_a_line_says_how_it_was_measured():
    assert str(measurement(0.5, statistics=None)) == "test accuracy 50.00 %"
    said = "test accuracy 50.00 %  batch statistics  windows of 50"
    assert str(measurement(0.5, statistics="batch", length=50)) == said


def test_a_score_is_said_with_its_sampling_error():
    metrics = {"test/loss": 1.5, "test/accuracy": 0.5, "test/sampling_error": 0.0125}
    said = str(replace(measurement(0.5, statistics=None), metrics=metrics))
    assert said == "test loss 1.5000 nats\ntest accuracy 50.00 ± 1.25 %"


def test_the_file_is_read_by_anything_that_reads_json(tmp_path):
    keep_measurements(tmp_path, [measurement(0.5)])
    (row,) = json.loads((tmp_path / "tests.json").read_text())
    assert row["metrics"] == {"test/accuracy": 0.5}
