"""HMLSTM as a torch.nn.Module: names of weights, compilers, dtypes, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils.rnn import (
    pack_padded_sequence,
)

import rnnorm
from hmlstm_definition import INPUTS, NORMS, H, L, draw
from rnnorm.diagnostics import gradient_norms


def test_a_compiled_stack_takes_packed_sequences():
    module = draw().eval()
    packed = pack_padded_sequence(
        torch.randn(5, 3, INPUTS).double(), [2, 5, 3], enforce_sorted=False
    )
    output, states, boundaries = module(packed)
    again, same, found = torch.compile(module, backend="eager")(packed)
    for one, two in zip((output, *boundaries), (again, *found), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(states, same, strict=True))


def test_weights_have_torchs_names_and_one_row_for_the_boundary():
    module = rnnorm.HMLSTM(INPUTS, H, 2, norm="batch", learn_initial_state=True)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {n: s for n, s in shapes.items() if n.startswith(("weight", "bias", "h", "z"))} == {
        "weight_ih_l0": (17, 3),
        "weight_hh_l0": (17, 4),
        "weight_ah_l0": (17, 4),
        "bias_l0": (17,),
        "weight_ih_l1": (16, 4),
        "weight_hh_l1": (16, 4),
        "bias_l1": (16,),
        "weight_go": (2, 8),
        "weight_ho": (4, 8),
        "h_0": (1, 8),
        "z_0": (1, 1),
    }
    assert shapes["gamma_recurrent_above_l0"] == (17,)
    assert shapes["beta_cell_l1"] == (4,)


def test_the_slope_is_set_and_kept_in_the_state():
    module = draw(slope=2)
    assert module.slope == 2.0
    assert repr(module).endswith("slope=2)")
    assert "slope" not in repr(draw())
    assert rnnorm.HMLSTM(INPUTS, H, slope=1.1, dtype=torch.float64).slope == 1.1
    half = rnnorm.HMLSTM(INPUTS, H, slope=1.1, dtype=torch.half)
    assert half.slope == torch.tensor(1.1).item()
    module.slope = 3.5
    other = draw()
    other.load_state_dict(module.state_dict())
    assert other.slope == 3.5
    for same in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert same.slope == 3.5
    module.reset_parameters()
    assert module.slope == 2.0
    empty = rnnorm.HMLSTM(INPUTS, H, slope=1.5, device="meta").to_empty(device="cpu")
    empty.reset_parameters()
    assert empty.slope == 1.5
    with pytest.raises(ValueError, match="slope must be finite and at least 0, got -1"):
        module.slope = -1


def test_one_layer_finds_no_boundary():
    module = rnnorm.HMLSTM(INPUTS, H, 1)
    output, (h_n, _, z_n), boundaries = module(torch.randn(5, 2, INPUTS))
    assert output.shape == (5, 2, H)
    assert h_n.shape == (1, 2, H)
    assert z_n.shape == (0, 2)
    assert boundaries.z.shape == (5, 2, 0)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(
        ValueError, match="boundary must be 'step', 'soft', 'sample' or 'given', got"
    ):
        rnnorm.HMLSTM(INPUTS, H, boundary="hard")
    with pytest.raises(ValueError, match=r"input_size must be at least .* got 2 and 3"):
        rnnorm.HMLSTM(2, H, boundary="given")
    mask = rnnorm.SequenceDropout(input=0.5)
    with pytest.raises(ValueError, match=r"recurrent_dropout.input must be 0 .* got 0.5"):
        rnnorm.HMLSTM(INPUTS, H, boundary="given", recurrent_dropout=mask)
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None for HMLSTM"):
        rnnorm.HMLSTM(INPUTS, H, norm="bn-e*")
    with pytest.raises(ValueError, match=r"norm.carry must be None for HMLSTM"):
        rnnorm.HMLSTM(INPUTS, H, norm="carry")
    module, x = draw(), torch.zeros(5, 2, INPUTS).double()
    h = x.new_zeros(L, 2, H)
    with pytest.raises(RuntimeError, match=r"hx must be h and c of size \(3, B, 4\) and z"):
        module(x, (h, h, h))
    with pytest.raises(RuntimeError, match="hx must be h, c and z, got 2 tensors"):
        module(x, (h, h))
    for wrong in (5, "abc", (h, h, 3)):
        with pytest.raises(RuntimeError, match="hx must be h, c and z, got"):
            module(x, wrong)
    with pytest.raises(RuntimeError, match="input_size"):
        module(x[..., :2])


@pytest.mark.slow
def test_it_is_exported():
    module, x = draw(NORMS["batch"], num_layers=2), torch.randn(2, 5, INPUTS).double()
    module(x)
    module.eval()
    program = torch.export.export(module, (x,), strict=False)
    for mine, theirs in zip(program.module()(x)[1], module(x)[1], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_weights_are_drawn_gate_by_gate():
    module = rnnorm.init.orthogonal_(rnnorm.HMLSTM(INPUTS, H))
    for name in ("weight_hh_l2", "weight_ah_l0"):
        for gate in module.get_parameter(name)[: 4 * H].split(H):
            torch.testing.assert_close(gate @ gate.T, torch.eye(H))


def test_autocast_runs_it():
    module = rnnorm.HMLSTM(INPUTS, H, norm="batch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, (h_n, _, _), boundaries = module(torch.randn(4, 5, INPUTS))
    assert output.dtype == h_n.dtype == boundaries.z.dtype
    output.float().sum().backward()
    assert module.weight_hh_l1.grad.dtype == torch.float32


def test_the_gradient_of_its_states_is_measured():
    norms = gradient_norms(
        rnnorm.HMLSTM(INPUTS, H), lambda result: result[0].sum(), torch.randn(4, 5, INPUTS)
    )
    assert norms.shape == (4,)
    assert norms.any()


def test_no_row_and_one_row_run():
    module = draw()
    for rows in (0, 1):
        output, (h_n, _, z_n), _ = module(torch.zeros(2, rows, INPUTS).double())
        assert output.shape == (2, rows, H)
        assert (h_n.shape, z_n.shape) == ((L, rows, H), (L - 1, rows))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_layer_normalised_stack_is_traced():
    layer = rnnorm.HMLSTM(3, 4, norm="layer").eval()
    x, other = torch.randn(2, 5, 2, 3)
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    torch.testing.assert_close(traced(other)[0], layer(other)[0])
