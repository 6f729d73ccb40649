import pytest
import torch
from rated_files import write_rated
from torch.nn.functional import cross_entropy, pad

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.series import Series, SeriesBatches
from rnnorm.experiments.reporting.report import report
from rnnorm.experiments.tasks.sentiment import SentimentClassifier, SentimentData
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit

NORMS = [None, "batch", "layer"]
# of the small set: 10 words and a number
WORDS = 10
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=8",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.hidden_size=8",
    "--model.init_args.embedding_size=8",
    f"--model.init_args.vocabulary_size={WORDS + 1}",
    f"--data.init_args.words={WORDS}",
    "--data.init_args.batch_size=8",
    "--optimizer.init_args.lr=0.03",
]


def model(**arguments):
    torch.manual_seed(0)
    given = {"vocabulary_size": 9, "embedding_size": 4, "hidden_size": 5}
    return SentimentClassifier(**given | arguments).double()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    x = [torch.randint(9, (n,)) for n in (2, 7, 1, 5)]
    return next(iter(SeriesBatches(Series(x, torch.tensor([0, 1, 1, 0])), 4)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rated(tmp_path_factory.mktemp("rated") / "sentiment")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("readout", ["last", "mean"])
def test_padding_is_nothing(norm, readout, batch):
    results = []
    for padding in (0, 7):
        net = model(norm=norm, readout=readout)
        # padding has to be the number of a word
        x = pad(batch.x, (0, 0, 0, padding), value=3)
        loss = cross_entropy(net(x, batch.lengths), batch.y)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in net.parameters()), *net.buffers()])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_dropout_is_in_training_alone(batch):
    net = model(dropout=0.5, num_layers=2)
    scores = [net(batch.x, batch.lengths) for _ in range(2)]
    assert not torch.equal(*scores)
    net.eval()
    torch.testing.assert_close(net(batch.x, batch.lengths), net(batch.x, batch.lengths))


def test_a_whole_input_is_dropped_and_what_is_left_makes_up_for_it(batch):
    net = model(dropout=1.0)
    # nothing is read and nothing classified
    torch.testing.assert_close(
        net(batch.x, batch.lengths), net.classifier.bias.expand(4, 2), rtol=0, atol=0
    )


def test_the_classes_are_above_and_below_the_threshold(folder):
    data = SentimentData(data_dir=str(folder), words=WORDS, batch_size=8)
    data.setup()
    assert len(data.vocabulary) == WORDS
    good = {data.vocabulary.number(word) + 1 for word in ("fine", "great")}
    for loader in data.loaders.values():
        for x, lengths, y in loader:
            for row, length in enumerate(lengths):
                assert bool(good & set(x[:length, row].tolist())) == bool(y[row])


@pytest.mark.parametrize("variant", ["lstm", "bn", "ln", "dropout"])
def test_the_recipes_learn(tmp_path, folder, variant):
    name = f"sentiment/movies-{variant}"
    run = fit(name, data_dir=folder, run_dir=tmp_path / "run", overrides=TINY, quiet=True)
    # two texts of three would be right by chance at most
    assert run.best > 0.8
    kinds = {test.statistics for test in measure(name, run.best_checkpoint)}
    assert kinds == ({"population", "batch"} if variant == "bn" else {None})


def test_a_file_of_ones_own(tmp_path, capsys):
    rows = [f"{('good', 'bad')[i % 2]} w{i},{1 - i % 2}\n" for i in range(60)]
    (tmp_path / "own.csv").write_text("text,label\n" + "".join(rows))
    own = [*TINY, "--data.dataset=csv", "--data.file=own.csv", "--data.threshold=0.5"]
    own.append("--trainer.max_epochs=1")
    command = ["fit", "sentiment/movies-bn", "--data-dir", str(tmp_path)]
    assert main([*command, *own, "--model.vocabulary_size=99", "--data.words=2"]) == 1
    assert "vocabulary_size must be 3, the 2 words" in capsys.readouterr().err
    assert main([*command, *own, "--model.vocabulary_size=3", "--data.words=2"]) == 0
    assert "val: 6 texts" in capsys.readouterr().out


def test_a_report_has_the_gradients_of_a_tanh_rnn_on_the_same_texts(tmp_path, folder):
    given = {"run_dir": tmp_path / "run", "overrides": [*TINY, "--trainer.max_epochs=1"]}
    run = fit("sentiment/movies-lstm", data_dir=folder, quiet=True, **given)
    page = report([run.folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "on a training minibatch of sentiment/movies-lstm" in page


def test_a_checkpoint_of_other_words_is_refused(tmp_path, folder):
    given = {"run_dir": tmp_path / "run", "overrides": [*TINY, "--trainer.max_epochs=1"]}
    run = fit("sentiment/movies-lstm", data_dir=folder, quiet=True, **given)
    other = write_rated(tmp_path / "other")
    path = other / "movieReviewSnippets_GroundTruth.txt"
    path.write_text(path.read_text().replace("film", "movie"))
    with pytest.raises(ValueError, match=r"not that of the checkpoint.*such as 'movie'"):
        fit(resume=run.folder, data_dir=other, overrides=["--trainer.max_epochs=2"], quiet=True)


def test_fewer_training_texts_are_of_both_classes(tmp_path):
    (tmp_path / "sorted.csv").write_text(
        "".join(["text,label\n", *(f"w{i},{1 if i < 600 else -1}\n" for i in range(1200))])
    )
    given = {"dataset": "csv", "file": "sorted.csv", "data_dir": tmp_path}
    data = SentimentData(**given, train_size=100)
    data.setup()
    assert 35 < int(data.loaders["train"].series.y.sum()) < 65
    with pytest.raises(ValueError, match="train_size=1 leaves training texts of one class"):
        SentimentData(**given, train_size=1).setup()
