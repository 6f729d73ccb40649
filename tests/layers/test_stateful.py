"""A layer that keeps its states gives in pieces what one call over the whole gives."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm
from own_cell import LiGRU
from rnnorm import tracing
from rnnorm.diagnostics import batch_statistics

LAYERS = {
    "LSTM": lambda **options: rnnorm.LSTM(3, 4, 2, **options),
    "LSTM-proj": lambda **options: rnnorm.LSTM(3, 4, 2, proj_size=2, **options),
    "GRU": lambda **options: rnnorm.GRU(3, 4, 2, **options),
    "RNN": lambda **options: rnnorm.RNN(3, 4, **options),
    "Recurrent": lambda **options: rnnorm.Recurrent(LiGRU(), 3, 4, 2, **options),
    "Clockwork": lambda **options: rnnorm.ClockworkRNN(3, 4, periods=(1, 3), **options),
    "HMLSTM": lambda **options: rnnorm.HMLSTM(3, 4, **options),
}


def make(name, norm="batch", trained=True, **options):
    """A stateful layer in evaluation, whose steps have statistics of their own."""
    torch.manual_seed(0)
    layer = LAYERS[name](norm=norm, dtype=torch.float64, **options)
    if trained and norm == "batch":
        shape = (6, 9, 3) if options.get("batch_first") else (9, 6, 3)
        layer(torch.randn(shape, dtype=torch.float64))
    if options.get("learn_initial_state"):
        for parameter in (p for n, p in layer.named_parameters() if "_0" in n):
            nn.init.normal_(parameter)
    return rnnorm.Stateful(layer).eval()


def frames(steps, rows=3):
    return torch.randn(steps, rows, 3, dtype=torch.float64)


def output_of(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", LAYERS)
def test_pieces_are_one_call_over_the_whole(name, norm):
    stateful, x = make(name, norm), frames(12)
    whole = stateful.layer(x, step=0)[0]
    pieces = [output_of(stateful(piece)) for piece in x.split([1, 4, 1, 6])]
    torch.testing.assert_close(torch.cat(pieces), whole)
    assert stateful.age == 12
    stateful.reset()
    assert stateful.state is None
    torch.testing.assert_close(output_of(stateful(x[:5])), whole[:5])


@pytest.mark.parametrize("rows", [[1], [-2], torch.tensor([1]), 1, [False, True, False]], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_row_begins_anew_among_running_rows(name, rows):
    stateful, x = make(name, learn_initial_state=True), frames(12)
    stateful(x[:5])
    stateful.reset(rows)
    assert stateful.age.tolist() == [5, 0, 5]
    pieces = [output_of(stateful(piece)) for piece in (x[5:8], x[8:])]
    whole, alone = stateful.layer(x)[0], stateful.layer(x[5:, 1:2])[0]
    torch.testing.assert_close(torch.cat(pieces)[:, ::2], whole[5:, ::2])
    torch.testing.assert_close(torch.cat(pieces)[:, 1:2], alone)
    assert stateful.age.tolist() == [12, 7, 12]


def test_a_row_that_begins_anew_reads_its_beginning_from_its_input():
    stateful, x = make("GRU", learn_initial_state="from_input"), frames(9)
    stateful(x[:5])
    stateful.reset([2])
    torch.testing.assert_close(stateful(x[5:])[:, 2:], stateful.layer(x[5:, 2:])[0])


@pytest.mark.parametrize("form", ["lengths", "packed"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_rows_continue_behind_their_last_frames(form, batch_first):
    stateful, x = make("LSTM", batch_first=batch_first), frames(12)
    counts = [torch.tensor([3, 5, 1]), torch.tensor([4, 2, 6])]
    parts = [[], [], []]
    done = torch.zeros(3, dtype=torch.int64)
    for count in counts:
        piece = torch.full((int(count.max()), 3, 3), torch.nan, dtype=torch.float64)
        for row, (first, n) in enumerate(zip(done.tolist(), count.tolist(), strict=True)):
            piece[:n, row] = x[first : first + n, row]
        piece = piece.transpose(0, 1) if batch_first else piece
        if form == "lengths":
            output = stateful(piece, lengths=count)
        else:
            packed = pack_padded_sequence(piece, count, batch_first, enforce_sorted=False)
            output, _ = pad_packed_sequence(stateful(packed), batch_first)
        output = output.transpose(0, 1) if batch_first else output
        for row, n in enumerate(count.tolist()):
            parts[row].append(output[:n, row])
        done += count
    assert stateful.age.tolist() == done.tolist() == [7, 7, 7]
    x = x.transpose(0, 1) if batch_first else x
    whole = stateful.layer(x)[0]
    whole = whole.transpose(0, 1) if batch_first else whole
    for row, part in enumerate(parts):
        torch.testing.assert_close(torch.cat(part), whole[:7, row])


@pytest.mark.parametrize("form", ["dense", "lengths", "packed", "batch first"])
def test_rows_begin_anew_within_a_call(form):
    first = form == "batch first"
    stateful, x = make("GRU", batch_first=first), frames(12)
    lengths = torch.tensor([4, 2, 6]) if form in ("lengths", "packed") else torch.tensor([6, 6, 6])
    begins = torch.zeros(6, 3, dtype=torch.bool)
    # the last of these lies in the padding
    begins[1, 0] = begins[3, 0] = begins[0, 2] = begins[5, 1] = True

    def turned(x):
        return x.transpose(0, 1) if first else x

    stateful(turned(x[:6]))
    stateful.reset([0])
    if form == "packed":
        pack = [pack_padded_sequence(t, lengths, enforce_sorted=False) for t in (x[6:], begins)]
        output, _ = pad_packed_sequence(stateful(pack[0], reset=pack[1]))
    else:
        given = {"lengths": lengths} if form == "lengths" else {}
        output = turned(stateful(turned(x[6:]), reset=turned(begins), **given))

    def alone(row, since, until):
        return turned(stateful.layer(turned(x[since:until, row : row + 1]))[0])[:, 0]

    torch.testing.assert_close(output[:1, 0], alone(0, 6, 7))
    torch.testing.assert_close(output[1:3, 0], alone(0, 7, 9))
    torch.testing.assert_close(output[3:4, 0], alone(0, 9, 10))
    torch.testing.assert_close(output[:2, 1], alone(1, 0, 8)[6:])
    torch.testing.assert_close(output[:, 2], alone(2, 6, 12))
    ages = [1, 8, 6] if form in ("lengths", "packed") else [3, 1, 6]
    assert stateful.age.tolist() == ages


@pytest.mark.parametrize("name", LAYERS)
def test_unbatched_input_is_one_row(name):
    stateful, x = make(name), frames(8, 1)
    pieces = [output_of(stateful(piece[:, 0])) for piece in x.split([3, 5])]
    torch.testing.assert_close(torch.cat(pieces), stateful.layer(x)[0][:, 0])
    stateful.reset([0])
    torch.testing.assert_close(output_of(stateful(x[:3, 0])), stateful.layer(x[:3])[0][:, 0])
    output = output_of(stateful(x[3:, 0], reset=torch.arange(3, 8) == 4))
    torch.testing.assert_close(output[1:], stateful.layer(x[4:])[0][:, 0])


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_training_is_truncated_backpropagation(name, norm):
    stateful, x = make(name, norm, trained=False, initial_noise=0.0).train(), frames(8, 9)
    layer, hx = copy.deepcopy(stateful.layer), None
    for piece in x.split(4):
        loss = stateful(piece).square().sum()
        output, hx = layer(piece, hx)
        expected = output.square().sum()
        found = torch.autograd.grad(loss, stateful.layer.parameters())
        torch.testing.assert_close(found, torch.autograd.grad(expected, layer.parameters()))
        hx = tuple(s.detach() for s in hx) if isinstance(hx, tuple) else hx.detach()
        assert not any(s.requires_grad for s in stateful._kept[True].state)
    torch.testing.assert_close(dict(stateful.layer.named_buffers()), dict(layer.named_buffers()))
    assert stateful.age == (0 if norm == "batch" else 8)


def test_the_beginning_of_a_row_learns_in_training():
    stateful, x = make("GRU", "layer", learn_initial_state=True).train(), frames(8)
    stateful(x[:4])
    stateful.reset([1])
    found = torch.autograd.grad(stateful(x[4:])[:, 1].sum(), stateful.layer.h_0)
    expected = torch.autograd.grad(stateful.layer(x[4:, 1:2])[0].sum(), stateful.layer.h_0)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.grad(stateful(x).sum(), stateful.layer.h_0, allow_unused=True) == (None,)


def test_training_and_evaluation_keep_states_of_their_own():
    stateful, x = make("LSTM", None), frames(9, 4)
    whole = stateful.layer(x)[0]
    torch.testing.assert_close(stateful.train()(x[:3]), whole[:3])
    torch.testing.assert_close(stateful.eval()(x[:5, :2]), whole[:5, :2])
    torch.testing.assert_close(stateful.train()(x[3:6]), whole[3:6])
    stateful.reset()
    torch.testing.assert_close(stateful.eval()(x[5:, :2]), whole[5:, :2])
    torch.testing.assert_close(stateful.train()(x[:3, :1]), whole[:3, :1])


def test_another_number_of_rows_needs_a_reset():
    stateful = make("LSTM")
    stateful(frames(2, 3))
    with pytest.raises(RuntimeError, match=r"3 rows .* got 4: call reset\(\)"):
        stateful(frames(2, 4))
    with pytest.raises(RuntimeError, match=r"3 rows .* got 1"):
        stateful(frames(2, 1)[:, 0])
    stateful.reset([0, 1])
    stateful.reset([2])
    stateful(frames(2, 4))
    assert stateful.age == 2


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        ([3], IndexError, "between -3 and 2"),
        ([-4], IndexError, "between -3 and 2"),
        ([True, False], RuntimeError, r"one bool for each of the 3 rows, got shape \(2,\)"),
        ([0.5], TypeError, "integers or bools"),
        (
            torch.tensor([0, 1, 0], dtype=torch.uint8),
            TypeError,
            r"got torch.uint8, .* rows.bool\(\)",
        ),
        ("all", TypeError, "integers or bools"),
        (torch.tensor([1, 0, 0]), ValueError, "each row once, .* make it bool"),
        ([1, -2], ValueError, "each row once"),
    ],
    ids=str,
)
def test_rows_that_do_not_exist_are_refused(rows, error, match):
    stateful = make("LSTM")
    stateful(frames(2))
    with pytest.raises(error, match=match):
        stateful.reset(rows)
    stateful.reset([])
    assert stateful.age == 2


def test_rows_begin_anew_though_the_mask_changes_before_the_next_call():
    stateful, done = make("LSTM"), torch.tensor([True, False, False])
    stateful(frames(2))
    stateful.reset(done)
    done.logical_not_()
    assert stateful.age.tolist() == [0, 2, 2]


def test_what_a_call_refuses_changes_no_state():
    stateful, x = make("LSTM"), frames(8)
    whole = stateful.layer(x)[0]
    stateful(x[:4])
    stateful.reset([0])
    with pytest.raises(RuntimeError, match="Expected 3, got 2"):
        stateful(x[4:, :, :2])
    with pytest.raises(TypeError, match="reset must be bool"):
        stateful(x[4:], reset=torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="reset must have the shape"):
        stateful(x[4:], reset=torch.ones(3, 4, dtype=torch.bool))
    torch.testing.assert_close(stateful(x[4:])[:, 1:], whole[4:, 1:])


def test_only_layers_that_read_forwards_are_taken():
    with pytest.raises(TypeError, match="got LSTM"):
        rnnorm.Stateful(nn.LSTM(3, 4))
    with pytest.raises(TypeError, match="got GRUCell"):
        rnnorm.Stateful(rnnorm.GRUCell(3, 4))
    with pytest.raises(ValueError, match="bidirectional"):
        rnnorm.Stateful(rnnorm.GRU(3, 4, bidirectional=True))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_continue_and_go_their_own_ways(how):
    stateful, x = make("LSTM"), frames(9)
    whole = stateful.layer(x)[0]
    stateful(x[:4])
    twin = how(stateful)
    twin.reset([0])
    torch.testing.assert_close(stateful(x[4:]), whole[4:])
    torch.testing.assert_close(twin(x[4:])[:, 1:], whole[4:, 1:])


def test_states_are_no_part_of_the_state_dict():
    stateful = make("LSTM")
    stateful(frames(4))
    assert list(stateful.state_dict()) == [f"layer.{k}" for k in stateful.layer.state_dict()]
    assert len(list(stateful.buffers())) == len(list(stateful.layer.buffers()))


def test_states_move_with_the_module():
    stateful = make("LSTM", None)
    stateful(frames(4))
    stateful.reset([1])
    stateful.float()
    output = stateful(frames(4).float())
    assert output.dtype == torch.float32
    assert stateful.age.tolist() == [8, 4, 8]
    stateful.to("meta")
    assert stateful(frames(2).float().to("meta")).is_meta


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_stream_without_gradients(mode):
    stateful, x = make("LSTM"), frames(9)
    whole = stateful.layer(x)[0]
    with mode():
        first = stateful(x[:4])
        # the next call must not read what the user does with the output
        kept, _ = first.clone(), first.zero_()
    x.requires_grad_()
    torch.testing.assert_close(torch.cat([kept, stateful(x[4:])]), whole)
    stateful.reset([0])
    stateful(x[4:]).sum().backward()


def test_one_frame_at_a_time_on_rows_of_every_age():
    stateful, x = make("LSTM"), frames(20)
    expected = torch.stack(
        [stateful.layer(x[5 * row : 5 * row + 8, row : row + 1])[0][:, 0] for row in range(3)]
    )
    found = [[], [], []]
    with torch.no_grad():
        for t in range(18):
            begins = [row for row in range(3) if t == 5 * row]
            stateful.reset(begins)
            output = stateful(x[t : t + 1])
            for row in range(3):
                found[row].append(output[0, row])
    for row in range(3):
        torch.testing.assert_close(torch.stack(found[row][5 * row : 5 * row + 8]), expected[row])


def test_update_bn_takes_the_statistics_of_windows():
    stateful, x = make("LSTM", initial_noise=0.0), frames(8, 9)
    rnnorm.update_bn([x[:4], x[4:]], stateful)
    twin = copy.deepcopy(stateful.layer)

    def windows(layer, batch):
        hx = None
        for piece in batch:
            _, hx = layer(piece, hx)

    rnnorm.update_bn([[x[:4], x[4:]]], twin, forward=windows)
    torch.testing.assert_close(dict(stateful.layer.named_buffers()), dict(twin.named_buffers()))
    assert not stateful.training


def test_update_bn_takes_a_last_minibatch_of_fewer_rows():
    stateful, x = make("LSTM", initial_noise=0.0), frames(8, 9)
    twin = copy.deepcopy(stateful.layer)
    rnnorm.update_bn([x[:4], x[4:, :5]], stateful)
    rnnorm.update_bn([x[:4], x[4:, :5]], twin)
    torch.testing.assert_close(dict(stateful.layer.named_buffers()), dict(twin.named_buffers()))
    stateful(x)
    with pytest.raises(RuntimeError, match=r"9 rows .* got 5"):
        stateful(x[:, :5])


def test_a_frozen_copy_streams():
    stateful, x = make("LSTM"), frames(8)
    frozen = rnnorm.freeze(stateful)
    pieces = [frozen(piece) for piece in x.split(3)]
    torch.testing.assert_close(torch.cat(pieces), stateful.layer(x)[0])


def test_neither_fold_nor_export_takes_it():
    stateful = make("LSTM", None)
    with pytest.raises(ValueError, match="Stateful"):
        rnnorm.fold(nn.Sequential(stateful))
    # before, torch does not tell that it exports
    if tracing.RELEASE >= (2, 13):
        with pytest.raises(RuntimeError, match="take its layer"):
            torch.export.export(stateful, (frames(2),))
    with pytest.raises(RuntimeError, match="take its layer"):
        torch.jit.trace(stateful, (frames(2),))


@pytest.mark.parametrize("fails", [False, True])
def test_statistics_that_are_taken_meanwhile_disturb_no_state(fails):
    stream = make("LSTM", initial_noise=0.0).train()
    stream(frames(5))
    before = stream.state
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        rnnorm.update_bn((frames(5 // (k < 1 or not fails), 16) for k in range(2)), stream)
    stream.eval()
    with batch_statistics(stream):
        stream(frames(4, 16))
    stream.train()
    assert all(map(torch.equal, before, stream.state))
    stream(frames(5))


def test_ages_and_flags_keep_their_dtype():
    stream = make("GRU")
    stream(frames(5), lengths=[5, 3, 1])
    stream.reset([1])
    stream.type(torch.float32)
    stream(frames(2).float())
    assert stream.age.tolist() == [7, 2, 3]


@pytest.mark.parametrize("wrong", ["list", "dense", "packed", "device"])
def test_a_wrong_reset_is_refused_where_rows_begin_anew(wrong):
    stream, x = make("GRU"), frames(5)
    flags = torch.zeros(5, 3, dtype=torch.bool)
    packed = pack_padded_sequence(x, [5, 5, 5])
    given, reset = {
        "list": (x, flags.tolist()),
        "dense": (packed, flags),
        "packed": (x, packed._replace(data=flags.flatten())),
        "device": (x, flags.to("meta")),
    }[wrong]
    said = []
    for rows in (None, [0]):
        stream(x)
        stream.reset(rows)
        with pytest.raises((TypeError, RuntimeError)) as raised:
            stream(given, reset=reset)
        said.append((raised.type, str(raised.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_a_call_under_autocast_comes_before_one_without(name):
    stateful = make(name, "layer").float()
    x = torch.randn(4, 5, 3)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            stateful(x)
        state, age = stateful.state, stateful.age
        given = tuple(s.float() for s in state) if isinstance(state, tuple) else state.float()
        expected, _ = stateful.layer(x, given, step=age)
        torch.testing.assert_close(stateful(x), expected)


def test_states_without_values_are_forgotten():
    with torch.device("meta"):
        net = nn.Sequential(rnnorm.Stateful(rnnorm.LSTM(3, 4, norm="layer")))
    net(torch.zeros(5, 2, 3, device="meta"))
    assert net[0].age == 5
    net.to_empty(device="cpu")
    assert net[0].state is None
    stateful = make("GRU", "layer")
    stateful(torch.randn(4, 5, 3, dtype=torch.float64))
    stateful.to_empty(device="cpu")
    assert stateful.state is None


HIDDEN = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch 2.6 hides integers within its transforms"
)


@pytest.mark.parametrize("given", [{}, pytest.param({"lengths": [4, 3, 3, 2, 1]}, marks=HIDDEN)])
def test_states_of_a_transform_of_gradients_are_kept_and_copied(given):
    stateful, twin = make("LSTM", "layer"), make("LSTM", "layer")
    x, parameters = torch.randn(4, 5, 3, dtype=torch.float64), dict(stateful.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(stateful, parameters, (x,), given).sum()

    torch.func.grad(loss)(parameters)
    twin(x, **given)
    torch.testing.assert_close(stateful.state, twin.state)
    torch.testing.assert_close(copy.deepcopy(stateful)(x), twin(x))


def test_vmap_is_refused_before_states_are_kept():
    stateful = make("LSTM", "layer")
    with pytest.raises(RuntimeError, match=r"keeps no states under torch\.func\.vmap"):
        torch.func.vmap(stateful)(torch.randn(2, 4, 5, 3, dtype=torch.float64))
    assert stateful.state is None
