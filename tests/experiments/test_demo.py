import pytest

from rnnorm.experiments.cli import main
from rnnorm.experiments.demo import Curve, results_table

TINY = ["--model.init_args.hidden_size=6", "--data.init_args.shrink=2"]


@pytest.fixture
def finished(capsys, tmp_path):
    picture = tmp_path / "deep" / "picture.png"
    arguments = ["demo", "--seeds", "2", "--epochs", "2", "--picture", str(picture)]
    assert main([*arguments, *TINY]) == 0
    return capsys.readouterr().out, picture


def test_demo_prints_a_table_and_the_next_command_and_draws(finished, tmp_path):
    said, picture = finished
    lines = said.splitlines()
    head = next(i for i, line in enumerate(lines) if "ms per step" in line)
    assert [lines[head + i].split()[0] for i in (1, 2, 3)] == ["LSTM", "BN-LSTM", "LN-LSTM"]
    assert all("±" in line for line in lines[head + 1 : head + 4])
    assert "next, on real MNIST: rnnorm fit" in lines[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    curves = (tmp_path / "cwd/runs/demo/demo.csv").read_text().splitlines()
    assert len(curves) == 1 + 3 * 2 * 2


def test_demo_writes_nothing_else(finished, tmp_path):
    files = {p.name for p in (tmp_path / "cwd").rglob("*") if p.is_file()}
    assert files == {"demo.csv"}


@pytest.mark.parametrize("option", ["--seeds", "--epochs"])
def test_demo_refuses_nothing_to_do(option, capsys):
    assert main(["demo", option, "0"]) == 1
    assert f"{option[2:]} must be at least 1, got 0" in capsys.readouterr().err


def test_table_of_known_curves():
    curves = [
        Curve("LSTM", 1, [10, 20, 30], [1.0, 2.0, 3.0], [20.0, 50.0, 40.0]),
        Curve("LSTM", 2, [10, 20, 30], [1.0, 2.0, 3.0], [30.0, 40.0, 60.0]),
        Curve("BN-LSTM", 1, [10, 20, 30], [2.0, 4.0, 6.0], [50.0, 60.0, 70.0]),
        Curve("BN-LSTM", 2, [10, 20, 30], [2.0, 4.0, 6.0], [40.0, 50.0, 80.0]),
        Curve("LN-LSTM", 1, [10, 20, 30], [2.0, 4.0, 6.0], [10.0, 10.0, 10.0]),
        Curve("LN-LSTM", 2, [10, 20, 30], [2.0, 4.0, 6.0], [10.0, 10.0, 10.0]),
    ]
    table = results_table(curves).splitlines()
    assert "reaches 50.0 % after" in table[0]
    assert table[1].split() == ["LSTM", "50.0", "±", "14.1", "100.0", "3.0", "s,", "30", "steps"]
    assert table[2].split() == ["BN-LSTM", "75.0", "±", "7.1", "200.0", "4.0", "s,", "20", "steps"]
    assert table[3].split() == ["LN-LSTM", "10.0", "±", "0.0", "200.0", "not", "reached"]
