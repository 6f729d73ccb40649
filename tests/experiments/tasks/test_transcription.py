import numpy as np
import pytest
import soundfile
import torch
from digit_recordings import RATE, SPEAKER, tone, write_recordings
from kaldi_files import write_features
from torch.nn.functional import pad

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.speech.batches import TranscriptBatches, least_steps
from rnnorm.experiments.data.speech.spoken_digits import SPEAKERS
from rnnorm.experiments.data.speech.utterances import Spoken
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.reporting.report import report
from rnnorm.experiments.tasks.transcription.data import SpokenData
from rnnorm.experiments.tasks.transcription.model import Transcriber
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.trained.transcribe import transcribe
from rnnorm.experiments.training.fit import fit
from rnnorm.layers.normalised_module import temporarily

NORMS = [None, "batch", "layer", "laurent2015-sequence"]
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.hidden_size=16",
    "--model.init_args.num_layers=1",
    "--data.init_args.batch_size=10",
    "--optimizer.init_args.lr=0.02",
]
DIGITS = [*TINY, f"--data.init_args.speakers=[{SPEAKER}]", "--data.init_args.strings=60"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def trained(recordings, tmp_path_factory):
    """A short training on tones."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = [*DIGITS, "--trainer.max_epochs=12"]
    return fit(
        "transcription/digits-bn",
        data_dir=recordings,
        run_dir=folder,
        overrides=options,
        quiet=True,
    )


def utterances(lengths=(9, 4, 7, 2), symbols=("ab", "aa", "bab", "ba")):
    random = np.random.RandomState(0)
    features = [random.randn(n, 3) for n in lengths]
    return [
        Spoken(f"u{i}", lambda x=x: x, len(x), tuple(said))
        for i, (x, said) in enumerate(zip(features, symbols, strict=True))
    ]


def batch(**changed):
    (found,) = TranscriptBatches(utterances(**changed), Vocabulary("ab"), 4)
    return found


def model(**arguments):
    torch.manual_seed(0)
    given = {"input_size": 3, "num_symbols": 2, "hidden_size": 5, "init": "orthogonal"}
    return Transcriber(**given | arguments).double()


@torch.no_grad()
def test_a_loss_is_the_mean_over_all_symbols_whatever_the_minibatches():
    net, found = model().eval(), []
    net._vocabulary = Vocabulary("ab")
    for rows in (1, 4):
        logged = []
        net.log = lambda name, value, batch_size, to=logged, **_: to.append(
            (name, value, batch_size)
        )
        for given in TranscriptBatches(utterances(), Vocabulary("ab"), rows):
            net.evaluate("val", given._replace(x=given.x.double()))
        losses = [(value, count) for name, value, count in logged if name == "val/loss"]
        count = sum(count for _, count in losses)
        found.append(sum(value * count for value, count in losses) / count)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("norm", NORMS)
def test_padding_is_nothing(norm):
    results, given = [], batch()
    for padding in (0, 9):
        net = model(norm=norm)
        x = pad(given.x, (0, 0, 0, 0, 0, padding), value=float("nan"))
        scores = net(x, lengths=given.lengths)[0]
        targets = pad(given.targets, (0, 0, 0, padding))
        loss, symbols = net._loss(scores, given._replace(targets=targets))
        loss.backward()
        read = net.symbols(scores, given.lengths)
        results.append([loss.detach(), *(p.grad for p in net.parameters()), *net.buffers()])
        results[-1].append(
            torch.tensor([len(row) for row in read] + [n for row in read for n in row])
        )
        assert symbols == 9
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_a_minibatch_has_the_loss_of_its_rows():
    net, given = model().eval(), batch()
    whole, symbols = net._loss(net._scores(given), given)
    rows = []
    for utterance in utterances():
        (one,) = TranscriptBatches([utterance], Vocabulary("ab"), 1)
        loss, count = net._loss(net._scores(one), one)
        rows.append(loss * count)
    torch.testing.assert_close(whole * symbols, sum(rows))


def test_equal_neighbours_need_a_step_between():
    assert [least_steps(said) for said in ("a", "ab", "aa", "aaba")] == [1, 2, 3, 5]
    batches = TranscriptBatches(
        utterances((2, 3, 2, 9), ("ab", "aa", "aa", "ac")), Vocabulary("ab"), 4
    )
    assert [batches.alignable(i) for i in range(4)] == [True, True, False, False]
    (given,) = batches
    assert given.target_lengths.tolist() == [2, 0, 2, 0]
    assert given.transcripts[1] == ("a", "a")


def test_what_cannot_be_aligned_has_no_loss_and_no_gradient():
    net, given = model(), batch(lengths=(9, 2, 7, 1), symbols=("ab", "aa", "bab", "ba"))
    loss, symbols = net._loss(net._scores(given), given)
    loss.backward()
    assert symbols == 5
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.fixture
def kaldi(tmp_path):
    """Two sounds that a word each goes with; a few utterances are too short for their words."""
    random = np.random.RandomState(0)
    for part, count in (("train", 30), ("dev", 8), ("test", 8)):
        features, lines = {}, []
        for i in range(count):
            said = random.randint(2, size=1 + i % 4)
            frames = np.repeat(said * 2.0 - 1, 4)[:, None] + 0.1 * random.randn(4 * len(said), 3)
            features[f"{part}{i}"] = np.float32(frames[: 2 if i == 7 else None])
            lines.append(f"{part}{i} {' '.join(('NO', 'YES')[k] for k in said)}\n")
        write_features(tmp_path / part, features)
        (tmp_path / part / "text").write_text("".join(lines))
    return tmp_path


def options(num_symbols, input_size=3):
    given = {"stacked": 1, "normalised": "false"}
    return [
        *TINY,
        *(f"--data.init_args.{name}={value}" for name, value in given.items()),
        f"--model.init_args.num_symbols={num_symbols}",
        f"--model.init_args.input_size={input_size}",
    ]


@pytest.mark.parametrize("name", ["transcription/yesno-lstm", "transcription/yesno-bn"])
def test_a_folder_of_ones_own_is_learnt(tmp_path, kaldi, name, capsys):
    given = {"data_dir": kaldi, "overrides": [*options(2), "--trainer.max_epochs=20"]}
    run = fit(name, run_dir=tmp_path / "run", **given)
    said = capsys.readouterr().out
    assert "train: 1 utterances left out, shorter than their symbols: train7" in said
    assert "val: 8 utterances" in said
    assert "1 of them cannot be right" in said
    assert run.best < 0.5
    test = measure(run.folder)[0].metrics
    assert set(test) == {"test/loss", "test/word_error", "test/sampling_error"}
    # a beam is no other training
    assert (
        measure(run.folder, overrides=["--model.init_args.beam=4"])[0].metrics.keys() == test.keys()
    )


def test_a_word_that_holds_a_no_break_space_is_one_word(tmp_path, kaldi):
    metrics = []
    for spelt in ("YES", "Y\u00a0ES"):
        for path in kaldi.glob("*/text"):
            path.write_text(path.read_text("utf-8").replace("YES", spelt), "utf-8")
        given = {"data_dir": kaldi, "overrides": [*options(2), "--trainer.max_epochs=5"]}
        run = fit("transcription/yesno-lstm", run_dir=tmp_path / ascii(spelt), quiet=True, **given)
        metrics.append(measure(run.folder)[0].metrics)
    assert metrics[0] == metrics[1]


def test_characters_are_written_without_spaces_between(kaldi):
    data = SpokenData(dataset="kaldi", data_dir=str(kaldi), units="characters", stacked=1)
    data.setup()
    assert data.vocabulary.symbols == (" ", "E", "N", "O", "S", "Y")
    assert data.text(tuple("NO YES")) == "NO YES"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--model.num_symbols=3"], "num_symbols must be 10, the symbols of the training"),
        (["--model.input_size=41"], "input_size must be 123, the values of a step, got 41"),
        (["--model.beam=0"], "beam must be at least 1, got 0"),
        (["--data.stacked=200"], "no training utterance has as many steps as its symbols: train-0"),
        (["--data.speakers=[ann]"], "lacks 500 of 500 recordings"),
        (
            ["--data.speakers=null", f"--data.test_speakers=[{','.join(SPEAKERS)}]"],
            "test_speakers must leave one to train on",
        ),
    ],
)
def test_a_mistake_leaves_no_run_folder(tmp_path, recordings, capsys, options, what):
    command = ["fit", "transcription/digits-lstm", "--run-dir", "run", "--data-dir"]
    assert main([*command, str(recordings), *DIGITS, *options]) == 1
    assert what in capsys.readouterr().err
    assert not (tmp_path / "cwd" / "run").exists()


def test_words_that_are_none_are_refused():
    with pytest.raises(ValueError, match="unit must be 'word' or 'phone', got 'letter'"):
        model(unit="letter")
    with pytest.raises(
        ValueError, match="dataset must be one of 'digits', 'timit' or 'kaldi', got 'wsj'"
    ):
        SpokenData(dataset="wsj")
    with pytest.raises(ValueError, match="stacked must be at least 1, got 0"):
        SpokenData(stacked=0)
    with pytest.raises(ValueError, match="units must be 'words' for timit, got 'characters'"):
        SpokenData(dataset="timit", units="characters")
    with pytest.raises(ValueError, match=r"speakers must be None for kaldi, got \['theo'\]"):
        SpokenData(dataset="kaldi", speakers=["theo"])


def test_a_recording_is_transcribed(tmp_path, trained, capsys):
    gap = 1e-3 * np.random.RandomState(0).randn(1000)
    sounds = [part for digit in (3, 1, 4) for part in (gap, tone(digit, 0.09))]
    path = tmp_path / "pi.wav"
    soundfile.write(path, np.concatenate([*sounds, gap]), RATE, subtype="PCM_16")
    (said,) = transcribe(trained.folder, [path])
    assert said == "three one four"
    assert transcribe(trained.folder, [path, path], beam=5) == [said, said]
    assert main(["write", str(trained.folder), str(path), "--beam", "3"]) == 0
    assert capsys.readouterr().out == "three one four\n"


def test_what_cannot_be_transcribed_is_refused(tmp_path, trained, kaldi, capsys):
    path = tmp_path / "a.wav"
    for samples, rate, what in (
        (tone(1, 0.5, 16000), 16000, "must have 8000 samples a second, got 16000"),
        (tone(1, 0.02), RATE, "a.wav has 160 samples, less than a frame of 25 ms"),
    ):
        soundfile.write(path, samples, rate, subtype="PCM_16")
        with pytest.raises(ValueError, match=what):
            transcribe(trained.folder, [path])
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["write", str(trained.folder), str(path)]) == 1
    assert "a.wav is truncated" in capsys.readouterr().err
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        transcribe(trained.folder, [path], beam=0)
    assert main(["write", str(trained.folder), "--begin", "the"]) == 1
    assert "it transcribes recordings: write RUN WAV" in capsys.readouterr().err
    assert main(["write", str(trained.folder), str(path), "--points", "2"]) == 1
    assert "--points is for --out, not for WAV" in capsys.readouterr().err


def test_a_model_of_images_does_not_transcribe(tmp_path, tiny):
    options = [*tiny, "--trainer.max_epochs=1"]
    run = fit("demo/digits-lstm", run_dir=tmp_path / "run", overrides=options, quiet=True)
    with pytest.raises(ValueError, match="model must be one that transcribes"):
        transcribe(run.folder, [tmp_path / "a.wav"])


def test_a_beam_of_0_is_not_the_models_own():
    net = Transcriber(input_size=2, num_symbols=3, hidden_size=2)
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        net.symbols(torch.zeros(4, 1, 4), torch.tensor([4]), beam=0)


def test_a_report_shows_posteriors(trained, tmp_path):
    data, net = trained.experiment.datamodule, trained.experiment.model
    with temporarily(net.modules(), training=False), torch.no_grad():
        examples = list(net.examples(data))
    assert [title[:14] for title, _, _ in examples] == ["Posteriors of "] * 2
    assert all("Said: " in caption for _, caption, _ in examples)
    page = report([trained.folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("Said: ") == 2
