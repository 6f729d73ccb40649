import pytest
import torch
from matplotlib.figure import Figure
from stroke_files import write_kanji
from torch.nn.functional import pad

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.strokes.strokes import DOWN, END, UP, StrokeBatches, inputs
from rnnorm.experiments.tasks.handwriting.data import StrokeData
from rnnorm.experiments.tasks.handwriting.model import Writer
from rnnorm.experiments.trained.draw import _beginnings, draw
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit
from rnnorm.layers.normalised_module import temporarily

NORMS = [None, "batch", "layer"]
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=1",
    "--model.init_args.hidden_size=16",
    "--model.init_args.components=2",
    "--data.init_args.batch_size=10",
    "--optimizer.init_args.lr=0.02",
]


def model(**arguments):
    torch.manual_seed(0)
    given = {"components": 2, "hidden_size": 5, "init": "orthogonal"}
    return Writer(**given | arguments).double()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_kanji(tmp_path_factory.mktemp("strokes") / "handwriting").parent


@pytest.fixture
def data(folder):
    made = StrokeData(data_dir=str(folder), batch_size=7, eval_batch_size=3)
    made.setup()
    return made


@pytest.fixture
def batch(data):
    found = next(iter(data.loaders["test"]))
    assert len(set(found.lengths.tolist())) == 1
    # of several lengths
    lengths = torch.tensor([4, 2, 3])
    return found._replace(x=found.x.double(), offsets=found.offsets.double(), lengths=lengths)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Digits that are a line: to the right or downwards, by their class."""
    folder = tmp_path_factory.mktemp("digits")
    for ending, rows in (("tra", 80), ("tes", 20)):
        lines = [f"0,100,{(50, 0)[i % 2]},{(100, 50)[i % 2]},{i % 2}\n" for i in range(rows)]
        (folder / f"pendigits.{ending}").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("num_classes", [0, 2])
def test_padding_is_nothing(norm, num_classes, batch):
    results = []
    for padding in (0, 6):
        net = model(norm=norm, num_classes=num_classes)
        more = (0, 0, 0, 0, 0, padding)
        x = pad(batch.x, more, value=float("nan"))
        padded = {"x": x, "offsets": pad(batch.offsets, more, value=float("nan"))}
        loss, points = net._loss(batch._replace(**padded, pen=pad(batch.pen, more[2:], value=1)))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in net.parameters()), *net.buffers()])
        assert points == 9
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_score_is_the_mean_over_all_points_whatever_the_minibatches(data):
    net, found = model().eval(), []
    net.log = lambda *args, **options: None
    for rows in (5, 8):
        for batch in StrokeBatches(data.loaders["val"].drawings, (), data.scale, rows):
            net.evaluate("val", batch._replace(x=batch.x.double(), offsets=batch.offsets.double()))
        found.append(net.val_likelihood.compute())
        net.val_likelihood.reset()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_class_is_a_beginning(cell, batch):
    net = model(num_classes=2, cell=cell).eval()
    states = net.first_state(torch.tensor([0, 1, 1]))
    h = states[0] if cell == "LSTM" else states
    assert h.shape == (1, 3, 5)
    torch.testing.assert_close(h[:, 1], h[:, 2])
    assert not torch.equal(h[:, 0], h[:, 1])


def drawn(net, rows=4, temperature=1.0, most=30, beginning=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return net.draw(torch.zeros(rows).long(), temperature, most, generator, beginning)


def test_a_drawing_ends_once_or_after_the_most_points():
    lengths = set()
    for points in drawn(model(), rows=40, most=9):
        ends = (points[:, 2] == END).nonzero().flatten().tolist()
        assert ends in ([], [len(points) - 1])
        assert ends or len(points) == 9
        lengths.add(len(points))
    assert len(lengths) > 3


def test_rows_that_have_ended_are_computed_no_more():
    net, rows = model(), []
    net.rnn.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].size(1)))
    points = drawn(net, rows=30, most=12)
    assert rows == [sum(len(each) > step for each in points) for step in range(len(rows))]


def test_state_and_step_go_on(data):
    net = model(norm="batch")
    for batch in data.loaders["train"]:
        net.statistics_step(batch._replace(x=batch.x.double()))
    # the pen stays down
    net.head.bias.data[-3] += 9
    (points,) = drawn(net, rows=1, temperature=0, most=8)
    beginning = points[:3, :2], points[:3, 2].long()
    (again,) = drawn(net, rows=1, temperature=0, most=8, beginning=beginning)
    torch.testing.assert_close(points, again)


def test_what_is_drawn_is_read_as_a_drawing_of_the_data_is():
    net, read = model(), []
    # it does not end
    net.head.bias.data[-1] -= 99
    net.rnn.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    (points,) = drawn(net, rows=1, most=20)
    offsets, pen = points[:, :2], points[:, 2].long()
    assert {DOWN, UP} <= set(pen[:-1].tolist())
    torch.testing.assert_close(torch.cat(read).squeeze(1), inputs(offsets, pen)[:-1])


def test_a_seed_has_its_drawing():
    one, two, other = (torch.cat(drawn(model(), seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one[:4], other[:4])


@pytest.mark.parametrize("temperature", [-1, float("nan"), float("inf")])
def test_a_temperature_out_of_range(temperature):
    with pytest.raises(ValueError, match="temperature must be at least 0 and finite, got"):
        drawn(model(), temperature=temperature)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    options = [*TINY, "--trainer.max_epochs=4"]
    return fit(
        "handwriting/kanji-bn", data_dir=folder, run_dir=run_dir, overrides=options, quiet=True
    )


@pytest.mark.parametrize("name", ["lstm", "ln"])
def test_the_recipes_learn(tmp_path, folder, name):
    run = fit(
        f"handwriting/kanji-{name}",
        data_dir=folder,
        run_dir=tmp_path / "run",
        overrides=[*TINY, "--trainer.max_epochs=8"],
        quiet=True,
    )
    (test,) = measure(run.folder)
    # a standard Gaussian and a third for each thing that the pen may do
    assert test.metrics["test/loss"] < 2.84 + 1.10 - 1


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_characters_are_drawn_into_a_picture(tmp_path, trained, ending, capsys):
    out = tmp_path / f"a.{ending}"
    command = ["write", str(trained.folder), "--out", str(out), "--sentences", "7"]
    assert main([*command, "--max-length", "20"]) == 0
    assert capsys.readouterr().out == f"picture: {out}\n"
    first = out.read_bytes()
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG"}[ending])
    assert draw(trained.folder, out, count=7, max_length=20).read_bytes() == first
    assert draw(trained.folder, out, count=7, max_length=20, seed=2).read_bytes() != first
    assert draw(trained.folder, out, count=7, max_length=20, points=3).read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"out": "a.pdf"}, r"out must end with \.svg or \.png, got 'a\.pdf'"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"points": -1}, "points must be at least 0, got -1"),
        ({"classes": ["3"]}, "classes must be none for a model without, got 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, trained, arguments, what):
    given = {"out": tmp_path / "a.svg"} | arguments
    with pytest.raises(ValueError, match=what):
        draw(trained.folder, **given)
    assert not (tmp_path / "a.svg").exists()


def test_digits_are_drawn_from_their_class(tmp_path, digits, monkeypatch):
    run = fit(
        "handwriting/pendigits-lstm",
        data_dir=digits,
        run_dir=tmp_path / "run",
        overrides=[
            *TINY,
            "--model.init_args.num_classes=2",
            "--trainer.max_epochs=20",
            "--optimizer.lr=0.05",
        ],
        quiet=True,
    )
    net = run.experiment.model
    for number, towards in ((0, 0), (1, 1)):
        (points,) = net.draw(torch.tensor([number]), 0, 5, torch.Generator())
        assert points[:, :2].sum(0).argmax() == towards
    assert draw(run.folder, tmp_path / "a.svg", classes=["1", "0"], count=2).is_file()
    with pytest.raises(ValueError, match="classes must be of 0, 1, got '7'"):
        draw(run.folder, tmp_path / "a.svg", classes=["7"])
    loader = run.experiment.datamodule.loaders["val"]
    given = []
    monkeypatch.setattr(
        net.__class__, "draw", lambda *a: given.append(a[1:]) or [torch.zeros(4, 3)]
    )
    draw(run.folder, tmp_path / "b.svg", classes=["1", "0"], count=2, points=3, data_dir=digits)
    assert [number.item() for number, *_ in given] == [1, 1, 0, 0]
    for number, *_, (offsets, _) in given:
        own = [i for i, each in enumerate(loader.drawings) if each.label == str(number.item())]
        assert any(torch.equal(offsets, loader.points(i)[0][:3]) for i in own)


def test_data_that_do_not_fit_are_refused(data, folder):
    with pytest.raises(ValueError, match="num_classes must be 0 or the 0 classes, got 3"):
        model(num_classes=3).check_data(data)
    with pytest.raises(ValueError, match="max_length must leave a training drawing, got 2"):
        StrokeData(data_dir=str(folder), max_length=2).setup()
    with pytest.raises(
        ValueError, match="dataset must be one of 'kanjivg', 'iam' or 'pendigits', got 'x'"
    ):
        StrokeData(dataset="x")
    with pytest.raises(ValueError, match="the drawings are not those of the checkpoint"):
        data.load_state_dict({"classes": [], "scale": 3.0})
    # another processor may sum in another order
    data.load_state_dict({"classes": [], "scale": data.scale * (1 + 1e-7)})


def test_longer_drawings_are_left_out_of_training_and_counted(folder):
    data = StrokeData(data_dir=str(folder), max_length=4)
    data.setup()
    assert data.notes[0] == "train: 15 drawings of more than 4 points left out"
    assert int(data.loaders["train"].lengths.max()) == 4
    assert int(data.loaders["val"].lengths.max()) == 5


def test_training_offsets_have_a_deviation_of_one(folder):
    data = StrokeData(data_dir=str(folder), max_length=4)
    data.setup()
    train = data.loaders["train"]
    offsets = torch.cat([train.points(i)[0] for i in range(len(train.drawings))])
    torch.testing.assert_close(offsets.std(correction=0), torch.tensor(1.0))


def test_a_beginning_as_long_as_its_drawing_does_not_end_it(data):
    found = list(_beginnings(data, [None] * 9, 99))
    drawings = data.loaders["val"].drawings
    for (offsets, pen), own in zip(found, [*drawings, drawings[0]], strict=True):
        assert len(offsets) == len(pen) == len(own.pen)
        assert pen[-1] == UP


def test_a_report_shows_twenty_drawings(trained):
    data, net = trained.experiment.datamodule, trained.experiment.model
    with temporarily(net.modules(), training=False), torch.no_grad():
        ((title, caption, plot),) = net.examples(data)
    axes = Figure().subplots()
    plot(axes)
    assert axes.lines
    assert "of 20 have ended by themselves" in caption
    assert title == "Drawn from nothing"


def test_a_report_shows_boundaries_on_strokes(tmp_path, folder):
    run = fit(
        "handwriting/kanji-hm-lstm",
        data_dir=folder,
        run_dir=tmp_path / "run",
        overrides=[*TINY, "--trainer.max_epochs=1"],
        quiet=True,
    )
    net, data = run.experiment.model, run.experiment.datamodule
    # the lowest layer ends a segment where the pen was lifted, which the third input tells it
    with torch.no_grad():
        net.rnn.weight_ih_l0[-1] = torch.tensor([0.0, 0, 9])
        for name in ("hh", "ah"):
            getattr(net.rnn, f"weight_{name}_l0")[-1] = 0
        net.rnn.bias_l0[-1] = -4
    with temporarily(net.modules(), training=False), torch.no_grad():
        _, (title, caption, plot) = net.examples(data)
    assert title == "Boundaries on strokes"
    lifted = sum((each.pen > 0).mean() * len(each.pen) for each in data.loaders["val"].drawings)
    share = f"{lifted / data.loaders['val'].lengths.sum():.0%}"
    assert f"layer 1: at {share} of all points, at 100% of the lifts" in caption
    axes = Figure().subplots()
    plot(axes)
    # five drawings, coloured by strokes and by two layers
    colours = [line.get_color() for line in axes.lines]
    third = len(colours) // 3
    assert colours[:third] == colours[third : 2 * third]
    assert set(colours[:third]) == {"C0", "C1"}
    assert draw(run.folder, tmp_path / "a.svg", count=2).is_file()


def test_options_that_do_not_fit_an_hmlstm_are_refused():
    with pytest.raises(ValueError, match="num_classes must be 0 for an HMLSTM, got 3"):
        model(cell="HMLSTM", num_layers=2, num_classes=3)
    with pytest.raises(ValueError, match="learn_initial_state must be False with num_classes"):
        model(num_classes=3, learn_initial_state=True)
    with pytest.raises(ValueError, match=r"boundary must be 'step' or 'soft'.* got 'sample'"):
        model(cell="HMLSTM", num_layers=2, cell_options={"boundary": "sample"})
    with pytest.raises(ValueError, match="got 'given': its data give no boundaries"):
        model(cell="HMLSTM", num_layers=2, cell_options={"boundary": "given"})


def test_a_model_of_images_does_not_draw(tmp_path, tiny):
    options = [*tiny, "--trainer.max_epochs=1"]
    run = fit("demo/digits-lstm", run_dir=tmp_path / "run", overrides=options, quiet=True)
    with pytest.raises(ValueError, match=r"model must be one of handwriting.* it writes nothing"):
        draw(run.folder, tmp_path / "a.svg")


def test_a_model_of_handwriting_says_that_it_draws(trained, capsys):
    assert main(["write", str(trained.folder)]) == 1
    assert "it draws: write RUN --out PICTURE" in capsys.readouterr().err
