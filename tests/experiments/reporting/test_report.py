import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.reporting.report import report
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
    """The cells of each row, the captions, and what the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.text, self.rows, self.captions, self.fetched, self.tags = text, [], [], [], []
        self._into = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        fetching = {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}
        self.fetched += [v for k, v in attributes if k in fetching and not v.startswith("#")]
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._into = self.rows[-1]
        elif tag == "figcaption":
            self.captions.append("")
            self._into = self.captions

    def handle_endtag(self, tag):
        if tag in ("td", "figcaption"):
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
    about = json.loads((folder / "bn" / "run.json").read_text())
    about["about"] |= {"title": "<script>alert(1)</script>", "number": 87.25}
    (folder / "bn" / "run.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def page(runs):
    before = files(runs)
    path = report([runs / "bn", runs / "lstm"], runs.parent / "pages" / "page.html")
    assert files(runs) == before
    return Page(path.read_text())


def test_page_fetches_nothing_and_fits_a_phone(page):
    assert page.fetched == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert "@import" not in page.text
    assert "url(http" not in page.text
    assert '<meta name="viewport" content="width=device-width' in page.text
    assert "overflow-x: auto" in page.text


def test_what_comes_from_files_is_escaped(page):
    assert "<script>" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text


def test_the_papers_number_and_the_budget_stand_in_the_same_row(page):
    _, first, second = page.rows
    assert first[1:4] == ["87.25", "–", "–"]
    assert first[5:7] == ["2", "6"]
    assert second[1] == "–"


def test_every_figure_is_drawn_or_says_why_not(page):
    said = " ".join(page.captions)
    for part in (
        "Validation accuracy, %, against steps",
        "Validation accuracy, %, against seconds",
        "demo/digits-bn: population mean of rnn.recurrent_l0",
        "demo/digits-bn: population variance of rnn.cell_l0",
        "Gradient norms of the trained models",
        "Gradient norms of a tanh RNN for several γ",
        "E[tanh'] against the spread of the input",
        "demo/digits-lstm: spectral norm of W_hh",
    ):
        assert part in said
    without = [c for c in page.captions if "Left out" in c]
    assert without == [
        "Population statistics of demo/digits-lstm Left out: model has taken no population "
        "statistics per time step."
    ]
    assert page.tags.count("svg") == len(page.captions) - 1


@pytest.fixture
def text_run(sentences, tmp_path):
    folder = tmp_path / "text"
    size = f"--model.init_args.vocabulary_size={_symbols(sentences)}"
    options = [*TEXT, size]
    fit("cooijmans2016/ptb-char-bn", run_dir=folder, data_dir=sentences, overrides=options)
    return folder


def _symbols(sentences):
    return len({*(sentences / "ptb.char.train.txt").read_text().split(" ")} - {""})


def test_a_text_has_its_score_by_length_with_both_statistics(text_run, tmp_path):
    page = Page(report([text_run], tmp_path / "page.html").read_text())
    assert "score against test length About 20000 symbols" in " ".join(page.captions)
    assert "test bits per character" in page.text
    assert not any("Left out" in caption for caption in page.captions)


@pytest.mark.parametrize("given", [None, "gone"])
def test_without_the_data_the_page_says_what_is_missing(text_run, tmp_path, given):
    config = yaml.safe_load((text_run / "config.yaml").read_text())
    config["data"]["init_args"]["data_dir"] = given and str(tmp_path / given)
    (text_run / "config.yaml").write_text(yaml.safe_dump(config))
    page = Page(report([text_run], tmp_path / "page.html").read_text())
    left_out = [caption for caption in page.captions if "Left out" in caption]
    assert len(left_out) == 4
    why = "name their folder with --data-dir" if given is None else "the data cannot be read"
    assert all(why in caption for caption in left_out)
    assert "population mean of rnn.recurrent_l0" in " ".join(page.captions)


def test_images_have_no_score_by_length(page):
    assert not any("test length" in caption for caption in page.captions)


def test_seeds_of_a_recipe_are_told_apart(runs, tmp_path):
    other = tmp_path / "other"
    fit("demo/digits-lstm", run_dir=other, overrides=[*DIGITS, "--seed_everything=2"], quiet=True)
    page = Page(report([runs / "lstm", other], tmp_path / "page.html").read_text())
    names = [row[0].split("permuted")[0] for row in page.rows[1:]]
    assert all(name.startswith("demo/digits-lstm, ") for name in names)
    assert [name.rpartition(", ")[2] for name in names] == ["seed 1", "seed 2"]


def test_command_writes_what_was_measured_beside_the_papers_number(runs, capsys):
    checkpoint = str(runs / "lstm" / "checkpoints" / "best.ckpt")
    assert main(["test", "demo/digits-lstm", "--ckpt", checkpoint]) == 0
    capsys.readouterr()
    assert main(["report", str(runs / "lstm"), "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "page: page.html\n"
    measured = Page(Path("page.html").read_text()).rows[1][2]
    assert 0 <= float(measured) <= 100


def test_a_folder_that_is_no_run_is_named(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    assert f"{tmp_path} is a folder without runs" in capsys.readouterr().err
