"""The examples run as a user runs them, with a small budget."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
pytest.importorskip("matplotlib")


@pytest.fixture
def data():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "timeseries").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with timeseries/")
    return Path(folder)


def run(folder, name, *arguments):
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    # a window would wait for its user
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "svg"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_numbers(said, word):
    return [float(line.split()[-1]) for line in said.splitlines() if word in line]


def test_ragged_classification(tmp_path):
    pytest.importorskip("sklearn")
    said = run(tmp_path, "ragged_classification.py", "--epochs", 1, "--save", "digits.pt")
    assert last_numbers(said, "accuracy")[0] > 0.2
    assert "streamed as in one pass: True" in said
    assert (tmp_path / "digits.pt").exists()


def test_ragged_classification_of_vowels(data, tmp_path):
    said = run(tmp_path, "ragged_classification.py", "--data-dir", data, "--epochs", 6)
    assert last_numbers(said, "accuracy")[0] > 0.8
    assert "streamed as in one pass: True" in said


def test_forecasting(tmp_path):
    said = run(tmp_path, "forecasting.py", "--norms", "none", "--epochs", 1)
    assert last_numbers(said, "none")[0] < 1


def test_forecasting_of_a_file(data, tmp_path):
    file = tmp_path / "ETTh1.csv"
    file.write_bytes(gzip.decompress((data / "timeseries/ETT/ETTh1.csv.gz").read_bytes()))
    said = run(tmp_path, "forecasting.py", file, "--rows", 4000, "--norms", "none", "batch")
    errors = {line.split()[0]: float(line.split()[-1]) for line in said.splitlines()}
    assert errors.keys() == {"none", "batch"}
    assert max(errors.values()) < 1


def test_own_cell(tmp_path):
    said = run(tmp_path, "own_cell.py", "--steps", 6, "--minibatches", 200)
    errors = {tuple(line.split()[:2]): float(line.split()[-1]) for line in said.splitlines()}
    # the variance of the sum is 1/6
    assert errors["LiGRU", "laurent2015-frame"] < 0.02
    assert len(errors) == 4


def test_recurrent_policy(tmp_path):
    said = run(tmp_path, "recurrent_policy.py", "--windows", 120)
    without, before, after = (float(line.split()[-1]) for line in said.splitlines())
    assert without == 0.25
    assert before < 0.4
    assert after > 0.8


def test_characters(tmp_path):
    (tmp_path / "text.txt").write_text("The cat sat on the mat. " * 400, encoding="utf-8")
    said = run(tmp_path, "characters.py", "text.txt", "--minutes", 0.1)
    _, validation, *written = said.splitlines()
    assert float(validation.split()[1]) < 2
    assert "\n".join(written).startswith("The ")


def test_export_and_stream(tmp_path):
    pytest.importorskip("onnxruntime")
    said = run(tmp_path, "export_and_stream.py", "--minibatches", 60)
    assert "streamed as in one pass: True" in said
    assert float(said.splitlines()[-1].split()[-1]) < 0.2


def test_keyword_spotter(tmp_path):
    pytest.importorskip("kaldi_native_fbank")
    check_scores(run(tmp_path, "keyword_spotter.py", "--epochs", 3))
    assert not list(tmp_path.iterdir())


def test_keyword_spotter_of_digits(data, tmp_path):
    if not (data / "fsdd").is_dir():
        pytest.skip("RNNORM_DATA has no fsdd/")
    check_scores(run(tmp_path, "keyword_spotter.py", "--data-dir", data, "--epochs", 2))


def check_scores(said):
    scores = last_numbers(said, "accuracy")
    assert min(scores) > 0.75
    assert max(scores) - min(scores) < 0.05
    assert len(scores) == (3 if shutil.which("cc") else 1)
