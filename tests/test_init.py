import copy
from functools import partial

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import l1_unstructured

import rnnorm
from rnnorm import init
from rnnorm.layers.call.sorted_batch import from_dense
from rnnorm.layers.initial_state import initial_state

LAYERS = [
    rnnorm.LSTM(3, 4, num_layers=2, bidirectional=True),
    rnnorm.LSTM(3, 4, proj_size=2),
    rnnorm.GRU(3, 4, bias=False),
    rnnorm.RNN(3, 4, norm="batch"),
    rnnorm.LSTMCell(3, 4, norm="layer"),
    rnnorm.LiGRU(3, 4, num_layers=2),
    rnnorm.IndRNN(3, 4, norm="batch"),
    rnnorm.MIRNN(3, 4),
    rnnorm.LSTM(3, 4, peephole="full"),
]
FUNCTIONS = [
    init.orthogonal_,
    init.joint_orthogonal_,
    init.identity_,
    init.cooijmans2016_,
    init.cooijmans2016_by_gate_,
    init.cooijmans2016_draft_,
    init.laurent2015_,
]
PIXELS = [init.cooijmans2016_, init.cooijmans2016_by_gate_]


def blocks(layer, prefix):
    for name, weight in layer.named_parameters():
        if name.startswith(prefix):
            yield from weight.detach().split(layer.hidden_size)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_recipe_returns_the_layer_it_changed(function, layer):
    before = [p.detach().clone() for p in layer.parameters()]
    assert function(layer) is layer
    assert any(not torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert all(p.isfinite().all() for p in layer.parameters())


def test_every_gate_is_orthogonal():
    for block in blocks(init.orthogonal_(rnnorm.LSTM(3, 4)), "weight_hh"):
        torch.testing.assert_close(block @ block.T, torch.eye(4))


def test_every_gate_is_the_identity():
    for block in blocks(init.identity_(rnnorm.GRU(3, 4)), "weight_hh"):
        assert torch.equal(block, torch.eye(4))


@pytest.mark.parametrize("prefix", ["weight_ih", "weight_hh", "weight_hr"])
def test_all_gates_are_drawn_as_one_orthogonal_matrix(prefix):
    layer = init.joint_orthogonal_(rnnorm.LSTM(3, 4, num_layers=2, proj_size=2))
    for name, weight in layer.named_parameters():
        if name.startswith(prefix):
            small = weight.T if weight.size(0) > weight.size(1) else weight
            torch.testing.assert_close(small @ small.T, torch.eye(len(small)))


def gates_of(layer):
    """The recurrent weights without the candidate's block."""
    i, f, _, o = blocks(layer, "weight_hh")
    return torch.cat((i, f, o)).detach()


def test_joint_gates_are_root_three_and_joint_inputs_two_times_smaller():
    joint, by_gate = (function(rnnorm.LSTM(1, 20)) for function in PIXELS)
    # the squares of n orthonormal columns add up to n, whatever is drawn
    torch.testing.assert_close(3**0.5 * gates_of(joint).norm(), gates_of(by_gate).norm())
    torch.testing.assert_close(2 * joint.weight_ih_l0.norm(), by_gate.weight_ih_l0.norm())
    torch.testing.assert_close(joint.weight_ih_l0.norm(), torch.tensor(1.0))


def test_joint_gates_are_orthonormal_without_the_candidate():
    gates = gates_of(init.cooijmans2016_(rnnorm.LSTM(1, 20)))
    torch.testing.assert_close(gates.T @ gates, torch.eye(20), atol=1e-6, rtol=0)


@pytest.mark.parametrize("function", PIXELS)
@pytest.mark.parametrize(
    ("layer", "candidate"), [(rnnorm.LSTM, 2), (rnnorm.GRU, 2), (rnnorm.LiGRU, 1), (rnnorm.RNN, 0)]
)
def test_cooijmans_has_the_identity_in_the_candidate_alone(layer, candidate, function):
    found = list(blocks(function(layer(3, 4)), "weight_hh"))
    assert [torch.equal(block, torch.eye(4)) for block in found] == [
        k == candidate for k in range(len(found))
    ]


def test_the_first_versions_words_have_the_identity_in_every_gate():
    lstm = init.cooijmans2016_draft_(rnnorm.LSTM(3, 4))
    for block in blocks(lstm, "weight_hh"):
        assert torch.equal(block, torch.eye(4))
    for block in blocks(lstm, "weight_ih"):
        torch.testing.assert_close(block.T @ block, torch.eye(3))


@pytest.mark.parametrize("function", [*PIXELS, init.cooijmans2016_draft_])
def test_cooijmans_biases_are_zero_but_for_the_forget_gate(function):
    lstm = function(rnnorm.LSTM(3, 4))
    total = (lstm.bias_ih_l0 + lstm.bias_hh_l0).detach()
    assert total.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


@pytest.mark.parametrize("function", PIXELS)
def test_cooijmans_begins_with_the_mean_of_the_input_in_every_unit(function):
    x = torch.randn(6, 3, 4)
    layer = function(rnnorm.LSTM(4, 5, learn_initial_state="from_input"))
    h_0, c_0 = initial_state(layer, 3, x, from_dense(x, False, None))
    torch.testing.assert_close(h_0, x.mean((0, 2)).view(1, 3, 1).expand(1, 3, 5))
    assert not c_0.any()


def test_laurent_reaches_glorots_bound_and_no_further():
    lstm = init.laurent2015_(rnnorm.LSTM(30, 40))
    for prefix, inputs in (("weight_ih", 30), ("weight_hh", 40)):
        for block in blocks(lstm, prefix):
            assert 0.95 < block.abs().max() / (6 / (inputs + 40)) ** 0.5 <= 1
    assert not lstm.bias_ih_l0.any()
    assert not lstm.bias_hh_l0.any()


def test_gamma_and_beta_are_left_alone():
    lstm = rnnorm.LSTM(3, 4, norm="batch")
    for function in FUNCTIONS:
        function(lstm)
    assert (lstm.gamma_input_l0 == 0.1).all()
    assert not lstm.beta_cell_l0.any()


def test_the_forget_bias_is_the_sum_of_both():
    lstm = init.forget_bias_(rnnorm.LSTM(3, 4), 2.0)
    torch.testing.assert_close((lstm.bias_ih_l0 + lstm.bias_hh_l0)[4:8], torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "layer", [rnnorm.GRU(3, 4), rnnorm.LSTM(3, 4, bias=False), rnnorm.HMLSTM(3, 4, 1)], ids=str
)
def test_a_layer_without_forget_bias_is_refused(layer):
    with pytest.raises(ValueError, match="LSTM with bias=True"):
        init.forget_bias_(layer)


def bias_of(layer, gate, suffix="_l0"):
    total = layer.get_parameter(f"bias_ih{suffix}") + layer.get_parameter(f"bias_hh{suffix}")
    return total.detach().split(layer.hidden_size)[gate]


UPDATE = [
    (rnnorm.GRU(3, 4, norm="batch"), 1, "_l0"),
    (rnnorm.GRU(3, 4, 2, bidirectional=True, reset_after="both"), 1, "_l1_reverse"),
    (rnnorm.LiGRU(3, 4), 0, "_l0"),
    (rnnorm.GRUCell(3, 4), 1, ""),
    (torch.nn.GRU(3, 4), 1, "_l0"),
]


@pytest.mark.parametrize(("layer", "gate", "suffix"), UPDATE)
def test_the_update_bias_is_the_sum_of_both_and_nothing_else_changes(layer, gate, suffix):
    before = [bias_of(layer, k, suffix) for k in range(2)]
    assert init.update_bias_(layer, 2.0) is layer
    torch.testing.assert_close(bias_of(layer, gate, suffix), torch.full((4,), 2.0))
    assert torch.equal(bias_of(layer, 1 - gate, suffix), before[1 - gate])


def test_a_positive_update_bias_keeps_the_state_longer():
    x, h_0 = torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    for layer in (rnnorm.GRU(3, 4, norm="layer"), rnnorm.LiGRU(3, 4)):
        output, _ = init.update_bias_(layer, 100.0)(x, h_0)
        torch.testing.assert_close(output, h_0.expand(5, 2, 4))


@pytest.mark.parametrize(
    "layer", [rnnorm.LSTM(3, 4), rnnorm.GRU(3, 4, bias=False), rnnorm.RNN(3, 4)], ids=str
)
def test_a_layer_without_update_bias_is_refused(layer):
    with pytest.raises(ValueError, match="GRU or LiGRU with bias=True"):
        init.update_bias_(layer)


@pytest.mark.parametrize("layer", [rnnorm.LSTM(3, 1000, 2), rnnorm.LSTMCell(3, 1000)], ids=str)
def test_chrono_biases_lie_between_the_memories(layer):
    suffix = "_l1" if isinstance(layer, rnnorm.LSTM) else ""
    before = [bias_of(layer, k, suffix) for k in (2, 3)]
    assert init.chrono_(layer, 100) is layer
    forget, enter = bias_of(layer, 1, suffix), bias_of(layer, 0, suffix)
    memories = forget.exp()
    assert 1 <= memories.min() < 5
    assert 95 < memories.max() <= 99.001
    assert 45 < memories.mean() < 55
    assert torch.equal(enter, -forget)
    assert all(
        torch.equal(bias_of(layer, k, suffix), b) for k, b in zip((2, 3), before, strict=True)
    )
    if suffix:
        assert not torch.equal(bias_of(layer, 1, "_l0"), forget)


@pytest.mark.parametrize(("layer", "gate", "suffix"), UPDATE)
def test_chrono_draws_the_one_gate_of_a_gru(layer, gate, suffix):
    init.chrono_(layer, 11)
    drawn = bias_of(layer, gate, suffix).exp()
    assert drawn.min() >= 0.999
    assert drawn.max() <= 10.001
    init.chrono_(layer, 2)
    assert not bias_of(layer, gate, suffix).any()


@pytest.mark.parametrize("layer", [rnnorm.RNN(3, 4), rnnorm.LSTM(3, 4, bias=False)], ids=str)
def test_a_layer_without_such_gates_has_no_chrono_biases(layer):
    with pytest.raises(ValueError, match="LSTM, GRU or LiGRU with bias=True"):
        init.chrono_(layer, 10)


@pytest.mark.parametrize(
    ("longest", "error"), [(1, ValueError), (float("inf"), ValueError), ("5", TypeError)]
)
def test_the_longest_memory_is_a_number_of_at_least_2(longest, error):
    with pytest.raises(error, match="longest must be"):
        init.chrono_(rnnorm.LSTM(3, 4), longest)


def test_an_indrnns_vector_is_a_diagonal():
    indrnn = rnnorm.IndRNN(3, 4)
    before = indrnn.weight_hh_l0.detach().clone()
    for function in FUNCTIONS:
        if function is not init.identity_:
            assert torch.equal(function(indrnn).weight_hh_l0, before)
    assert (init.identity_(indrnn).weight_hh_l0 == 1).all()


class FourGates(rnnorm.Cell):
    gates = (4,)

    def step(self, weights, x_term, state, normalise, t):
        raise NotImplementedError


class TwoHeads(rnnorm.Cell):
    gates, heads = (3,), 2


@pytest.mark.parametrize("function", [init.identity_, init.cooijmans2016_draft_, init.orthogonal_])
def test_each_head_has_a_matrix_of_its_own_in_each_gate(function):
    layer = function(rnnorm.Recurrent(TwoHeads(), 3, 8))
    identity = torch.eye(4)
    for block in layer.weight_hh_l0.detach().split(4):
        assert block.shape == (4, 4)
        torch.testing.assert_close(block @ block.T, identity)
        assert torch.equal(block, identity) == (function is not init.orthogonal_)


def test_four_gates_of_a_cell_of_ones_own_are_no_lstms():
    layer = rnnorm.Recurrent(FourGates(), 3, 4)
    with pytest.raises(ValueError, match="LSTM with bias=True"):
        init.forget_bias_(layer)
    assert not init.cooijmans2016_(layer).bias_ih_l0.any()


@pytest.mark.parametrize(
    "function",
    [
        *(init.orthogonal_, init.joint_orthogonal_, init.laurent2015_),
        *(init.forget_bias_, init.update_bias_, partial(init.chrono_, longest=5)),
    ],
)
@pytest.mark.parametrize("given", [torch.nn.Linear(3, 4), torch.nn.Sequential(rnnorm.LSTM(3, 4))])
def test_what_is_no_recurrent_layer_is_refused(function, given):
    with pytest.raises(TypeError, match=f"recurrent layer or cell, got a {type(given).__name__}"):
        function(given)


def test_a_parametrised_weight_is_refused_not_passed_over():
    lstm = weight_norm(rnnorm.LSTM(3, 4), "weight_hh_l0")
    with pytest.raises(ValueError, match="plain parameters weight_hh"):
        init.orthogonal_(lstm)


@pytest.mark.parametrize("name", ["weight_hh_l1", "weight_hr_l0"])
def test_so_is_one_parametrised_weight_of_several(name):
    layer = weight_norm(rnnorm.LSTM(3, 4, num_layers=2, proj_size=2), name)
    before = layer.weight_ih_l0.clone()
    for function in (init.orthogonal_, init.joint_orthogonal_, init.laurent2015_):
        with pytest.raises(ValueError, match=rf"plain parameters {name[:9]}\*"):
            function(layer)
    assert torch.equal(layer.weight_ih_l0, before)


@pytest.mark.parametrize(
    "function",
    [
        init.forget_bias_,
        init.cooijmans2016_,
        init.cooijmans2016_by_gate_,
        init.cooijmans2016_draft_,
        init.laurent2015_,
    ],
)
@pytest.mark.parametrize(
    ("layer", "name"), [(rnnorm.LSTM(3, 4, 2), "bias_hh_l1"), (rnnorm.LSTMCell(3, 4), "bias_hh")]
)
def test_so_is_a_pruned_bias(function, layer, name):
    layer = l1_unstructured(copy.deepcopy(layer), name, 1)
    before = copy.deepcopy(list(layer.parameters()))
    with pytest.raises(ValueError, match=r"plain parameters bias"):
        function(layer)
    assert all(map(torch.equal, before, layer.parameters()))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_the_parts_of_a_weight_are_not_taken_for_weights():
    lstm = torch.nn.utils.weight_norm(rnnorm.LSTM(3, 4), "weight_hh_l0")
    with pytest.raises(ValueError, match="plain parameters weight_hh"):
        init.orthogonal_(lstm)
