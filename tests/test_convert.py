"""Layers from other libraries' weights, against few-line definitions of the originals."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm

import rnnorm
from rnnorm import convert

T, B, I, H = 5, 3, 3, 4  # noqa: E741


def draw(seed=0, **shapes):
    """Tensors by name, where two underscores are a dot."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name.replace("__", "."): torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def ln(z, scale, shift=None, eps=1e-5, over=None):
    """Layer norm of each row over blocks of ``over`` columns."""
    width = z.shape[-1] if over is None else over
    parts = [layer_norm(part, part.shape[-1:], eps=eps) for part in z.split(width, -1)]
    z = scale * torch.cat(parts, -1)
    return z if shift is None else z + shift


def unroll(step, x, *state):
    outputs = []
    for frame in x:
        state = step(frame, *state)
        outputs.append(state[0])
    return torch.stack(outputs)


def zeros(n=1):
    return [torch.zeros(B, H, dtype=torch.float64) for _ in range(n)]


def lstm_step(i, f, g, o, c, carry=lambda c: c, out=lambda c: c):
    c = carry(f.sigmoid() * c + i.sigmoid() * g.tanh())
    return o.sigmoid() * out(c).tanh(), c


def haste_lstm(w, x):
    def step(frame, h, c):
        z = ln(frame @ w["kernel"], w["gamma"][0]) + w["bias"]
        z = z + ln(h @ w["recurrent_kernel"], w["gamma"][1])
        i, g, f, o = z.chunk(4, 1)
        return lstm_step(i, f, g, o, c, out=lambda c: ln(c, w["gamma_h"], w["beta_h"]))

    return unroll(step, x, *zeros(2))


def haste_gru(w, x):
    def step(frame, h):
        z = ln(frame @ w["kernel"], w["gamma"][0]) + w["bias"]
        y = ln(h @ w["recurrent_kernel"], w["gamma"][1]) + w["recurrent_bias"]
        (xz, xr, xg), (hz, hr, hg) = z.chunk(3, 1), y.chunk(3, 1)
        keep, reset = (xz + hz).sigmoid(), (xr + hr).sigmoid()
        return (keep * h + (1 - keep) * (xg + reset * hg).tanh(),)

    return unroll(step, x, *zeros())


def haste_indrnn(w, x):
    def step(frame, h):
        z = ln(frame @ w["kernel"], w["gamma"][0]) + w["bias"]
        return ((z + w["recurrent_scale"] * h).tanh(),)

    return unroll(step, x, *zeros())


def haste_plain_lstm(w, x):
    def step(frame, h, c):
        z = frame @ w["kernel"] + h @ w["recurrent_kernel"] + w["bias"]
        i, g, f, o = z.chunk(4, 1)
        return lstm_step(i, f, g, o, c)

    return unroll(step, x, *zeros(2))


def torchaudio(w, x, eps=1e-5):
    def step(frame, h, c):
        z = frame @ w["x2g.weight"].T + h @ w["p2g.weight"].T
        if "x2g.bias" in w:
            return lstm_step(*(z + w["x2g.bias"]).chunk(4, 1), c)
        i, f, g, o = ln(z, w["g_norm.weight"], w["g_norm.bias"], eps).chunk(4, 1)
        return lstm_step(i, f, g, o, c, lambda c: ln(c, w["c_norm.weight"], w["c_norm.bias"], eps))

    return unroll(step, x, *zeros(2))


def fastrnns(w, x):
    def norm(k, z):
        return ln(z, w[f"layernorm_{k}.weight"], w[f"layernorm_{k}.bias"])

    def step(frame, h, c):
        z = norm("i", frame @ w["weight_ih"].T) + norm("h", h @ w["weight_hh"].T)
        return lstm_step(*z.chunk(4, 1), c, lambda c: norm("c", c))

    return unroll(step, x, *zeros(2))


def tf_addons(w, x):
    def norm(k, z):
        return ln(z, w[f"{k}_norm.gamma"], w[f"{k}_norm.beta"], 1e-3)

    def step(frame, h, c):
        z = norm("kernel", frame @ w["kernel"]) + norm("recurrent", h @ w["recurrent_kernel"])
        return lstm_step(*(z + w["bias"]).chunk(4, 1), c, lambda c: norm("state", c))

    return unroll(step, x, *zeros(2))


def layer_norm_basic(w, x):
    def norm(k, z):
        return ln(z, w[f"{k}.gamma"], w[f"{k}.beta"], 1e-12)

    def step(frame, h, c):
        i, j, f, o = (torch.cat([frame, h], 1) @ w["kernel"]).chunk(4, 1)
        i, j, f, o = norm("input", i), norm("transform", j), norm("forget", f), norm("output", o)
        return lstm_step(i, f + 1, j, o, c, lambda c: norm("state", c))

    return unroll(step, x, *zeros(2))


def sketch_rnn(w, x):
    def step(frame, h, c):
        z = frame @ w["W_xh"] + h @ w["W_hh"]
        z = ln(z, w["ln_all.ln_gamma"], w["ln_all.ln_beta"], 1e-3, over=H)
        i, j, f, o = z.chunk(4, 1)
        norm = (w["ln_c.ln_gamma"], w["ln_c.ln_beta"], 1e-3)
        return lstm_step(i, f + 1, j, o, c, out=lambda c: ln(c, *norm))

    return unroll(step, x, *zeros(2))


def dreamer(linear, norm, h_first, update_bias=-1.0):
    def run(w, x):
        def step(frame, h):
            joined = torch.cat([h, frame] if h_first else [frame, h], 1)
            z = joined @ w[f"{linear}.weight"].T + w.get(f"{linear}.bias", 0.0)
            if f"{norm}.weight" in w:
                z = ln(z, w[f"{norm}.weight"], w[f"{norm}.bias"], 1e-3)
            reset, candidate, update = z.chunk(3, 1)
            candidate = (reset.sigmoid() * candidate).tanh()
            update = (update + update_bias).sigmoid()
            return (update * candidate + (1 - update) * h,)

        return unroll(step, x, *zeros())

    return run


def ligru(w, x, recurrent=lambda z: z):
    z = x @ w["w.weight"].T
    if "norm.running_mean" in w:
        mean, var = z.mean((0, 1)), z.var((0, 1), unbiased=False)
        z = w["norm.weight"] * (z - mean) / (var + 1e-5).sqrt() + w["norm.bias"]
    else:
        z = ln(z, w["norm.weight"], w["norm.bias"])

    def step(term, h):
        candidate, keep = (term + recurrent(h @ w["u.weight"].T)).chunk(2, 1)
        keep = keep.sigmoid()
        return (keep * h + (1 - keep) * candidate.relu(),)

    return unroll(step, z, *zeros())


def torch_weights(cls, **options):
    torch.manual_seed(0)
    return dict(cls(I, H, dtype=torch.float64, **options).state_dict())


G3, G4 = 3 * H, 4 * H
PAIR = {"gamma": (2, G4), "gamma_h": (H,), "beta_h": (H,)}
KERNELS = {"kernel": (I, G4), "recurrent_kernel": (H, G4), "bias": (G4,)}
BATCH = {f"norm__{name}": (2 * H,) for name in ("weight", "bias", "running_mean", "running_var")}


def of(*names, **widths):
    """Shapes of vectors of these names in each module."""
    return {f"{k}__{v}": (w,) for k, w in widths.items() for v in names}


JOINT = of("weight", "bias", g_norm=G4, c_norm=H)


CASES = {
    "haste LSTM": (convert.haste, haste_lstm, draw(**KERNELS, **PAIR)),
    "haste GRU": (
        convert.haste,
        haste_gru,
        draw(
            kernel=(I, G3),
            recurrent_kernel=(H, G3),
            bias=(G3,),
            recurrent_bias=(G3,),
            gamma=(2, G3),
        ),
    ),
    "haste IndRNN": (
        convert.haste,
        haste_indrnn,
        draw(kernel=(I, H), recurrent_scale=(H,), bias=(H,), gamma=(2, H)),
    ),
    "haste without norm": (convert.haste, haste_plain_lstm, draw(**KERNELS)),
    "torchaudio": (
        convert.torchaudio_rnnt,
        torchaudio,
        draw(x2g__weight=(G4, I), p2g__weight=(G4, H), **JOINT),
    ),
    "torchaudio without norm": (
        convert.torchaudio_rnnt,
        torchaudio,
        draw(x2g__weight=(G4, I), p2g__weight=(G4, H), x2g__bias=(G4,)),
    ),
    "fastrnns": (
        convert.fastrnns,
        fastrnns,
        draw(
            weight_ih=(G4, I),
            weight_hh=(G4, H),
            **of("weight", "bias", layernorm_i=G4, layernorm_h=G4, layernorm_c=H),
        ),
    ),
    "tf-addons": (
        convert.tf_addons,
        tf_addons,
        draw(**KERNELS, **of("gamma", "beta", kernel_norm=G4, recurrent_norm=G4, state_norm=H)),
    ),
    "layer-norm-basic": (
        convert.layer_norm_basic,
        layer_norm_basic,
        draw(
            kernel=(I + H, G4),
            **of("gamma", "beta", input=H, transform=H, forget=H, output=H, state=H),
        ),
    ),
    "sketch-rnn": (
        convert.sketch_rnn,
        sketch_rnn,
        draw(W_xh=(I, G4), W_hh=(H, G4), **of("ln_gamma", "ln_beta", ln_all=G4, ln_c=H)),
    ),
    "dreamerv3-torch": (
        convert.dreamer,
        dreamer("layers.GRU_linear", "layers.GRU_norm", False),
        draw(
            layers__GRU_linear__weight=(G3, I + H),
            layers__GRU_norm__weight=(G3,),
            layers__GRU_norm__bias=(G3,),
        ),
    ),
    "dreamerv3-torch, older": (
        convert.dreamer,
        dreamer("_layer", "_norm", False),
        {
            name.replace("own", ""): value
            for name, value in draw(
                own_layer__weight=(G3, I + H), own_norm__weight=(G3,), own_norm__bias=(G3,)
            ).items()
        },
    ),
    "dreamer without norm": (
        convert.dreamer,
        dreamer("layers.GRU_linear", "layers.GRU_norm", False),
        draw(layers__GRU_linear__weight=(G3, I + H)),
    ),
    "sheeprl": (
        convert.dreamer,
        dreamer("linear", "layer_norm", True),
        draw(linear__weight=(G3, I + H), layer_norm__weight=(G3,), layer_norm__bias=(G3,)),
    ),
    "sheeprl without norm": (
        convert.dreamer,
        dreamer("linear", "layer_norm", True),
        draw(linear__weight=(G3, I + H), linear__bias=(G3,)),
    ),
    "speechbrain": (
        convert.speechbrain_ligru,
        ligru,
        draw(w__weight=(2 * H, I), u__weight=(2 * H, H), **BATCH)
        | {"norm.num_batches_tracked": torch.tensor(7), "h_init": torch.zeros(1, H)},
    ),
    "speechbrain SLiGRU": (
        convert.speechbrain_sligru,
        lambda w, x: ligru(w, x, lambda z: ln(z, torch.ones(2 * H))),
        draw(w__weight=(2 * H, I), u__weight=(2 * H, H), **BATCH)
        | {"norm.num_batches_tracked": torch.tensor(0)},
    ),
    "speechbrain SLiGRU, affine": (
        convert.speechbrain_sligru,
        lambda w, x: ligru(w, x, lambda z: ln(z, w["layer_norm.weight"], w["layer_norm.bias"])),
        draw(
            w__weight=(2 * H, I),
            u__weight=(2 * H, H),
            layer_norm__weight=(2 * H,),
            layer_norm__bias=(2 * H,),
            **BATCH,
        )
        | {"norm.num_batches_tracked": torch.tensor(0)},
    ),
    "speechbrain, layer norm": (
        convert.speechbrain_ligru,
        ligru,
        draw(
            w__weight=(2 * H, I), u__weight=(2 * H, H), norm__weight=(2 * H,), norm__bias=(2 * H,)
        ),
    ),
}


def given_to(case):
    """The names of a converter's arguments."""
    return inspect.signature(case[0]).parameters


@pytest.mark.parametrize("name", CASES)
def test_a_converted_layer_computes_the_originals_equations(name):
    function, original, weights = CASES[name]
    layer = function(weights)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    want, (got, _) = original(weights, x), layer(x)
    torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    cotangent = torch.randn_like(want)
    wanted, found = (torch.autograd.grad((y * cotangent).sum(), x)[0] for y in (want, got))
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)
    before = {key: value.clone() for key, value in weights.items()}
    torch.nn.init.zeros_(layer.weight_ih_l0)
    assert all(torch.equal(value, before[key]) for key, value in weights.items())


TORCH = {
    "RNN": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
    "LSTM": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "LSTM projected": (nn.LSTM, {"proj_size": 2, "bias": False}),
    "GRU": (nn.GRU, {"num_layers": 3, "batch_first": True}),
}


@pytest.mark.parametrize("name", TORCH)
def test_a_layer_of_torch_stays_what_it_is(name):
    cls, options = TORCH[name]
    theirs = cls(I, H, **options)
    given = {k: v for k, v in options.items() if k in ("nonlinearity", "batch_first")}
    state = {f"model.3.rnn.{key}": value for key, value in theirs.state_dict().items()}
    mine = convert.torch_nn(state, **given)
    assert isinstance(mine, getattr(rnnorm, cls.__name__))
    assert repr(mine) == repr(theirs)
    assert all(torch.equal(p, theirs.get_parameter(n)) for n, p in mine.named_parameters())


def test_a_cell_of_torch_becomes_a_layer():
    theirs = nn.LSTMCell(I, H)
    mine = convert.torch_nn(theirs.state_dict())
    x = torch.randn(1, B, I)
    torch.testing.assert_close(mine(x)[0][0], theirs(x[0])[0])


def test_numbered_cells_of_torch_become_a_stack():
    cells = nn.ModuleList([nn.GRUCell(I, H), nn.GRUCell(H, H)])
    mine = convert.torch_nn(cells.state_dict())
    assert mine.num_layers == 2
    x = torch.randn(1, B, I)
    torch.testing.assert_close(mine(x)[0][0], cells[1](cells[0](x[0])))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "eps" in given_to(case)])
def test_every_norm_has_the_epsilon_that_is_given(name):
    function, _, weights = CASES[name]
    layer = function(weights, eps=0.25)
    norms = layer.cell.norms(layer.norm).values()
    assert {norm.eps for norm in norms} == (set() if layer.norm is None else {0.25})


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if "forget_bias" in given_to(case)]
)
def test_a_forget_bias_that_is_given_takes_the_place_of_1(name):
    function, _, weights = CASES[name]
    usual, other = function(weights).bias_ih_l0, function(weights, forget_bias=-0.5).bias_ih_l0
    change = torch.tensor([0.0, -1.5, 0.0, 0.0], dtype=usual.dtype).repeat_interleave(H)
    torch.testing.assert_close(other - usual, change)


def test_an_update_bias_that_is_given_takes_the_place_of_minus_1():
    function, _, weights = CASES["sheeprl"]
    x = torch.randn(T, B, I, dtype=torch.float64)
    want = dreamer("linear", "layer_norm", h_first=True, update_bias=2.0)(weights, x)
    torch.testing.assert_close(function(weights, update_bias=2.0)(x)[0], want)


def test_numbered_layers_become_a_stack():
    own = CASES["torchaudio"][2]
    second = draw(1, x2g__weight=(G4, H), p2g__weight=(G4, H), **JOINT)
    state = {f"predictor.lstm_layers.0.{name}": value for name, value in own.items()}
    state |= {f"predictor.lstm_layers.1.{name}": value for name, value in second.items()}
    layer = convert.torchaudio_rnnt(state, batch_first=True, eps=1e-3)
    x = torch.randn(T, B, I, dtype=torch.float64)
    want = torchaudio(second, torchaudio(own, x, 1e-3), 1e-3)
    torch.testing.assert_close(layer(x.transpose(0, 1))[0].transpose(0, 1), want)
    # a layer from the middle is one layer
    middle = {name: value for name, value in state.items() if ".1." in name}
    assert convert.torchaudio_rnnt(middle).num_layers == 1


def test_directions_are_those_of_fastrnns():
    forward = CASES["fastrnns"][2]
    backward = {name: value.flip(0) for name, value in forward.items()}
    state = {f"layers.0.directions.0.cell.{name}": value for name, value in forward.items()}
    state |= {f"layers.0.directions.1.cell.{name}": value for name, value in backward.items()}
    x = torch.randn(T, B, I, dtype=torch.float64)
    want = torch.cat([fastrnns(forward, x), fastrnns(backward, x.flip(0)).flip(0)], -1)
    torch.testing.assert_close(convert.fastrnns(state)(x)[0], want)


@pytest.mark.parametrize("case", CASES)
def test_names_and_arrays_of_tensorflow_are_read(case):
    function, original, weights = CASES[case]
    state = {
        f"rnn/cell/{name.replace('.', '/')}:0": np.asarray(value) for name, value in weights.items()
    }
    x = torch.randn(T, B, I, dtype=torch.float64)
    torch.testing.assert_close(function(state)(x)[0], original(weights, x))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_statistics_of_speechbrain_serve_in_evaluation(bidirectional):
    weights = dict(CASES["speechbrain"][2])
    weights["norm.running_var"] = weights["norm.running_var"].abs() + 0.5
    layer = convert.speechbrain_ligru(weights, bidirectional=bidirectional).eval()
    norm = nn.BatchNorm1d(2 * H, dtype=torch.float64).eval()
    norm.load_state_dict({k[5:]: v for k, v in weights.items() if k.startswith("norm.")})
    x = torch.randn(T, B, I, dtype=torch.float64)

    def run(x):
        z = norm((x @ weights["w.weight"].T).flatten(0, 1)).unflatten(0, (T, B))

        def step(term, h):
            candidate, keep = (term + h @ weights["u.weight"].T).chunk(2, 1)
            return (keep.sigmoid() * h + (1 - keep.sigmoid()) * candidate.relu(),)

        return unroll(step, z, *zeros())

    want = torch.cat([run(x), run(x.flip(0)).flip(0)], -1) if bidirectional else run(x)
    torch.testing.assert_close(layer(x)[0], want, atol=1e-10, rtol=1e-10)


def test_hastes_zoneout_is_of_h_alone():
    layer = convert.haste(CASES["haste LSTM"][2], zoneout=0.2)
    assert layer.recurrent_dropout == rnnorm.Zoneout(cell=0.0, hidden=0.2)


def without(name):
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w | {"embedding.weight": torch.zeros(2, 2)}, "got 'embedding.weight'"),
        (without("p2g.weight"), "must have p2g.weight of layer 0"),
        (lambda w: w | {"other.x2g.weight": w["x2g.weight"]}, "got 'other.x2g.weight' too"),
        (
            lambda w: w | {"c_norm.bias": torch.zeros(7)},
            r"beta_carry of layer 0 must have shape \(4,\)",
        ),
        (lambda w: {}, "must have x2g.weight of layer 0"),
        (lambda w: w | {f"2.{k}": v for k, v in w.items()}, "must have x2g.weight of layer 1"),
    ],
)
def test_weights_that_are_no_layers_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        convert.torchaudio_rnnt(change(CASES["torchaudio"][2]))


@pytest.mark.parametrize("name", CASES)
def test_each_missing_weight_is_refused(name):
    function, _, weights = CASES[name]
    # what another layer of the same library lacks
    alone = {
        "haste GRU": "gamma",
        "haste IndRNN": "gamma",
        "tf-addons": "bias",
        "sheeprl without norm": "linear.bias",
        "torchaudio without norm": "x2g.bias",
    }.get(name)
    for key in weights.keys() - {alone, "h_init"}:
        with pytest.raises(ValueError, match="state_dict must have"):
            function(without(key)(weights))


def test_one_of_torchs_two_biases_is_refused():
    weights = nn.LSTM(3, 4).state_dict()
    with pytest.raises(ValueError, match="must have bias_ih of layer 0"):
        convert.torch_nn(without("bias_ih_l0")(weights))


def test_a_norm_is_not_one_of_torchs():
    with pytest.raises(ValueError, match=r"norm must be None, .*load_state_dict"):
        convert.torch_nn(nn.LSTM(3, 4).state_dict(), norm="layer")


@pytest.mark.parametrize(
    ("case", "option", "told"),
    [
        ("fastrnns", {"norm": "layer"}, r"norm must .*'layer': .* LayerNorm\("),
        ("haste without norm", {"norm": "haste"}, "'haste': the weights tell that it is None"),
        ("haste IndRNN", {"nonlinearity": "relu"}, "'relu': the weights tell that it is 'tanh'"),
        ("sheeprl", {"reset_after": False}, "False: the weights tell that it is 'both'"),
        ("speechbrain", {"dtype": torch.float32}, "the weights tell that it is torch.float64"),
        ("torchaudio", {"num_layers": 2}, "num_layers must be left out, got 2: .* is 1"),
        ("tf-addons", {"hidden_size": 8}, "hidden_size must be left out, got 8: .* is 4"),
    ],
)
def test_an_option_that_the_weights_tell_is_refused(case, option, told):
    function, _, weights = CASES[case]
    with pytest.raises(TypeError, match=told):
        function(weights, **option)
    assert function(weights, hidden_size=H).hidden_size == H


@pytest.mark.parametrize("theirs", [nn.GRU(3, 4), nn.LSTM(3, 4), nn.LSTM(3, 4, proj_size=2)])
def test_a_nonlinearity_of_gates_is_refused(theirs):
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' for weights that are not"):
        convert.torch_nn(theirs.state_dict(), nonlinearity="relu")


@pytest.mark.parametrize(
    ("case", "bias", "size"), [("sheeprl", "linear.bias", G3), ("torchaudio", "x2g.bias", G4)]
)
def test_a_bias_within_the_norm_is_refused(case, bias, size):
    function, _, weights = CASES[case]
    with pytest.raises(ValueError, match=f"no {bias} where there is a norm"):
        function(weights | {bias: torch.zeros(size)})


@pytest.mark.parametrize("function", [getattr(convert, name) for name in convert.__all__])
@pytest.mark.parametrize("given", [nn.LSTM(3, 4), None, [1], "a.pt", {0: torch.zeros(2)}])
def test_what_has_no_weights_by_name_is_refused(function, given):
    said = rf"state_dict must have weights by name, .* got {type(given).__name__}"
    with pytest.raises(TypeError, match=said):
        function(given)


@pytest.mark.parametrize(("given", "error"), [(None, TypeError), (torch.nan, ValueError)])
def test_an_update_bias_that_is_no_number_is_refused(given, error):
    function, _, weights = CASES["sheeprl"]
    with pytest.raises(error, match=f"update_bias must be .*, got {given}"):
        function(weights, update_bias=given)


def test_an_error_names_what_is_not_a_matrix_or_an_array():
    weights = nn.LSTM(3, 4).state_dict()
    with pytest.raises(TypeError, match="weight_hh of layer 0 must be a tensor or an array"):
        convert.torch_nn({**weights, "weight_hh_l0": None})
    with pytest.raises(
        ValueError, match=r"weight_hh of layer 0 must be a matrix, got the shape \(4,\)"
    ):
        convert.torch_nn({**weights, "weight_hh_l0": torch.zeros(4)})


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
@pytest.mark.parametrize(("case", "key"), [("tf-addons", "kernel"), ("haste LSTM", "bias")])
def test_weights_that_are_not_floating_point_are_refused(case, key, dtype):
    function, _, weights = CASES[case]
    said = f"{key} of layer 0 must have floating point numbers, got {dtype}"
    with pytest.raises(TypeError, match=said):
        function({**weights, key: weights[key].to(dtype)})


@pytest.mark.parametrize("name", ["haste LSTM", "haste GRU", "sketch-rnn"])
def test_matrices_of_the_other_order_are_refused(name):
    function, _, weights = CASES[name]
    with pytest.raises(ValueError, match=r"must have \d gates|must have shape"):
        function({key: value.t() for key, value in weights.items()})


RESHAPED = {
    "no dimensions": lambda value: torch.tensor(1.0),
    "a dimension more": lambda value: value.unsqueeze(0),
    "one row": lambda value: value[:1],
    "a row more": lambda value: torch.cat((value, value[:1])),
    "one column": lambda value: value[..., :1],
}


@pytest.mark.parametrize("change", RESHAPED.values(), ids=RESHAPED)
@pytest.mark.parametrize("name", CASES)
def test_a_weight_of_another_shape_is_refused(name, change):
    function, _, weights = CASES[name]
    for key, value in weights.items():
        # a count has one number, and the state is not read
        if not value.dim() or key == "h_init":
            continue
        reshaped = change(value)
        try:
            layer = function({**weights, key: reshaped})
        except ValueError:
            continue
        # a matrix of another number of inputs is one, too
        assert layer.input_size != function(weights).input_size, key


# what belongs together, in which a weight may be missing
TOGETHER = {
    "haste LSTM": ["gamma", "gamma_h", "beta_h"],
    "torchaudio": ["g_norm.weight", "g_norm.bias", "c_norm.weight", "c_norm.bias"],
    "sheeprl": ["layer_norm.weight", "layer_norm.bias"],
    "speechbrain": ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"],
    "speechbrain, layer norm": ["norm.weight", "norm.bias"],
    "speechbrain SLiGRU, affine": ["layer_norm.weight", "layer_norm.bias"],
}


@pytest.mark.parametrize(("case", "name"), [(c, name) for c in TOGETHER for name in TOGETHER[c]])
def test_a_part_of_a_norm_is_refused(case, name):
    function, _, weights = CASES[case]
    with pytest.raises(ValueError, match=f"state_dict must have {name} of layer 0"):
        function(without(name)(weights))


def test_one_of_two_biases_is_refused():
    weights = nn.LSTM(3, 4, num_layers=2).state_dict()
    with pytest.raises(ValueError, match="must have bias_hh of layer 1"):
        convert.torch_nn(without("bias_hh_l1")(weights))


def test_a_second_layer_of_torchs_is_refused_by_its_own_name():
    model = nn.ModuleDict({"encoder": nn.LSTM(3, 4), "decoder": nn.LSTM(3, 4)})
    said = r"must have one weight_ih for each layer, got 'decoder\.weight_ih_l0' too"
    with pytest.raises(ValueError, match=said):
        convert.torch_nn(model.state_dict())


@pytest.mark.parametrize("key", ["weight", "rnn.weight_ih_l", "weight_ih_l0_raw"])
def test_other_names_are_not_torchs(key):
    with pytest.raises(ValueError, match=r"torch\.nn's layer, got"):
        convert.torch_nn({key: torch.zeros(4, 4)})


def test_an_error_for_a_missing_weight_names_what_its_layer_has():
    weights = nn.LSTM(3, 4, num_layers=2).state_dict()
    del weights["weight_hh_l1"]
    said = "must have weight_hh of layer 1, got weight_ih, bias_ih, bias_hh$"
    with pytest.raises(ValueError, match=said):
        convert.torch_nn(weights)


NAMES = {
    "haste LSTM": "haste",
    "haste GRU": "haste",
    "torchaudio": "torchaudio-rnnt",
    "fastrnns": "fastrnns",
    "tf-addons": "tf-addons",
    "layer-norm-basic": "layer-norm-basic",
    "sketch-rnn": "sketch-rnn",
    "sheeprl": "dreamer",
    "speechbrain": "ligru",
    "speechbrain SLiGRU": "sligru",
}


@pytest.mark.parametrize("case", NAMES)
def test_the_norm_of_a_source_has_a_name(case):
    function, _, weights = CASES[case]
    assert function(weights).norm == rnnorm.LSTM(3, 4, norm=NAMES[case]).norm
