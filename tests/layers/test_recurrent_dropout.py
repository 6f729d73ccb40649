"""Zoneout, dropout of the candidate, and one mask for a sequence."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm
from rnnorm import CellDropout, SequenceDropout, Zoneout
from rnnorm.kernels import dispatch
from rnnorm.layers.recurrent_dropout import draw_masks

LENGTHS = [4, 6, 2, 4]
T, B, D, H = 6, 4, 3, 5
SPECS = {
    "zoneout": Zoneout(cell=0.5, hidden=0.25),
    "cell": CellDropout(p=0.25),
    "cell-sequence": CellDropout(p=0.25, sampling="sequence"),
    "sequence": SequenceDropout(input=0.3, hidden=0.4),
}
KINDS = {
    "RNN": (rnnorm.RNN, {}),
    "LSTM": (rnnorm.LSTM, {}),
    "GRU": (rnnorm.GRU, {}),
    "GRU-before": (rnnorm.GRU, {"reset_after": False}),
    "GRU-both": (rnnorm.GRU, {"reset_after": "both"}),
}


def fits(name, label):
    return not (name == "RNN" and label.startswith("cell"))


CASES = [
    pytest.param(name, label, id=f"{name}-{label}")
    for name in KINDS
    for label in SPECS
    if fits(name, label)
]


def spec_for(name, label):
    spec = SPECS[label]
    return Zoneout(cell=0, hidden=0.25) if label == "zoneout" and name != "LSTM" else spec


def make(name, spec=None, **more):
    torch.manual_seed(0)
    cls, options = KINDS[name]
    options = {"dtype": torch.float64, "initial_noise": 0.0, **options, **more}
    return cls(D, H, recurrent_dropout=spec, **options)


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(T, B, D, dtype=torch.float64, requires_grad=True)


def drawn(spec):
    """The masks from the generator: hidden, candidate, input; what stays of c and h."""

    def bernoulli(p, steps, width):
        # 32 random bits each, two to a number
        count = steps * B * width
        bits = torch.randint(-(2**63), 2**63 - 1, ((count + 1) // 2,))
        uniform = bits.view(torch.int32)[:count].view(steps, B, width).double() / 2**32 + 0.5
        return (uniform < p).double().expand(T, B, width)

    masks = {}
    if isinstance(spec, Zoneout):
        for name, p in (("c", spec.cell), ("h", spec.hidden)):
            masks |= {name: bernoulli(p, T, H)} if p else {}
    elif isinstance(spec, CellDropout):
        steps = T if spec.sampling == "step" else 1
        masks["candidate"] = bernoulli(1 - spec.p, steps, H) / (1 - spec.p)
    else:
        for name, p, width in (("input", spec.input, D), ("hidden", spec.hidden, H)):
            masks[name] = bernoulli(1 - p, 1, width) / (1 - p)
    return masks


def definition(layer, x, masks, norm=lambda site, z: z):
    """Output ``(T, B, H)`` of one layer over a dense batch."""
    w_x, w_h, b_x, b_h = (layer.get_parameter(n) for n in layer._flat_weights_names[:4])
    ones, zeros = torch.ones(T, B, 1).double(), torch.zeros(T, B, 1).double()
    m = {"input": ones, "hidden": ones, "candidate": ones, "c": zeros, "h": zeros} | masks
    h = c = torch.zeros(x.size(1), H, dtype=torch.float64)
    outputs = []
    for t, frame in enumerate(x):
        seen = h * m["hidden"][t]
        from_x = norm("input", (frame * m["input"][t]) @ w_x.T) + b_x
        from_h = norm("recurrent", seen @ w_h.T) + b_h
        if layer.mode == "LSTM":
            i, f, g, o = (from_x + from_h).split(H, 1)
            new_c = f.sigmoid() * c + i.sigmoid() * g.tanh() * m["candidate"][t]
            new = o.sigmoid() * norm("cell", new_c).tanh()
            c = m["c"][t] * c + (1 - m["c"][t]) * new_c
        elif layer.mode == "GRU":
            (xr, xz, xn), (hr, hz, hn) = from_x.split(H, 1), from_h.split(H, 1)
            r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
            n = {
                True: xn + r * hn,
                False: xn + (r * seen) @ w_h[2 * H :].T + b_h[2 * H :],
                "both": r * (xn + hn),
            }[layer.cell.reset_after].tanh()
            new = (1 - z) * n * m["candidate"][t] + z * h
        else:
            new = (from_x + from_h).tanh()
        h = m["h"][t] * h + (1 - m["h"][t]) * new
        outputs.append(h)
    return torch.stack(outputs)


def same_with_gradients(layer, x, got, want):
    torch.testing.assert_close(got, want)
    wanted = [x, *layer.parameters()]
    weight = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).view(got.shape)
    mine, theirs = (torch.autograd.grad((y * weight).sum(), wanted) for y in (got, want))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_values_and_gradients_are_those_of_the_definition(name, label, x):
    spec = spec_for(name, label)
    layer = make(name, spec)
    torch.manual_seed(5)
    got, _ = layer(x, lengths=LENGTHS)
    torch.manual_seed(5)
    real = (torch.arange(T).unsqueeze(1) < torch.tensor(LENGTHS)).unsqueeze(2)
    same_with_gradients(layer, x, got, definition(layer, x, drawn(spec)) * real)


@pytest.mark.parametrize("label", SPECS)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_it_goes_with_a_norm(norm, label, x):
    spec = SPECS[label]
    layer = make("LSTM", spec, norm=norm)

    def normalise(site, z):
        gamma, axis = layer.get_parameter(f"gamma_{site}_l0"), 0 if norm == "batch" else 1
        var, mean = torch.var_mean(z, axis, correction=0, keepdim=True)
        shift = layer.beta_cell_l0 if site == "cell" else 0
        return (z - mean) / (var + layer.norm.eps).sqrt() * gamma + shift

    torch.manual_seed(5)
    got, _ = layer(x)
    torch.manual_seed(5)
    same_with_gradients(layer, x, got, definition(layer, x, drawn(spec), normalise))


@pytest.mark.parametrize(("name", "label"), CASES)
def test_packed_padded_and_batch_first_have_the_same_masks(name, label, x):
    options = {"num_layers": 2, "bidirectional": True}
    layer = make(name, spec_for(name, label), **options)
    first = make(name, spec_for(name, label), batch_first=True, **options)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    torch.manual_seed(5)
    want, _ = layer(x, lengths=LENGTHS)
    torch.manual_seed(5)
    assert torch.equal(pad_packed_sequence(layer(packed)[0])[0], want)
    torch.manual_seed(5)
    assert torch.equal(first(x.transpose(0, 1), lengths=LENGTHS)[0].transpose(0, 1), want)
    assert not torch.equal(layer(x, lengths=LENGTHS)[0], want)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_padding_is_nothing(name, label, x):
    layer = make(name, spec_for(name, label), norm="batch")
    real = (torch.arange(T).unsqueeze(1) < torch.tensor(LENGTHS)).unsqueeze(2)
    results = []
    for padding in (0.0, float("nan")):
        filled = x.detach().where(real, torch.tensor(padding, dtype=x.dtype)).requires_grad_()
        torch.manual_seed(5)
        output, _ = layer(filled, lengths=LENGTHS)
        gradients = torch.autograd.grad(output.square().sum(), [filled, *layer.parameters()])
        results.append((output, *gradients))
    for zero, nan in zip(*results, strict=True):
        assert torch.equal(zero, nan)


@pytest.mark.parametrize("label", SPECS)
def test_masks_have_their_rates(label):
    spec, x = SPECS[label], torch.zeros(40, 50, 60)
    state = (torch.zeros(50, 70), torch.zeros(50, 70))
    torch.manual_seed(0)
    layer = make("LSTM")
    masks = draw_masks(spec, True, layer.cell, x, state, 70, None)
    assert set(masks) == set(spec.rates())
    for place, p in spec.rates().items():
        mask = masks[place].numbers(torch.float64)
        whole = label in ("sequence", "cell-sequence")
        assert mask.shape == (1 if whole else 40, 50, 60 if place == "input" else 70)
        kept = 1 if label == "zoneout" else 1 / (1 - p)
        assert set(mask.unique().tolist()) == {0.0, kept}
        chance = p if label == "zoneout" else 1 - p
        share = (mask > 0).double().mean().item()
        assert abs(share - chance) < 4 * (chance * (1 - chance) / mask.numel()) ** 0.5


@pytest.mark.parametrize("label", SPECS)
def test_masks_do_not_depend_on_the_number_of_threads(label):
    spec, x = SPECS[label], torch.zeros(30, 50, 60)
    state = (torch.zeros(50, 70), torch.zeros(50, 70))
    layer, threads, results = make("LSTM"), torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            torch.manual_seed(3)
            results.append(draw_masks(spec, True, layer.cell, x, state, 70, None))
    finally:
        torch.set_num_threads(threads)
    for place in spec.rates():
        assert torch.equal(results[0][place].drawn, results[1][place].drawn)


@pytest.mark.parametrize("name", KINDS)
def test_zoneout_is_its_expectation_in_evaluation(name, x):
    spec = spec_for(name, "zoneout")
    layer = make(name, spec).eval()
    full = torch.ones(T, B, 1, dtype=torch.float64)
    masks = {"c": spec.cell * full, "h": spec.hidden * full}
    same_with_gradients(layer, x, layer(x)[0], definition(layer, x, masks))


@pytest.mark.parametrize(("name", "label"), [c for c in CASES if c.values[1] != "zoneout"])
def test_dropout_is_nothing_in_evaluation(name, label, x):
    layer, plain = make(name, spec_for(name, label)).eval(), make(name).eval()
    before = torch.get_rng_state()
    assert torch.equal(layer(x)[0], plain(x)[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_with_zoneout_equals_one_pass(name, x):
    layer = make(name, spec_for(name, "zoneout"), norm="layer", num_layers=2).eval()
    want, last = layer(x)
    first, state = layer(x[:2])
    second, state = layer(x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), want)
    torch.testing.assert_close(state, last)


class LiGRU(rnnorm.Cell):
    gates = (2,)
    dropouts = ("hidden", "zoneout_h")

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(torch.relu(n), h, torch.sigmoid(z))
        return h, (h,)


class Silent(LiGRU):
    dropouts = ()


EVERY = {
    "RNN": lambda **k: rnnorm.RNN(D, 8, **k),
    "LSTM": lambda **k: rnnorm.LSTM(D, 8, proj_size=3, peephole="all", **k),
    "GRU": lambda **k: rnnorm.GRU(D, 8, **k),
    "GRU-before": lambda **k: rnnorm.GRU(D, 8, reset_after=False, **k),
    "GRU-both": lambda **k: rnnorm.GRU(D, 8, reset_after="both", **k),
    "Clockwork": lambda **k: rnnorm.ClockworkRNN(D, 8, **k),
    "HMLSTM": lambda **k: rnnorm.HMLSTM(D, 8, **k),
    "LiGRU": lambda **k: rnnorm.Recurrent(LiGRU(), D, 8, **k),
}


@pytest.mark.parametrize("name", EVERY)
def test_no_recurrent_product_of_any_cell_sees_what_is_dropped(name, x):
    layer = EVERY[name](dtype=torch.float64, recurrent_dropout=SequenceDropout(hidden=1 - 1e-9))
    plain = EVERY[name](dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for parameter_name, parameter in plain.named_parameters():
            if parameter_name.startswith(("weight_hh", "weight_ah")):
                parameter.zero_()
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


@pytest.mark.parametrize("name", ["RNN", "GRU", "Clockwork", "LiGRU"])
def test_zoneout_of_nearly_all_units_stands_still(name, x):
    layer = EVERY[name](dtype=torch.float64, recurrent_dropout=Zoneout(cell=0, hidden=1 - 1e-12))
    h_0 = torch.randn(1, B, 8, dtype=torch.float64)
    output, h_n = layer(x, h_0)
    assert torch.equal(output, h_0.expand(T, B, 8))
    assert torch.equal(h_n, h_0)


def test_gradients_are_right(x):
    layer = make("LSTM", Zoneout(cell=0.5, hidden=0.5), norm="layer")

    def run(x):
        torch.manual_seed(5)
        return layer(x)[0]

    small = x.detach()[:3, :2].requires_grad_()
    torch.autograd.gradcheck(run, small)
    torch.autograd.gradgradcheck(run, small)


def test_update_bn_takes_statistics_without_masks(x):
    layer = make("LSTM", SPECS["zoneout"], norm="batch")
    loader = [x.detach(), x.detach() + 1]
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        rnnorm.update_bn(loader, layer)
        found.append({name: b.clone() for name, b in layer.named_buffers()})
    assert all(torch.equal(b, found[1][name]) for name, b in found[0].items())
    assert not torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.skipif(bool(rnnorm.backends()["cpu"]), reason="no CPU kernel here")
@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize(
    ("name", "label"), [c for c in CASES if not c.values[0].startswith("GRU-")]
)
def test_the_fused_kernels_have_the_masks_of_the_reference(name, label, norm, x):
    options = {"num_layers": 2, "bidirectional": True, "norm": norm}
    layer = make(name, spec_for(name, label), **options)
    before = dispatch.calls["cpu"]
    for training in (True, False):
        layer.train(training)
        results = []
        for backend in (None, "reference"):
            torch.manual_seed(5)
            with rnnorm.use_backend(backend) if backend else nullcontext():
                results.append(layer(x, lengths=LENGTHS)[0])
        torch.testing.assert_close(*results)
    assert dispatch.calls["cpu"] == before + 2


def test_torchs_own_operators_say_that_they_have_no_masks(x):
    layer = make("LSTM", Zoneout(), norm="batch")
    with rnnorm.use_backend("aten"), pytest.raises(RuntimeError, match="no normalised"):
        layer(x)
    with (
        rnnorm.use_backend("aten"),
        pytest.raises(RuntimeError, match=r"torch\.nn has no recurrent dropout"),
    ):
        make("LSTM", Zoneout())(x)


def test_probabilities_of_zero_are_torchs_own(x):
    layer, plain = make("LSTM", Zoneout(cell=0, hidden=0)), torch.nn.LSTM(D, H).double()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x)[0], plain(x)[0])


def test_autocast_and_no_rows(x):
    layer = rnnorm.LSTM(D, H, recurrent_dropout=Zoneout(), norm="batch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x.detach().float())
    assert output.isfinite().all()
    gru = make("GRU", SPECS["sequence"])
    assert gru(x[:, :0])[0].shape == (T, 0, H)


def test_a_layer_keeps_its_spec(x):
    layer = make("LSTM", SPECS["zoneout"])
    assert "recurrent_dropout=Zoneout(cell=0.5, hidden=0.25)" in repr(layer)
    assert "recurrent_dropout" not in repr(make("LSTM"))
    want = None
    for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.manual_seed(5)
        output, _ = twin(x)
        assert want is None or torch.equal(output, want)
        want = output


@pytest.mark.parametrize("bad", [-0.1, 1, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("kind", "field"), [(Zoneout, "cell"), (CellDropout, "p"), (SequenceDropout, "hidden")]
)
def test_a_probability_lies_in_0_to_1(kind, field, bad):
    with pytest.raises(ValueError, match=f"{kind.__name__}.{field} must be"):
        kind(**{field: bad})


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (TypeError, "p must be a number, got '1'", lambda: CellDropout(p="1")),
        (TypeError, "Zoneout has no 'c', it has cell, hidden", lambda: Zoneout(c=0.5)),
        (
            ValueError,
            "must be 'step' or 'sequence', got 'row'",
            lambda: CellDropout(sampling="row"),
        ),
        (TypeError, "a CellDropout or a SequenceDropout, got 0.5", lambda: make("LSTM", 0.5)),
        (
            ValueError,
            r"Zoneout.cell must be 0 for RNN_TANH, which takes Zoneout\(cell=0, hidden=…\) and "
            r"SequenceDropout\(input=…, hidden=…\), got 0.5",
            lambda: make("RNN", Zoneout()),
        ),
        (ValueError, "CellDropout.p must be 0 for RNN_TANH", lambda: make("RNN", CellDropout())),
        (ValueError, "Zoneout.cell must be 0 for GRU", lambda: make("GRU", Zoneout())),
        (
            ValueError,
            r"must be 0 for HMLSTM, which takes SequenceDropout\(input=…, hidden=…\)",
            lambda: EVERY["HMLSTM"](recurrent_dropout=Zoneout()),
        ),
        (
            ValueError,
            r"SequenceDropout.hidden must be 0 for Silent, which takes SequenceDropout\(input=…\)",
            lambda: rnnorm.Recurrent(Silent(), 3, 4, recurrent_dropout=SPECS["sequence"]),
        ),
    ],
)
def test_what_does_not_fit_is_an_error(error, match, call):
    with pytest.raises(error, match=match):
        call()
