"""Law 10: a reset is a new sequence; the pieces between resets are sequences of their own."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from cases import (
    Case,
    any_case,
    assert_all_close,
    assert_population,
    buffers,
    cut,
    gradients,
    law,
    single,
    trained,
    tuple_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

import definition
import rnnorm
from rnnorm import BatchNorm, LayerNorm, use_backend
from rnnorm.kernels import dispatch
from rnnorm.layers.call import pieces

NORMS = [BatchNorm(min_rows=2), BatchNorm(input="sequence", population="shared"), LayerNorm(), None]
KERNELS = ["reference", "cpu", "aten", None]


def on(kernel):
    if kernel is None:
        return nullcontext()
    if unavailable := rnnorm.backends()[kernel]:
        pytest.skip(unavailable)
    return use_backend(kernel)


def draw_resets(lengths, seed=0, share=0.4):
    """Which frames of each sequence begin anew."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, generator=generator) < share for n in lengths]


def run(module, sequences, resets, hx=None, step=None):
    """One call with resets, dense if it can be: output of each sequence, and final states."""
    x, reset = pad_sequence(list(sequences)), pad_sequence(list(resets))
    lengths = torch.tensor([len(s) for s in sequences])
    options = {} if (lengths == len(x)).all() else {"lengths": lengths}
    output, state, *_ = module(x, single(hx), step=step, reset=reset, **options)
    return [output[: len(s), b] for b, s in enumerate(sequences)], tuple_of(state)


def run_padded(module, sequences, resets, hx=None, step=None):
    """The same with two frames of padding more, where there are NaN and resets."""
    x = pad_sequence([*sequences, sequences[0].new_zeros(9, 3)], padding_value=torch.nan)[:, :-1]
    reset = pad_sequence([*resets, resets[0].new_ones(9)], padding_value=True)[:, :-1]
    lengths = [len(s) for s in sequences]
    output, state, *_ = module(x, single(hx), lengths=lengths, step=step, reset=reset)
    return [output[: len(s), b] for b, s in enumerate(sequences)], tuple_of(state)


def run_packed(module, sequences, resets, hx=None, step=None):
    """The same packed."""
    x, reset = (pack_sequence(list(s), enforce_sorted=False) for s in (sequences, resets))
    output, state, *_ = module(x, single(hx), step=step, reset=reset)
    output, _ = pad_packed_sequence(output)
    return [output[: len(s), b] for b, s in enumerate(sequences)], tuple_of(state)


def by_definition(module, norm, sequences, resets, hx=None, step=None):
    """Outputs of each sequence, final states and statistics of the pieces as sequences."""
    rows, goes_on, parts = zip(*cut(sequences, resets), strict=True)
    begun = definition.initial_state(module, len(parts), torch.float64)
    if hx is not None:
        begun = [
            torch.stack([s[:, b] if on else n[:, k] for k, (b, on) in enumerate(which)], 1)
            for which in [list(zip(rows, goes_on, strict=True))]
            for s, n in zip(hx, begun, strict=True)
        ]
    steps = [0 if step is None else step] * len(sequences) if not isinstance(step, list) else step
    ages = [steps[b] if on else 0 for b, on in zip(rows, goes_on, strict=True)]
    found = definition.network(module, norm, parts, tuple(begun), ages)
    of_row = [[k for k, b in enumerate(rows) if b == row] for row in range(len(sequences))]
    outputs = [torch.cat([found.outputs[k] for k in own]) for own in of_row]
    last = [own[-1] for own in of_row]
    return outputs, tuple(s[:, last] for s in found.states), found.statistics


def compare(case, module, resets, got_by, step=None):
    """Compare values, gradients and population with the definition's; return the layer's."""
    sequences, hx = case.sequences(), case.hx()
    outputs, states, statistics = by_definition(module, case.norm, sequences, resets, hx, step)
    want = gradients(module, sequences, hx, outputs, states)
    before = buffers(module)
    step = torch.tensor(step) if isinstance(step, list) else step
    got_outputs, got_states = got_by(module, sequences, resets, hx, step)
    assert_all_close(got_outputs, outputs)
    assert_all_close(got_states, states)
    # rows that begin alike have no variance, by which rounding is divided
    tolerance = 1e-5 if module.training and isinstance(case.norm, BatchNorm) else 1e-7
    assert_all_close(gradients(module, sequences, hx, got_outputs, got_states), want, tolerance)
    if not module.training:
        assert_all_close(buffers(module), before, 0)
    elif isinstance(case.norm, BatchNorm):
        assert_population(module, [statistics], case.norm)


@law(150)
@given(
    any_case(norms="any"),
    st.integers(0, 999),
    st.sampled_from([run, run_padded, run_packed]),
    st.sampled_from([None, "reference"]),
)
def test_a_reset_is_a_new_sequence_in_training(case, seed, got_by, kernel):
    with on(kernel):
        compare(case, case.module(), draw_resets(case.lengths, seed), got_by)


@law(100)
@given(
    any_case(norms="any"),
    st.integers(0, 999),
    st.sampled_from([run, run_padded, run_packed]),
    st.sampled_from([None, "reference"]),
    st.data(),
)
def test_a_reset_is_a_new_sequence_in_evaluation(case, seed, got_by, kernel, data):
    steps = st.integers(0, 4)
    rows = st.lists(steps, min_size=len(case.lengths), max_size=len(case.lengths))
    step = None if case.bidirectional else data.draw(st.one_of(steps, rows))
    module = trained(case)
    module._warned_of_step = True  # the warning of a missing step has its own tests
    with on(kernel):
        compare(case, module, draw_resets(case.lengths, seed), got_by, step)


DROPOUTS = [
    rnnorm.Zoneout(cell=0.0, hidden=0.3),
    rnnorm.CellDropout(p=0.3),
    rnnorm.CellDropout(p=0.3, sampling="sequence"),
    rnnorm.SequenceDropout(input=0.2, hidden=0.3),
]


@law(100)
@given(
    any_case(norms="any"),
    st.integers(0, 999),
    st.sampled_from(DROPOUTS),
    st.sampled_from([run, run_padded, run_packed]),
    st.booleans(),
)
def test_every_kernel_begins_masked_rows_anew_alike(case, seed, dropped, got_by, training):
    module, found = case.module() if training else trained(case), []
    if any(place not in ("input", *module.cell.dropouts) for place in dropped.rates()):
        dropped = rnnorm.SequenceDropout(input=0.3)
    module.recurrent_dropout, module._warned_of_step = dropped, True
    sequences, hx, resets = case.sequences(), case.hx(), draw_resets(case.lengths, seed)
    for kernel in (None, "reference"):
        torch.manual_seed(seed)
        with on(kernel):
            outputs, states = got_by(module, sequences, resets, hx)
        found.append([*outputs, *states])
        found.append(gradients(module, sequences, hx, outputs, states))
    assert_all_close(found[0], found[2])
    assert_all_close(found[1], found[3], 1e-6)


@law(40)
@given(any_case(norms="any", bidirectional=False), st.integers(0, 999), st.data())
def test_rows_of_different_ages_train_together_without_statistics_over_rows(case, seed, data):
    norm = case.norm if isinstance(case.norm, LayerNorm) else None
    case = replace(case, norm=norm)
    steps = [data.draw(st.integers(0, 6)) for _ in case.lengths]
    compare(case, case.module(), draw_resets(case.lengths, seed), run, steps)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (5,), (4, 4, 4), (2, 4, 3)])
def test_none_and_all_true_one_row_and_one_step(norm, share, lengths):
    if isinstance(norm, BatchNorm) and sum(lengths) == 1:
        pytest.skip("a single frame has no variance")
    if isinstance(norm, BatchNorm) and len(lengths) == 1 and not share:
        pytest.skip("nor has a single row")
    case = Case("GRU", norm, lengths, num_layers=2, bidirectional=True)
    for got_by in (run, run_padded, run_packed):
        compare(case, case.module(), draw_resets(lengths, share=share), got_by)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 2, 3)])
def test_without_a_reset_the_call_is_the_same(norm, lengths, kernel):
    if kernel == "aten" and norm is not None:
        pytest.skip("it has no norm")
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, num_layers=2, norm=norm, dropout=0.3, dtype=torch.float64)
    x = pad_sequence([torch.randn(n, 3, dtype=torch.float64) for n in lengths])
    in_padding = torch.arange(4).unsqueeze(1) >= torch.tensor(lengths)
    results = []
    for reset in (None, torch.zeros(4, 3, dtype=torch.bool), in_padding):
        torch.manual_seed(1)
        layer.reset_running_stats()
        with on(kernel):
            output, state = layer(x, lengths=torch.tensor(lengths), reset=reset)
        grads = torch.autograd.grad(output.sum(), list(layer.parameters()))
        results.append([output, *state, *grads, *layer.buffers()])
    # the noise of initial states, and the masks of dropout, are drawn alike
    assert_all_close(results[1], results[0], 1e-12)
    assert_all_close(results[2], results[0], 1e-12)
    if kernel == "reference" and not isinstance(norm, BatchNorm):
        assert all(map(torch.equal, results[1], results[0]))


# cells that the definition does not have, and options that change what a piece begins with
LAYERS = {
    "HMLSTM": lambda **o: rnnorm.HMLSTM(3, 4, num_layers=2, boundary="soft", **o),
    "ClockworkRNN": lambda **o: rnnorm.ClockworkRNN(3, 4, periods=(1, 2), **o),
    "zoneout": lambda **o: rnnorm.LSTM(3, 4, recurrent_dropout=rnnorm.Zoneout(), **o),
    "from_input": lambda **o: rnnorm.GRU(
        3, 4, bidirectional=True, learn_initial_state="from_input", initial_noise=0.0, **o
    ),
}


@pytest.mark.parametrize("norm", [None, LayerNorm(), BatchNorm()])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("given_state", [False, True])
def test_pieces_alone_give_the_same(name, norm, given_state):
    torch.manual_seed(0)
    layer = LAYERS[name](norm=norm, dtype=torch.float64)
    lengths, resets = (5, 3, 4), draw_resets((5, 3, 4), 3)
    sequences = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in lengths]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.5)
        state = layer(pad_sequence(sequences), lengths=lengths)[1]
    layer.eval()
    hx = [torch.randn_like(s).requires_grad_() for s in tuple_of(state)] if given_state else None
    outputs, final = [[] for _ in lengths], [None] * len(lengths)
    layer._warned_of_step = True
    for b, goes_on, part in cut(sequences, resets):
        begun = tuple(s[:, b : b + 1] for s in hx) if hx and goes_on else None
        output, last, *_ = layer(part.unsqueeze(1), single(begun))
        outputs[b].append(output.squeeze(1))
        final[b] = [s.squeeze(1) for s in tuple_of(last)]
    outputs, final = (
        [torch.cat(each) for each in outputs],
        map(torch.stack, zip(*final, strict=True)),
    )
    states = [s.movedim(0, 1) for s in final]
    want = gradients(layer, sequences, hx, outputs, states)
    hx = hx and tuple(hx)
    for got_by in (run, run_padded, run_packed):
        got, got_states = got_by(layer, sequences, resets, hx)
        assert_all_close(got, outputs)
        assert_all_close(got_states, states)
        assert_all_close(gradients(layer, sequences, hx, got, got_states), want, 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_before_a_reset_is_not_seen_after_it(norm, value, kernel):
    if kernel == "aten" and norm is not None:
        pytest.skip("it has no norm")
    case = Case("LSTM", norm, (6, 6, 6), num_layers=2)
    module, after = trained(case), []
    reset = torch.zeros(6, 3, dtype=torch.bool)
    reset[3] = True
    for before in (0.0, value):
        x = torch.stack([s.detach() for s in case.sequences()], 1)
        x[:3] = before
        hx = tuple(torch.full_like(s, before) for s in case.hx())
        with on(kernel):
            output, state = module(x.requires_grad_(), hx, reset=reset, step=0)
        (grad,) = torch.autograd.grad(output[3:].sum() + sum(s.sum() for s in state), x)
        after.append([output[3:], *state, grad[3:]])
    assert_all_close(after[1], after[0], 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_reset_at_the_first_frame_drops_the_given_state(norm, kernel, bidirectional):
    if kernel == "aten" and norm is not None:
        pytest.skip("it has no norm")
    case = Case("LSTM", norm, (4, 4, 4), num_layers=2, bidirectional=bidirectional)
    sequences, found = case.sequences(), []
    reset = torch.zeros(4, 3, dtype=torch.bool)
    reset[0] = True
    for hx in (None, tuple(torch.full_like(s, torch.nan).requires_grad_() for s in case.hx())):
        module = case.module()
        with on(kernel):
            output, state = module(torch.stack(sequences, 1), hx, reset=reset)
        outputs, states = list(output.unbind(1)), tuple_of(state)
        grads = gradients(module, sequences, hx, outputs, states)
        assert all((grads.pop(f"state {n}") == 0).all() for n in range(2 if hx else 0))
        found.append(grads | {"output": output})
    assert_all_close(found[1], found[0], 0)


@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_are_those_of_finite_differences(norm):
    case = Case("LSTM", norm, (4, 4, 4))
    module, (h, c) = case.module(), case.hx()
    x = torch.stack([s.detach() for s in case.sequences()], 1).requires_grad_()
    # late pieces of few rows would have the statistics of others, as constants
    reset = torch.tensor([False, False, True, False]).unsqueeze(1).expand(4, 3)

    def outputs(x, h, c):
        output, state = module(x, (h, c), reset=reset)
        return output, *state

    with use_backend("reference"):
        assert torch.autograd.gradcheck(outputs, (x, h, c))
        assert torch.autograd.gradgradcheck(outputs, (x, h, c), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({}, True),
        ({"norm": "layer", "num_layers": 2}, True),
        ({"recurrent_dropout": rnnorm.Zoneout(), "norm": "layer"}, True),
        ({"norm": BatchNorm(input=None, recurrent=None, cell=None)}, True),
        ({"norm": "batch"}, False),
        ({"bidirectional": True}, False),
        ({"learn_initial_state": True}, False),
        ({"initial_noise": 0.1}, False),
        ({"recurrent_dropout": rnnorm.SequenceDropout(hidden=0.5)}, False),
    ],
)
def test_rows_are_cut_only_where_the_kernel_cannot_restart_them(options, native, monkeypatch):
    shapes = []
    run_layer = dispatch.reference.layer

    def record(call):
        shapes.append(tuple(call.x.shape[:2]))
        assert (call.reset is not None) == native
        return run_layer(call)

    kernels = [
        replace(kernel, layer=record) if kernel.name == "reference" else kernel
        for kernel in dispatch.KERNELS
    ]
    monkeypatch.setattr(dispatch, "KERNELS", kernels)
    reset = torch.zeros(5, 2, dtype=torch.bool)
    reset[3, 0] = True
    with use_backend("reference"):
        rnnorm.LSTM(3, 4, **options)(torch.randn(5, 2, 3), reset=reset)
    assert set(shapes) == {(5, 2) if native else (5, 3)}


@pytest.mark.parametrize("norm", ["all", "sequence", "mixed"])
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_statistics_of_all_steps_serve_in_evaluation_without_cuts(norm, kernel, monkeypatch):
    norm = {
        "all": BatchNorm(population="shared"),
        "sequence": BatchNorm(input="sequence", recurrent=None, cell=None),
        "mixed": {"input": BatchNorm(input="sequence"), "recurrent": LayerNorm()},
    }[norm]
    case = Case("LSTM", norm, (6, 4, 3))
    module = trained(case)
    monkeypatch.setattr(pieces, "cut", None)
    with on(kernel):
        compare(case, module, draw_resets(case.lengths), run_padded)
    module.train()
    with pytest.raises(TypeError, match="not callable"):
        run(module, case.sequences(), draw_resets(case.lengths))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
def test_each_piece_has_one_mask_of_its_own(options):
    torch.manual_seed(0)
    drop = rnnorm.SequenceDropout(input=0.5)
    layer = rnnorm.RNN(1, 64, recurrent_dropout=drop, bias=False, **options)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    reset = torch.zeros(40, 1, dtype=torch.bool)
    reset[::4] = True
    output, _ = layer(torch.ones(40, 1, 1), reset=reset)
    kept = (output[:, 0, :64] != 0).any(1).view(10, 4)
    assert (kept == kept[:, :1]).all()
    assert 0 < kept[:, 0].sum() < 10


def test_each_piece_has_noise_of_its_own():
    torch.manual_seed(0)
    layer = rnnorm.RNN(3, 4, norm="batch")
    output, _ = layer(torch.zeros(6, 2, 3), reset=torch.ones(6, 2, dtype=torch.bool))
    assert len(output.flatten(0, 1).unique(dim=0)) == 12
