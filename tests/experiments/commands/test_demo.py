import pytest

from rnnorm.experiments.commands.cli import main

TINY = ["--model.init_args.hidden_size=6", "--data.init_args.shrink=2"]


def test_demo_prints_a_table_and_the_next_command_and_draws(capsys, tmp_path):
    picture = tmp_path / "deep" / "picture.png"
    arguments = ["demo", "--seeds", "2", "--epochs", "2", "--picture", str(picture)]
    assert main([*arguments, *TINY]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if "ms per step" in line)
    assert [lines[head + i].split()[0] for i in (1, 2, 3)] == ["LSTM", "BN-LSTM", "LN-LSTM"]
    assert all("±" in line for line in lines[head + 1 : head + 4])
    assert "next, on real MNIST: rnnorm fit" in lines[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    folder = tmp_path / "cwd" / "runs" / "demo"
    curves = (folder / "comparison.csv").read_text().splitlines()
    assert len(curves) == 1 + 3 * 2 * 2
    # into its folder alone
    written = [p for p in (tmp_path / "cwd").rglob("*") if p.is_file()]
    assert all(folder in p.parents for p in written)
    runs = {f"demo-digits-{n}-seed{s}" for n in ("lstm", "bn", "ln") for s in (1, 2)}
    assert {p.name for p in folder.iterdir()} == {*runs, "comparison.csv"}


def test_demo_refuses_a_seed(capsys):
    assert main(["demo", "--seed_everything=7"]) == 1
    assert "--seed_everything=7 has no effect: --seeds N trains" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seeds", "--epochs"])
def test_demo_refuses_nothing_to_do(option, capsys):
    assert main(["demo", option, "0"]) == 1
    assert f"{option[2:]} must be at least 1, got 0" in capsys.readouterr().err
