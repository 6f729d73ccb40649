import io
import sys
from pathlib import Path

import pytest
import torch
from parallel_files import write_multi30k

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.models.generation_training import WAYS
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.trained.translate import translate
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit

# of the small set: 6 words
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=6",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.source_size=8",
    "--model.init_args.target_size=8",
    "--model.init_args.embedding_size=12",
    "--model.init_args.hidden_size=12",
    "--model.init_args.dropout=0",
    "--data.init_args.batch_size=20",
    "--data.init_args.words=6",
    "--optimizer.init_args.lr=0.03",
]
ONCE = [*TINY, "--trainer.max_epochs=1", "--optimizer.init_args.lr=0.001"]
ONCE += ["--data.init_args.train_size=60"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_multi30k(tmp_path_factory.mktemp("translation") / "multi30k")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, folder):
    """Run folders by recipe; made once."""
    torch.set_num_threads(1)
    made, where = {}, tmp_path_factory.mktemp("runs")
    for variant in ("lstm", "bn", "ln"):
        name = f"translation/multi30k-{variant}"
        made[variant] = fit(
            name, data_dir=folder, run_dir=where / variant, overrides=TINY, quiet=True
        )
    return made


@pytest.mark.parametrize("variant", ["lstm", "bn", "ln"])
def test_the_recipes_learn(runs, variant, folder):
    assert runs[variant].best > 50
    if variant != "bn":
        return
    kinds = {test.statistics: test.metrics["test/bleu"] for test in measure(runs["bn"].folder)}
    assert set(kinds) == {"population", "batch"}
    # how it is used may differ from how it was trained, and what the decoder is fed for statistics
    options = ["--model.statistics=free", "--model.beam=2", "--model.limit=9"]
    estimated = measure(runs["bn"].folder, estimate=True, overrides=options)
    assert estimated[0].metrics["test/bleu"] > 40


def test_a_run_finds_its_two_files_from_another_folder(folder, monkeypatch):
    for language in ("de", "en"):
        name = f"train.lc.norm.tok.{language}"
        Path(f"a pair: {language}").write_bytes((folder / name).read_bytes())
    own = ["--data.dataset=files", "--data.source=a pair: de", "--data.target=a pair: en"]
    run = fit("translation/multi30k-lstm", run_dir="run", overrides=[*ONCE, *own], quiet=True)
    where = run.folder.resolve()
    monkeypatch.chdir("/")
    assert len(measure(where)) == 1


@pytest.mark.parametrize("name", [name for name in WAYS if name != "teacher"])
def test_every_way_goes_on_from_the_weights_of_another(tmp_path, runs, folder, name):
    options = ["--model.training_options.first=0"] if name in ("e2e", "mixer") else []
    run = fit(
        f"translation/multi30k-{name}",
        data_dir=folder,
        run_dir=tmp_path / "run",
        start=runs["lstm"].folder,
        overrides=[*ONCE, *options],
        quiet=True,
    )
    # an epoch from weights that are drawn anew has a tenth of it
    assert run.best > 0.6 * runs["lstm"].best
    metrics = (run.folder / "metrics.csv").read_text()
    assert ("train/reward" in metrics) is (name == "mixer")


def test_what_a_training_can_start_with(tmp_path, runs, folder, capsys):
    command = ["fit", "translation/multi30k-lstm", "--data-dir", str(folder), *ONCE]
    command += ["--run-dir", str(tmp_path / "run"), "--start"]
    assert main([*command, str(runs["ln"].folder)]) == 1
    assert "does not hold this model's weights" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "none.ckpt")]) == 1
    assert "there is no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*command, str(runs["lstm"].last_checkpoint)]) == 0
    assert "begins with the weights of" in capsys.readouterr().out
    assert main(["fit", "--resume", str(tmp_path / "run"), "--start", "x"]) == 1
    assert "--start x must be left out with --resume" in capsys.readouterr().err


def test_a_start_is_taken_again_where_no_checkpoint_was_written(tmp_path, runs, folder):
    given = {"data_dir": folder, "overrides": ONCE, "quiet": True}
    name, start = "translation/multi30k-lstm", runs["lstm"].folder
    whole = fit(name, run_dir=tmp_path / "whole", start=start, **given)
    cut = fit(name, run_dir=tmp_path / "cut", start=start, **given)
    for checkpoint in (cut.folder / "checkpoints").iterdir():
        checkpoint.unlink()
    again = fit(resume=cut.folder, quiet=True)
    states = [read_checkpoint(r.last_checkpoint)["state_dict"] for r in (whole, again)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_write_translates_a_file_or_standard_input(tmp_path, runs, capsys, monkeypatch):
    run = str(runs["lstm"].folder)
    (tmp_path / "de").write_text("ein Hund sitzt\nein löwe läuft\n", encoding="utf-8")
    assert main(["write", run, "--from", str(tmp_path / "de")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert set(" ".join(lines).split()) <= {"a", "dog", "cat", "runs", "sits", "there", "<unk>"}

    def stdin(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    stdin((tmp_path / "de").read_bytes())
    assert main(["write", run, "--from", "-"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    # one at a time is what all together are, and no longer than was allowed
    assert translate(run, source=tmp_path / "de", limit=1) == [
        line.partition(" ")[0] for line in lines
    ]
    stdin(b"ein hund\n\n")
    assert main(["write", run, "--from", "-"]) == 1
    assert "standard input, line 2 is empty" in capsys.readouterr().err
    stdin(b"")
    assert main(["write", run, "--from", "-"]) == 1
    assert "standard input is empty" in capsys.readouterr().err
    assert main(["write", run, "--from", str(tmp_path / "de"), "--beam", "0"]) == 1
    assert "beam must be at least 1, got 0" in capsys.readouterr().err
    assert main(["write", run]) == 1
    assert "it translates: write RUN --from FILE" in capsys.readouterr().err
    source = ["--from", str(tmp_path / "de")]
    for options, what in (
        (["--begin", "a"], "--begin is for a text or --out, not for --from"),
        (["--temperature", "0"], "--temperature is for a text or --out, not for --from"),
        (["--sentences", "2"], "--sentences is for a text or --out, not for --from"),
        (["--seed", "2"], "--seed is for a text or --out, not for --from"),
        (["--data-dir", "."], "--data-dir is for --out, not for --from"),
        (["--out", "a.svg"], "one thing at a time, got --from and --out"),
    ):
        assert main(["write", run, *source, *options]) == 1
        assert what in capsys.readouterr().err


def test_a_checkpoint_of_other_words_is_refused(tmp_path, runs, folder):
    other = write_multi30k(tmp_path / "other")
    path = other / "train.lc.norm.tok.en"
    path.write_text(path.read_text(encoding="utf-8").replace("cat", "tomcat"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the target of multi30k.*such as 'tomcat'"):
        measure(runs["lstm"].folder, data_dir=other)


def test_files_of_ones_own(tmp_path, folder, capsys):
    for language in ("de", "en"):
        path = folder / f"train.lc.norm.tok.{language}"
        (tmp_path / f"own.{language}").write_text(
            path.read_text(encoding="utf-8") + "hund\n", encoding="utf-8"
        )
    own = ["--data.dataset=files", "--data.source=own.de", "--data.target=own.en"]
    command = ["fit", "translation/multi30k-ln", "--data-dir", str(tmp_path), *ONCE, *own]
    assert main([*command, "--data.words=99"]) == 1
    assert "init_args.target_size must be 9, the 7 words" in capsys.readouterr().err
    assert main([*command]) == 0
    assert "pairs twice left out" in capsys.readouterr().out
