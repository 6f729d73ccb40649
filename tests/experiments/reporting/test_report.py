import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule

import browser
import rnnorm
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.text.windows import Window
from rnnorm.experiments.models.measures import Likelihood
from rnnorm.experiments.reporting import pictures
from rnnorm.experiments.reporting.figures import (
    _layer_and_input,
    _test_score,
    example_pictures,
)
from rnnorm.experiments.reporting.report import report
from rnnorm.experiments.reporting.table import Cell, fold
from rnnorm.experiments.reporting.trained_run import read_trained_run
from rnnorm.experiments.trained.measurement import Measurement, keep_measurements
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.training.fit import fit

DIGITS = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=2",
    "--model.init_args.hidden_size=6",
    "--data.init_args.shrink=2",
    "--data.init_args.train_size=130",
    "--data.init_args.batch_size=50",
]
TEXT = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.log_every_n_steps=1",
    "--trainer.limit_val_batches=1",
    "--model.init_args.hidden_size=6",
    "--data.init_args.length=10",
    "--data.init_args.batch_size=8",
]


class Page(HTMLParser):
    """The headings, the cells of each row, the captions, and what the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.text, self.rows, self.captions, self.fetched, self.tags = text, [], [], [], []
        self.headings, self.notes, self.ids, self.svgs = [], [], [], []
        self.descriptions = []
        self._into = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        fetching = {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}
        self.fetched += [v for k, v in attributes if k in fetching and not v.startswith("#")]
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.svgs += [given] if tag == "svg" else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "figcaption", "h1", "p", "desc"):
            places = {
                "figcaption": self.captions,
                "h1": self.headings,
                "p": self.notes,
                "desc": self.descriptions,
            }
            self._into = places[tag] if tag in places else self.rows[-1]
            self._into.append("")

    def handle_endtag(self, tag):
        if tag in ("td", "th", "figcaption", "h1", "p", "desc"):
            self._into = None

    def handle_data(self, data):
        if self._into is not None:
            self._into[-1] += data


def files(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in ("bn", "lstm"):
        fit(f"demo/digits-{name}", run_dir=folder / name, overrides=DIGITS, quiet=True)
    about = json.loads((folder / "bn" / "run.json").read_text(encoding="utf-8"))
    about["about"] |= {"title": "<script>alert(1)</script>", "number": 87.25}
    (folder / "bn" / "run.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def page(runs):
    before = files(runs)
    path = report([runs / "bn", runs / "lstm"], runs.parent / "pages" / "page.html")
    assert files(runs) == before
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def unrendered(monkeypatch):
    """Leaves out how figures are rendered, which is most of a report's time."""
    monkeypatch.setattr(pictures, "as_svg", lambda figure: "<svg></svg>")


def test_page_fetches_nothing(page):
    assert page.fetched == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert "@import" not in page.text
    assert "url(http" not in page.text
    assert '<meta name="viewport" content="width=device-width' in page.text


@pytest.mark.skipif(not browser.CHROMIUM, reason="needs a browser")
def test_a_browser_shows_all_of_it_and_fetches_nothing_on_a_screen_and_a_phone(
    runs, page, tmp_path
):
    shown = browser.views(runs.parent / "pages" / "page.html", tmp_path)
    for (width, scheme), view in shown.items():
        assert view["width"] == width
        assert view["scrolled"] <= width
        assert view["cut"] == view["beyond"] == view["fetched"] == []
        dark = scheme == "dark"
        assert view["ground"] == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
        assert view["ink"] in view["fills"]
        assert view["row"] == ("block" if width == 390 else "table-row")
    light, dark = (set(shown[1280, scheme]["fills"]) for scheme in ("light", "dark"))
    assert not light & dark


@pytest.mark.skipif(not browser.CHROMIUM, reason="needs a browser")
def test_a_browser_tells_what_is_cut_off_and_what_is_fetched(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        '<body style="margin: 0"><div style="width: 800px">wide</div><img src="http://127.0.0.1:9/none.png">'
    )
    view = browser.views(path, tmp_path)[390, "light"]
    assert view["scrolled"] == 800
    assert view["cut"] == ['<div style="width: 800px">wide</div>']
    assert view["fetched"] == ["http://127.0.0.1:9/none.png"]


def test_what_comes_from_files_is_escaped(page):
    assert "<script>" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text


@pytest.mark.parametrize("name", ["_x $x$ <b>&\"' a|b é 日本 {}%s a\nb", r"$\frac{a$"])
def test_an_override_is_text(runs, tmp_path, name):
    own = shutil.copytree(runs / "lstm", tmp_path / "own")
    about = json.loads((own / "run.json").read_text(encoding="utf-8"))
    about["overrides"].append(f"--data.init_args.order={name}")
    (own / "run.json").write_text(json.dumps(about))
    page = Page(report([own], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert f"order={name}" in page.headings[0]
    assert f"order={name}" in page.rows[1][0]
    assert "b" not in page.tags[: page.tags.index("figcaption")]
    assert f"order={' '.join(name.split())}" in " ".join(page.descriptions)


def test_the_score_comes_first_and_columns_without_a_value_are_left_out(page):
    headings, first, second = page.rows
    assert headings == [
        *("run", "best validation accuracy, %", "training accuracy, % in that epoch"),
        *("epochs", "steps", "seconds"),
    ]
    assert first[3:5] == ["2", "6"]
    paper = "Paper: none, the recipe of arXiv 1603.09025 on digits of scikit-learn"
    assert second[0] == f"demo/digits-lstmpermuted digits, 64 steps of 1 pixel, LSTM. {paper}"


@pytest.mark.usefixtures("unrendered")
def test_the_papers_number_stands_beside_its_own_training_alone(runs, tmp_path):
    def reported(**changed):
        about = json.loads((own / "run.json").read_text(encoding="utf-8"))
        (own / "run.json").write_text(json.dumps(about | changed))
        return Page(report([own], tmp_path / "page.html").read_text(encoding="utf-8"))

    own = shutil.copytree(runs / "bn", tmp_path / "bn")
    headings, row = reported(overrides=[]).rows
    assert row[headings.index("the paper")].startswith("87.25")
    assert "the paper" not in reported(overrides=["--model.norm=layer"]).rows[0]
    assert "the paper" not in reported(overrides=[], scale="small").rows[0]


def test_every_figure_is_drawn_or_named_in_one_line_that_says_why_not(page):
    said = " ".join(page.captions)
    for part in (
        "Validation accuracy, %, against steps",
        "Validation accuracy, %, against seconds",
        "demo/digits-bn: population mean of rnn.recurrent_l0",
        "demo/digits-bn: population variance of rnn.cell_l0",
        "Gradient norms of the trained models",
        "Gradient norms of a tanh RNN for several γ",
        "How far the first input is felt",
        "E[tanh'] against the spread of the input",
        "demo/digits-lstm: spectral norm of W_hh",
    ):
        assert part in said
    assert left_out(page) == [
        "Left out: Population statistics of demo/digits-lstm, as model has taken no population "
        "statistics per time step."
    ]
    assert len(page.svgs) == len(page.captions)


def left_out(page):
    return [note for note in page.notes if note.startswith("Left out")]


def test_figures_have_ids_of_their_own_a_title_and_a_description(page):
    assert len(page.ids) == len(set(page.ids))
    for svg in page.svgs:
        assert svg["role"] == "img"
        assert {svg["aria-labelledby"], svg["aria-describedby"]} <= set(page.ids)
    assert (
        '<desc id="figure-1-description">validation accuracy, % against training steps: '
        "demo/digits-bn, demo/digits-lstm, in training</desc>"
    ) in page.text


def test_a_model_has_one_colour(page):
    def drawn(title):
        return page.text.partition(f'-title">{title}')[2].partition("</svg>")[0]

    assert "--model-2" in drawn("demo/digits-bn: population mean of rnn.cell_l0")
    assert "--model-1" not in drawn("demo/digits-bn: population mean of rnn.cell_l0")
    for title in ("demo/digits-lstm: spectral norm", "E[tanh&#x27;]", "Gradient norms of the tr"):
        assert "--model-1" in drawn(title)


def test_without_seeds_nothing_is_said_of_them(page):
    assert "seed" not in page.text


def test_the_same_runs_make_the_same_page(runs, page, tmp_path):
    again = report([runs / "bn", runs / "lstm"], tmp_path / "page.html")
    assert again.read_text(encoding="utf-8") == page.text


@pytest.mark.usefixtures("unrendered")
def test_a_bar_shows_on_a_terminal_how_far_it_is(runs, tmp_path, capsys, monkeypatch):
    report([runs / "lstm"], tmp_path / "page.html")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report([runs / "lstm"], tmp_path / "page.html")
    assert "drawing:   0%" in capsys.readouterr().err


@pytest.fixture(scope="module")
def text_trained(published, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "text"
    return _text_run("cooijmans2016/ptb-char-bn", published, folder)


@pytest.fixture
def text_run(text_trained, tmp_path):
    return shutil.copytree(text_trained, tmp_path / "text")


def _text_run(name, sentences, folder, *more):
    size = f"--model.init_args.vocabulary_size={_symbols(sentences)}"
    fit(name, run_dir=folder, data_dir=sentences, overrides=[*TEXT, size, *more])
    return folder


def _symbols(sentences):
    return len({*(sentences / "ptb.char.train.txt").read_text(encoding="utf-8").split(" ")} - {""})


def test_a_text_has_its_score_by_length_with_both_statistics(text_run, tmp_path):
    page = Page(report([text_run], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "score against test length About 20000 symbols" in " ".join(page.captions)
    assert "test bits per character" in page.text
    assert left_out(page) == []


class Scored:
    """A model whose loss is the mean of what it reads."""

    def __init__(self):
        self.test_likelihood = Likelihood()

    def test_step(self, batch, batch_idx):
        self.test_likelihood.update(batch.x.double().mean(), batch.predictions)


def test_the_score_at_a_length_is_of_the_first_20000_symbols_alone():
    model, rows = Scored(), torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    windows = [Window(x, x, fresh=True, kept=False, step=0) for x in rows.unsqueeze(1)]
    for length, symbols in ((4000, [1, 2, 3, 4, 5]), (10_000, [1, 2]), (100_000, [1, 2])):
        assert _test_score(model, windows, length) == sum(symbols) / len(symbols)


def test_boundaries_are_drawn_above_the_sentence_that_they_are_in(sentences, tmp_path):
    rows = "--data.init_args.eval_batch_size=4"
    run = _text_run("chung2016/ptb-char-hm-lstm-step", sentences, tmp_path / "run", rows)
    (picture,) = example_pictures(read_trained_run(run, "mine"))
    assert picture.title == "mine: boundaries in a sentence"
    assert "How the first sentence of the validation text begins" in picture.caption
    symbols = (sentences / "ptb.char.valid.txt").read_text(encoding="utf-8").split(" ")
    labels = "".join(re.findall("<!-- (.) -->", picture.svg))
    assert len(labels) >= 8
    assert "".join(symbols).startswith(labels)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("given", [None, "data_dir", "file"])
def test_without_the_data_the_page_says_what_is_missing(text_run, tmp_path, given):
    config = yaml.safe_load((text_run / "config.yaml").read_text(encoding="utf-8"))
    arguments = config["data"]["init_args"]
    arguments["data_dir"] = None
    if given is not None:
        arguments[given] = str(tmp_path / "gone")
    (text_run / "config.yaml").write_text(yaml.safe_dump(config))
    page = Page(report([text_run], tmp_path / "page.html").read_text(encoding="utf-8"))
    why = "name their folder with --data-dir" if given is None else "the data cannot be read"
    (line,) = left_out(page)
    assert why in line
    assert line.count("cooijmans2016/ptb-char-bn") == 4
    assert "Gradient norms of a tanh RNN" in line
    assert "population mean of rnn.recurrent_l0" in " ".join(page.captions)


class Reader(LightningModule):
    """A layer that reads rows of several lengths."""

    def __init__(self, **options):
        super().__init__()
        self.rnn = rnnorm.LSTM(options.pop("inputs", 3), 4, **options)

    def training_step(self, batch, batch_idx):
        return self.rnn(batch[0], lengths=batch[1])[0].sum()


def read(model, x, lengths):
    return _layer_and_input(SimpleNamespace(model=model, batch=(x, lengths), why=""))


def test_the_influence_of_the_first_input_is_that_of_the_longest_rows():
    model, x = Reader(), torch.randn(9, 7, 3)
    layer, found = read(model, x, torch.tensor([2, 9, 3, 8, 7, 9, 1]))
    assert torch.equal(found, x[:7, [1, 5, 3, 4]])
    assert layer.weight_ih_l0 is not model.rnn.weight_ih_l0
    assert torch.equal(read(model, x, None)[1], x[:, :4])


def test_layers_without_an_influence_say_why():
    lengths = torch.tensor([2, 2])
    with pytest.raises(ValueError, match="the first layer reads in both directions"):
        read(Reader(bidirectional=True), torch.randn(2, 2, 3), lengths)
    with pytest.raises(ValueError, match="the first layer has more than 256 inputs"):
        read(Reader(inputs=257), torch.randn(2, 2, 257), lengths)


def test_images_have_no_score_by_length(page):
    assert not any("test length" in caption for caption in page.captions)


@pytest.mark.usefixtures("unrendered")
def test_seeds_of_a_recipe_share_a_row_and_are_folded_under_it(runs, tmp_path):
    other = tmp_path / "other"
    fit("demo/digits-lstm", run_dir=other, overrides=[*DIGITS, "--seed_everything=2"], quiet=True)
    page = Page(report([runs / "lstm", other], tmp_path / "page.html").read_text(encoding="utf-8"))
    (_, only) = page.rows
    assert only[0].startswith("demo/digits-lstm")
    assert "2 seeds" in only[0]
    assert only[0].index("seed 1: best validation") < only[0].index("seed 2: best validation")
    assert " ± " in only[1]
    assert "Mean over the seeds, band from lowest to highest." in " ".join(page.captions)
    assert "Mean and standard deviation of 2 seeds." in page.notes[0]
    assert sum("spectral norm" in caption for caption in page.captions) == 1


def test_command_writes_what_was_measured_beside_the_papers_number(runs, capsys):
    checkpoint = str(runs / "lstm" / "checkpoints" / "best.ckpt")
    assert main(["test", "demo/digits-lstm", "--ckpt", checkpoint]) == 0
    capsys.readouterr()
    assert main(["report", str(runs / "lstm"), "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "page: page.html\n"
    headings, row = Page(Path("page.html").read_text(encoding="utf-8")).rows
    assert headings[1] == "test accuracy, %"
    measured, off, _ = row[1].replace(" of", "±").split("±")
    assert 0 <= float(measured) <= 100
    assert 0 <= float(off) < 10


@pytest.mark.usefixtures("unrendered")
def test_a_training_that_diverged_is_called_that(runs, tmp_path):
    gone = shutil.copytree(runs / "lstm", tmp_path / "gone")
    with (gone / "metrics.csv").open("a") as file:
        file.write("6,2,1.0,diverged,1\n")
    page = Page(report([runs / "bn", gone], tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.headings[0].startswith("demo/digits-bn: validation accuracy")
    assert page.notes[0].endswith("demo/digits-lstm diverged.")
    assert [any("then diverged" in cell for cell in row) for row in page.rows[1:]] == [False, True]


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("others", [[], ["lstm"]])
def test_a_training_that_diverged_before_its_first_checkpoint_is_reported(runs, tmp_path, others):
    gone = shutil.copytree(runs / "bn", tmp_path / "gone")
    shutil.rmtree(gone / "checkpoints")
    lines = ["step,epoch,seconds,name,value", "2,0,0.5,train/loss,2.3", "4,0,7.5,diverged,1", ""]
    (gone / "metrics.csv").write_text("\n".join(lines))
    given = [gone, *(runs / name for name in others)]
    page = Page(report(given, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert re.search(r"demo/digits-bn\b.* diverged\.$", page.notes[0])
    assert re.match(
        "Left out: what shows the inside of demo/digits-bn.*, as it has no checkpoint",
        left_out(page)[0],
    )
    cells = dict(zip(page.rows[0], page.rows[1], strict=True))
    assert [cells[name] for name in ("epochs", "steps", "seconds")] == ["0", "4then diverged", "8"]
    assert any("Gradient norms" in caption for caption in page.captions) == bool(others)


@pytest.mark.usefixtures("unrendered")
def test_a_score_and_its_epoch_are_of_one_validation(runs, tmp_path):
    # as a kill between the second validation and its checkpoint leaves them
    run, kept = shutil.copytree(runs / "lstm", tmp_path / "run"), runs / "one-epoch"
    fit("demo/digits-lstm", run_dir=kept, overrides=[*DIGITS, "--trainer.max_epochs=1"], quiet=True)
    shutil.copy(kept / "checkpoints" / "last.ckpt", run / "checkpoints")
    lines = [
        line for line in (run / "metrics.csv").read_text().splitlines() if "val/acc" not in line
    ]
    lines += ["2,0,0.1,val/accuracy,0.2778", "5,1,0.2,val/accuracy,0.3889", ""]
    (run / "metrics.csv").write_text("\n".join(lines))
    metrics = {"test/loss": 2.0, "test/accuracy": 0.4}
    keep_measurements(run, [Measurement("best.ckpt", 2, None, None, False, (), metrics, 6)])
    page = Page(report([run], tmp_path / "page.html").read_text(encoding="utf-8"))
    cells = dict(zip(page.rows[0], page.rows[1], strict=True))
    assert cells["best validation accuracy, %"] == "38.89epoch 2"
    assert cells["test accuracy, %"] == "40"
    assert page.headings[0].endswith("validation accuracy 38.9\u00a0%")


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("later", [0, 1])
def test_a_score_of_an_earlier_checkpoint_counts_as_not_measured(runs, tmp_path, later):
    run = shutil.copytree(runs / "lstm", tmp_path / "run")
    (run / "tests.json").unlink(missing_ok=True)
    outcome = read_outcome(run)
    metrics = {"test/loss": 2.0, "test/accuracy": 0.4}
    of = Measurement("best.ckpt", outcome.best_epoch + later, None, None, False, (), metrics)
    keep_measurements(run, [of])
    page = report([run], tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("A test score that is missing was not measured" in page) == bool(later)


def test_a_folder_in_the_place_of_the_page_is_refused(runs, tmp_path):
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder: name a file"):
        report([runs / "bn"], tmp_path)


def test_a_folder_that_is_no_run_is_named(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    assert f"{tmp_path} is a folder without runs" in capsys.readouterr().err


def test_cells_of_seeds_are_their_mean_and_deviation():
    assert fold([Cell("1", "epoch 3"), Cell("3", "epoch 5")]) == Cell("2.0 ± 1.4")
    assert fold([Cell("54321"), Cell("54321")]) == Cell("54321")
    assert fold([Cell("1.5", "bits"), Cell()]) == Cell("1.5", "bits; 1 of 2 seeds")
    assert fold([Cell(), Cell()]) == Cell()
    assert fold([Cell("nan"), Cell("2")]).value == "nan"
