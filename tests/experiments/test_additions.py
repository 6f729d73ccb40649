"""A reader, a task, a recipe and a command, added as docs/design.md says, work."""

import importlib
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from interruption import Interruption, KillAt

from fuzz import changed, failure
from rnnorm.experiments import commands, data, tasks
from rnnorm.experiments.commands import cli
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.files import BrokenFileError
from rnnorm.experiments.trained.export import export
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit

READER = '''
import torch
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.data.batches import Minibatches
from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.files import BrokenFileError


def read_slopes(path):
    """Read a class and numbers from each line."""
    found = []
    for place, line in placed_lines(path):
        name, *numbers = line.split()
        try:
            x = torch.tensor([[float(number)] for number in numbers])
            found.append((x, ("down", "up").index(name)))
            x.size(1)
        except (ValueError, IndexError):
            raise BrokenFileError(f"{place} must have up or down, and numbers") from None
    return found


class SlopeBatches(Minibatches):
    def __init__(self, slopes, batch_size, seed):
        super().__init__(len(slopes), batch_size, seed)
        self.slopes = slopes

    def batch(self, number, drawn):
        x, y = zip(*(self.slopes[row] for row in drawn[number]), strict=True)
        return pad_sequence(x), torch.tensor([len(each) for each in x]), torch.tensor(y)
'''

TASK = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.slopes import SlopeBatches, read_slopes
from rnnorm.experiments.models.recurrent_model import RecurrentModel, whole_sequences
from rnnorm.experiments.training.score import Score


class SlopeData(LoadedData):
    def __init__(self, file: str = "slopes.txt", **shared):
        super().__init__(**shared)

    def load(self):
        slopes = read_slopes(self.hparams["file"])
        parts = {"train": slopes[:-8], "val": slopes[-8:-4], "test": slopes[-4:]}
        return {p: SlopeBatches(rows, *self.rows_and_seed(p)) for p, rows in parts.items()}

    def preprocessing(self, kept):
        return {"classes": ["down", "up"]}


class SlopeClassifier(RecurrentModel):
    score = Score("accuracy", "max")
    kind = "one of slopes"
    writes = "names slopes: not by rnnorm write"

    def __init__(self, **layers):
        super().__init__(**layers)
        self.rnn = self.make_layer(1)
        self.classifier = nn.Linear(self.rnn.hidden_size, 2)

    def forward(self, x, lengths=None):
        h, _ = self.rnn(x, lengths=lengths)[1]
        return self.classifier(h[-1])

    def training_step(self, batch, batch_idx):
        *inputs, y = batch
        return cross_entropy(self(*inputs), y)

    def evaluate(self, name, batch):
        *inputs, y = batch
        self.log_score(name, (self(*inputs).argmax(1) == y).float())

    def export_inputs(self, steps, rows):
        return whole_sequences(torch.zeros(steps, rows, 1))
"""

RECIPE = """
about: {title: slopes, paper: none, metric: 'test accuracy, %'}
seed_everything: 1
trainer: {max_epochs: 2, accelerator: cpu, devices: 1, log_every_n_steps: 1}
model: {class_path: rnnorm.experiments.tasks.slopes.SlopeClassifier, init_args: {hidden_size: 6}}
data: {class_path: rnnorm.experiments.tasks.slopes.SlopeData, init_args: {batch_size: 5}}
optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01}}
"""

COMMAND = """
HELP = "count the series of a file"
USAGE = ("FILE [options]",)


def add_options(parser):
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--class", dest="name", choices=["up", "down"], default="up", help="(up)")


def run(file, name):
    from rnnorm.experiments.data.slopes import read_slopes

    print(sum(("down", "up")[y] == name for _, y in read_slopes(file)))
"""


def slopes(count):
    lines = []
    for i in range(count):
        name = ("up", "down")[i % 2]
        numbers = [(1, -1)[i % 2] * t / (i + 1) for t in range(2 + i % 4)]
        lines.append(f"{name} {' '.join(f'{number:.3f}' for number in numbers)}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """Puts the files where the recipes of docs/design.md have them; returns a recipe."""
    folder = tmp_path_factory.mktemp("added")
    (folder / "slopes.txt").write_text(slopes(24))
    recipe = folder / "slopes-lstm.yaml"
    recipe.write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        for package, text in ((data, READER), (tasks, TASK), (commands, COMMAND)):
            room = folder / package.__name__
            room.mkdir()
            (room / "slopes.py").write_text(text)
            patch.setattr(package, "__path__", [*package.__path__, str(room)])
        command = importlib.import_module("rnnorm.experiments.commands.slopes")
        patch.setitem(cli._COMMANDS, "slopes", command)
        yield recipe


def test_an_added_reader_reads_or_names_what_is_broken(added, tmp_path, monkeypatch):
    reader = importlib.import_module("rnnorm.experiments.data.slopes")
    found = reader.read_slopes(added.with_name("slopes.txt"))
    assert [(len(x), y) for x, y in found[:3]] == [(2, 1), (3, 0), (4, 1)]
    path = tmp_path / "slopes.txt"
    path.write_text("up 1 2\nleft 1\n")
    with pytest.raises(BrokenFileError, match=r"slopes\.txt, line 2 must have up or down"):
        reader.read_slopes(path)
    # failure() has one of its own
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    whole = added.with_name("slopes.txt").read_bytes()
    for number in range(20):
        path.write_bytes(changed(whole, random.Random(number)))
        assert failure(path, reader.read_slopes) is None


def test_minibatches_of_an_added_reader_resume(added):
    reader = importlib.import_module("rnnorm.experiments.data.slopes")
    one, two = (
        reader.SlopeBatches(reader.read_slopes(added.with_name("slopes.txt")), 5, seed=1)
        for _ in range(2)
    )
    order = [y.tolist() for *_, y in one]
    begun = iter(two)
    first = [next(begun)[2].tolist() for _ in range(2)]
    state = two.state_dict()
    two.load_state_dict(state)
    assert first + [y.tolist() for *_, y in two] == order


def test_padding_changes_nothing_in_an_added_task(added):
    task = importlib.import_module("rnnorm.experiments.tasks.slopes")
    model = task.SlopeClassifier(hidden_size=6, norm="batch")
    x = torch.randn(4, 3, 1)
    padded = torch.cat([x, torch.full((2, 3, 1), torch.nan)])
    torch.testing.assert_close(model(padded, torch.full((3,), 4)), model(x))


def test_an_added_task_trains_resumes_tests_and_is_exported(added, tmp_path, capsys):
    given = [f"--data.init_args.file={added.with_name('slopes.txt')}"]
    whole = fit(str(added), run_dir=tmp_path / "whole", overrides=given, quiet=True)
    assert 0 <= whole.best <= 1
    with pytest.raises(Interruption):
        fit(
            str(added),
            run_dir=tmp_path / "run",
            overrides=given,
            every_n_steps=1,
            callbacks=[KillAt(4)],
            quiet=True,
        )
    resumed = fit(resume=tmp_path / "run", quiet=True)
    one, two = (read_checkpoint(run.last_checkpoint) for run in (whole, resumed))
    assert one["global_step"] == two["global_step"] == 6
    for name, value in one["state_dict"].items():
        assert torch.equal(value, two["state_dict"][name]), name
    assert main(["test", str(tmp_path / "run")]) == 0
    assert "test accuracy" in capsys.readouterr().out
    about = export(tmp_path / "run", tmp_path / "slopes.pt", format="folded")
    assert about["task"] == "SlopeClassifier"
    assert about["preprocessing"] == {"classes": ["down", "up"]}
    assert main(["write", str(tmp_path / "run")]) == 1
    assert "it names slopes: not by rnnorm write" in capsys.readouterr().err


def test_an_added_command_runs_and_helps(added, capsys):
    assert main(["--help"]) == 0
    assert "\n  slopes   count the series of a file\n" in capsys.readouterr().out
    assert main(["slopes", str(added.with_name("slopes.txt")), "--class", "down"]) == 0
    assert capsys.readouterr().out == "12\n"
    with pytest.raises(SystemExit):
        main(["slopes", "slopes.txt", "--clas=up"])
    assert "the nearest is --class" in capsys.readouterr().err
    assert main(["slopes", "nowhere.txt"]) == 1
    assert capsys.readouterr().err.startswith("rnnorm slopes: ")


def test_each_addition_is_described_in_at_most_eight_lines():
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (Add .*)\n\n((?:\S.*\n| .*\n)+)", page, re.MULTILINE))
    assert len(sections) == 8
    assert not [name for name, text in sections.items() if len(text.splitlines()) > 8]
