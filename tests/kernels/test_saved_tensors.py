"""What a kernel is given where hooks, ``.data`` or a caller of its operators came between."""

import io

import pytest
import torch
from problems import Problem
from test_cpu_operators import captured_calls
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import rnnorm
from rnnorm.kernels.cpu import backward, forward
from rnnorm.kernels.inputs import RESULTS, Inputs

pytestmark = pytest.mark.skipif(
    bool(rnnorm.backends()["cpu"]), reason="the CPU kernels are not built"
)


def floating(change):
    return lambda t: change(t) if t.is_floating_point() else t


def integral(change):
    return lambda t: t if t.is_floating_point() else change(t)


# the tensor that is named, and a hook
WRONG = {
    "half": ("x", floating(torch.Tensor.half)),
    "bfloat16": ("x", floating(torch.Tensor.bfloat16)),
    "float": ("x", floating(torch.Tensor.float)),
    "complex": ("x", floating(lambda t: t.to(torch.cfloat))),
    "meta": ("x", lambda t: t.to("meta")),
    "sparse": ("x", floating(torch.Tensor.to_sparse)),
    "a step less": ("x", lambda t: t[:-1] if t.dim() > 2 else t),
    "a dimension more": ("x", lambda t: t.unsqueeze(0)),
    "no elements": ("x", lambda t: t.new_empty(0)),
    "a matrix turned": ("weight_ih", lambda t: t.t() if t.shape == (20, 3) else t),
    "a short matrix": ("weight_hh", lambda t: t[:4] if t.shape == (20, 5) else t),
    # a short call keeps one tensor, and others some of as many frames as there are
    "what was kept, cut": (
        "(saved_.|reserve)",
        lambda t: t[:-1] if len(t) == 24 or (t.dim() == 1 and len(t) > 99) else t,
    ),
    "int32 sizes": ("sizes", integral(torch.Tensor.int)),
    "fewer sizes": ("sizes", integral(lambda t: t[:2])),
    "sizes times 8": ("sizes", integral(lambda t: t * 8)),
    "other sizes": ("sizes", integral(lambda t: torch.tensor([6, 5, 5, 5]))),
    "negative sizes": ("sizes", integral(torch.neg)),
}


@pytest.mark.parametrize("states", [False, True], ids=("short", "with states"))
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_hook_returns_in_another_form_is_named(wrong, norm, cell, states):
    name, unpack = WRONG[wrong]
    if cell != "LSTM" and "matrix" in wrong:
        pytest.skip("its matrices have other shapes")
    if not states and "sizes" in wrong:
        pytest.skip("a short call keeps no sizes")
    layer = getattr(rnnorm, cell)(3, 5, norm=norm, dtype=torch.float64)
    with saved_tensors_hooks(lambda t: t, unpack):
        x = torch.randn(4, 6, 3, dtype=torch.float64)
        output, *_ = layer(x, return_states=states)
    with pytest.raises(RuntimeError, match=rf"^{name} w.*a hook on saved tensors returned it"):
        output.sum().backward()


class Own(torch.Tensor):
    pass


def through_a_file(t):
    file = io.BytesIO()
    torch.save(t, file)
    return file.getvalue()


# forms in which a tensor holds the same numbers
SAME = {
    "wider, and back": (lambda t: (t.dtype, t.double()), lambda kept: kept[1].to(kept[0])),
    "a file": (through_a_file, lambda file: torch.load(io.BytesIO(file))),
    "other strides": (lambda t: t, lambda t: t.mT.contiguous().mT if t.dim() > 1 else t),
    "every second": (lambda t: t, lambda t: torch.stack((t, t), -1)[..., 0]),
    "the other sign": (lambda t: torch.complex(t, -t).conj(), torch.imag),
    "a subclass": (lambda t: t, lambda t: t.as_subclass(Own)),
    "a gradient": (lambda t: t, lambda t: t.clone().requires_grad_()),
}


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("same", [*SAME, "save_on_cpu"])
@pytest.mark.parametrize("lengths", [None, [4, 4, 4, 3, 2, 1]], ids=("dense", "padded"))
def test_what_a_hook_returns_in_the_same_form_is_right(same, norm, lengths):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 5, norm=norm, initial_noise=0.0)
    x = torch.randn(4, 6, 3)

    def gradients():
        output, _ = layer(x, lengths=None if same == "the other sign" else lengths)
        return torch.autograd.grad(output.square().sum(), list(layer.parameters()))

    if same == "save_on_cpu":
        hooks = save_on_cpu()
    else:
        pack, unpack = SAME[same]
        hooks = saved_tensors_hooks(
            lambda t: pack(t) if t.is_floating_point() else t,
            lambda t: t if isinstance(t, torch.Tensor) and t.dtype == torch.int64 else unpack(t),
        )
    with hooks:
        found = gradients()
    torch.testing.assert_close(found, gradients())


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda layer: layer.double(), "weight_ih"),
        (lambda layer: layer.half(), "weight_ih"),
        (lambda layer: setattr(layer.weight_hh_l0, "data", torch.zeros(2, 5)), "weight_hh"),
        (lambda layer: setattr(layer.gamma_cell_l0, "data", torch.zeros(5).half()), "gamma_cell"),
    ],
)
def test_a_parameter_in_another_form_than_in_the_forward_pass_is_named(change, name):
    layer = rnnorm.LSTM(3, 5, norm="layer")
    output, _ = layer(torch.randn(4, 6, 3))
    change(layer)
    with pytest.raises(RuntimeError, match=rf"^{name} was saved .*\(\.data="):
        output.sum().backward()


def test_the_second_derivative_looks_at_what_it_finds_too():
    layer = rnnorm.LSTM(3, 5, norm="layer", dtype=torch.float64)
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    output, _ = layer(x)
    with saved_tensors_hooks(lambda t: t, floating(torch.Tensor.float)):
        (first,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^x was saved .* a hook on saved tensors returned it"):
        first.sum().backward()


def test_a_gradient_in_another_form_than_its_result_is_refused():
    output, _ = rnnorm.LSTM(3, 5, norm="layer")(torch.randn(4, 6, 3))
    for wrong in (torch.ones(4, 6, 5).half(), torch.ones(4, 6, 4), torch.ones(4, 6, 5).to_sparse()):
        with pytest.raises(RuntimeError, match=r"^grad_output must be torch.float32 \(4, 6, 5\)"):
            output.grad_fn.apply(wrong, None, None)


def calls(monkeypatch, cell="LSTM", norm="all", **options):
    """Arguments of both operators."""
    (first,) = captured_calls(monkeypatch, Problem(cell, norm, (3, 4, 2, 5), **options))
    first = [a.detach() if isinstance(a, torch.Tensor) else a for a in first]
    results = forward.cpu_forward(*first[:-1], True)
    count = len(Inputs._fields)
    grads = [*[torch.ones_like(each) for each in results[:3]], None]
    return first, [*first[:count], *results, *grads, *first[count:-1], True]


BENT = {
    "dtype": torch.Tensor.float,
    "shape": lambda t: t[..., :-1],
    "dimensions": lambda t: t.unsqueeze(0),
    "rows": lambda t: t[:-1],
    "elements": lambda t: t.new_empty(0),
    "larger": lambda t: torch.cat((t, t), -1),
}


@pytest.mark.parametrize("norm", ["all", "layer"])
@pytest.mark.parametrize("bent", BENT)
def test_operators_refuse_any_tensor_in_another_form(monkeypatch, bent, norm):
    for arguments, operator in zip(
        calls(monkeypatch, "LSTM-all", norm, dropout="every"),
        (forward.cpu_forward, backward.cpu_backward),
        strict=True,
    ):
        names = (*Inputs._fields, *RESULTS, *[f"grad_{name}" for name in RESULTS[:4]])
        for k, (name, given) in enumerate(zip(names, arguments, strict=False)):
            unread = name in ("h_n", "c_n") or not isinstance(given, torch.Tensor)
            if unread or given.numel() == 0:
                continue
            wrong = [*arguments]
            wrong[k] = BENT[bent](given)
            with pytest.raises(RuntimeError, match="must"):
                operator(*wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sizes", torch.tensor([4, 4, 5])),
        ("sizes", torch.tensor([4, 4, -1])),
        ("sizes", torch.tensor([32, 32, 32])),
        ("sizes", torch.tensor([3, 3, 3])),
        ("c0", None),
        ("gamma_hidden", None),
        ("beta_cell", None),
        ("mean_input", None),
        ("cell", "CfC"),
        ("scopes", "frame,frame"),
        ("scopes", "frame,sequence,frame"),
        ("scopes", "frame,row-all,frame"),
        ("scopes", "all,all,all"),
        ("joint", True),
    ],
)
def test_operators_refuse_what_is_no_layer(monkeypatch, name, value):
    for arguments, operator in zip(
        calls(monkeypatch), (forward.cpu_forward, backward.cpu_backward), strict=True
    ):
        names = [argument.name for argument in operator._opoverload._schema.arguments]
        wrong = [*arguments]
        wrong[names.index(name)] = value
        if name == "mean_input":
            wrong[names.index("min_rows")] = -1
        with pytest.raises(RuntimeError, match="must"):
            operator(*wrong)
