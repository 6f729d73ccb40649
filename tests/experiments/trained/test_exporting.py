"""A trained run leaves as a file that gives its values."""

import html
import json
import os
import re

import pytest
import torch
from rated_files import write_rated

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.text.rated import words_and_signs
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.tasks.frames.model import FrameClassifier
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.pixels import step_order
from rnnorm.experiments.trained.export import _streams, export
from rnnorm.experiments.trained.load import load_trained
from rnnorm.experiments.training.fit import fit


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By norm, the run folder of an epoch on a few small images of digits."""
    folder = tmp_path_factory.mktemp("runs")
    few = [
        "--trainer.max_epochs=1",
        "--trainer.accelerator=cpu",
        "--model.init_args.hidden_size=8",
        "--data.init_args.shrink=2",
        "--data.init_args.train_size=130",
    ]
    for norm in ("bn", "lstm"):
        fit(f"demo/digits-{norm}", run_dir=folder / norm, overrides=few)
    return folder


def images(rows):
    torch.manual_seed(0)
    return torch.rand(16, rows, 1), torch.randint(1, 17, (rows,))


@pytest.mark.slow
@torch.no_grad()
def test_onnx(runs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "digits.onnx"
    assert main(["export", str(runs / "bn"), "--out", str(out)]) == 0
    about = json.loads((tmp_path / "digits.onnx.json").read_text())
    assert list(about["inputs"]) == ["x", "lengths"]
    order = about["preprocessing"]["order"]
    assert sorted(order) == list(range(16))
    assert order == step_order(16, "fixed", about["model"].get("permutation_seed", 1)).tolist()
    x, lengths = images(7)
    session = onnxruntime.InferenceSession(out)
    (found,) = session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()})
    wanted = load_trained(runs / "bn").experiment.model.eval()(x, lengths)
    torch.testing.assert_close(torch.from_numpy(found), wanted)


@torch.no_grad()
def test_pt2(runs, tmp_path):
    about = export(runs / "bn", tmp_path / "digits.pt2", "pt2")
    x, lengths = images(7)
    program = torch.export.load(tmp_path / "digits.pt2").module()
    wanted = load_trained(runs / "bn").experiment.model.eval()(x, lengths)
    torch.testing.assert_close(program(x=x, lengths=lengths), wanted)
    assert set(about["imports"]) <= {"rnnorm"}


@torch.no_grad()
def test_folded(runs, tmp_path):
    export(runs / "lstm", tmp_path / "digits.pt", "folded")
    layers = torch.load(tmp_path / "digits.pt", weights_only=False)
    assert type(layers["rnn"]) is torch.nn.LSTM
    x, _ = images(3)
    wanted = load_trained(runs / "lstm").experiment.model.eval()(x)
    torch.testing.assert_close(layers["classifier"](layers["rnn"](x)[1][0][0]), wanted)


def test_a_folder_in_the_place_of_the_json_is_refused_before_the_work(tmp_path):
    (tmp_path / "digits.onnx.json").mkdir()
    with pytest.raises(IsADirectoryError, match=r"digits\.onnx\.json is a folder: name a file"):
        export("nothing", tmp_path / "digits.onnx")


def test_what_cannot_be_folded_is_refused_and_nothing_written(runs, tmp_path, capsys):
    out = tmp_path / "digits.pt"
    assert main(["export", str(runs / "bn"), "--format", "folded", "--out", str(out)]) == 1
    assert "rnnorm export: rnn: norm.population must be 'shared'" in capsys.readouterr().err
    assert list(tmp_path.glob("digits*")) == []


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder: name a file"):
        export("run", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_the_place_of_the_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a device or a pipe: name a file"):
        export("run", tmp_path / "pipe")


def test_a_folder_that_is_not_there_is_named(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        export(runs / "bn", tmp_path / "nowhere" / "digits.onnx")


@torch.no_grad()
def test_a_sentiment_model_reads_numbers_of_words(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    folder, run = write_rated(tmp_path / "sentiment"), tmp_path / "run"
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=1",
        "--model.init_args.hidden_size=6",
        "--model.init_args.embedding_size=5",
        "--model.init_args.vocabulary_size=11",
        "--data.init_args.words=10",
        "--trainer.log_every_n_steps=1",
    ]
    fit("sentiment/movies-bn", run_dir=run, data_dir=folder, overrides=overrides)
    about = export(run, tmp_path / "text.onnx")["preprocessing"]
    text = "The film: great &amp; DULL :)"
    words = re.findall(about["word"], html.unescape(text).lower())
    assert words == words_and_signs(text)
    unknown, first = about["number_of_an_unknown_word"], about["number_of_the_first_word"]
    known = {word: first + i for i, word in enumerate(about["words"])}
    x = torch.tensor([known.get(word, unknown) for word in words]).unsqueeze(1)
    assert torch.equal(x[:, 0], Vocabulary(about["words"]).numbers(words, 1))
    session = onnxruntime.InferenceSession(tmp_path / "text.onnx")
    lengths = torch.tensor([len(x)])
    (found,) = session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()})
    wanted = load_trained(run).experiment.model.eval()(x, lengths)
    torch.testing.assert_close(torch.from_numpy(found), wanted)


def test_a_state_that_is_not_learned_is_not_told():
    model = LanguageModel(12, hidden_size=6).eval()
    example = model.export_inputs(5, 3)
    assert not any(part.any() for part in example["state"])
    assert "first_state" not in _streams(model, example)


def test_a_state_that_is_read_from_the_whole_sequence_is_no_streams():
    model = FrameClassifier(input_size=3, num_classes=2, learn_initial_state="from_input").eval()
    example = model.export_inputs(5, 3)
    assert list(example) == ["x", "lengths"]
    scores, _ = model(**example)
    assert scores.shape == (5, 3, 2)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["LSTM", "HMLSTM"])
def test_a_stream_begins_with_the_states_of_its_cell(cell):
    given = {"cell": cell, "hidden_size": 8, "num_layers": 3, "learn_initial_state": True}
    model = LanguageModel(12, **given).eval()
    for name, value in model.rnn.named_parameters():
        if name.endswith("_0"):
            value.uniform_()
    example = model.export_inputs(5, 3)
    first = map(torch.tensor, _streams(model, example)["first_state"])
    example["state"] = tuple(
        each.unsqueeze(1).expand_as(zeros)
        for each, zeros in zip(first, example["state"], strict=True)
    )
    torch.testing.assert_close(model(**example)[0], model(example["x"])[0])


@torch.no_grad()
def test_a_language_model_streams(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat.\n" * 400)
    run = tmp_path / "run"
    overrides = [
        "--trainer.accelerator=cpu",
        "--trainer.max_steps=2",
        "--model.init_args.hidden_size=6",
        "--model.init_args.vocabulary_size=12",
        "--model.init_args.initial_noise=0.1",
        "--model.init_args.learn_initial_state=true",
        f"--data.init_args.file={text}",
        "--data.init_args.dataset=text",
        "--data.init_args.batch_size=8",
    ]
    fit("glinskis2017/separate", run_dir=run, overrides=overrides)
    about = export(run, tmp_path / "text.onnx")
    model = load_trained(run).experiment.model.eval()
    assert len(about["preprocessing"]["symbols"]) == 12
    session = onnxruntime.InferenceSession(tmp_path / "text.onnx")
    names = [put.name for put in session.get_inputs()]
    x = torch.randint(12, (9, 2))
    first = map(torch.tensor, about["first_state"])
    state = [values.unsqueeze(1).expand(1, 2, 6).numpy() for values in first]
    assert state[0].any()
    found = []
    for step, symbols in enumerate(x):
        given = [symbols.unsqueeze(0).numpy(), *state, torch.full((2,), step).numpy()]
        scores, *state = session.run(None, dict(zip(names, given, strict=True)))
        found.append(torch.from_numpy(scores))
    torch.testing.assert_close(torch.cat(found), model(x)[0])
