"""Law 6: in training, with eps -> 0, scaling a normalised product's weights changes nothing."""

import pytest
import torch
from cases import STEADY, Case, any_case, assert_all_close, buffers, gradients, law, run
from hypothesis import assume, given
from hypothesis import strategies as st

from rnnorm import BatchNorm, LayerNorm, RMSNorm

SITES = {
    "input": {"input": "frame", "joint": None},
    "input-sequence": {"input": "sequence", "joint": None, "cells": STEADY},
    "recurrent": {"recurrent": "frame", "joint": None},
    "joint": {
        "joint": "frame",
        "input": None,
        "recurrent": None,
        "cells": ("RNN_TANH", "RNN_RELU", "LSTM", "LSTM-all", "GRU-before", "GRU-both", "LiGRU"),
    },
}
WEIGHTS = {
    "input": ["weight_ih"],
    "recurrent": ["weight_hh", "u_"],
    "joint": ["weight_ih", "weight_hh"],
}


def any_case_with(site):
    """Dense, with three rows or more, so that every step takes a statistic; eps -> 0."""
    return any_case(dense=True, given_state=True, min_rows=2, eps=1e-14, **SITES[site])


def scaled_parameters(module, site):
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if any(name.startswith(weight) for weight in WEIGHTS[site.split("-")[0]])
    }


@pytest.mark.parametrize("site", SITES)
@law(20)
@given(data=st.data(), factor=st.sampled_from([0.1, 3.0, 1e3]))
def test_scaling_the_weights_of_a_normalised_term_changes_nothing(site, data, factor):
    case = data.draw(any_case_with(site))
    module, other = case.module(), case.module()
    with torch.no_grad():
        for parameter in scaled_parameters(other, site).values():
            parameter.mul_(factor)
    found = []
    for m in (module, other):
        sequences, hx = case.sequences(), case.hx()
        outputs, states = run(m, sequences, hx)
        found.append((outputs, states, gradients(m, sequences, hx, outputs, states)))
    assert_all_close(found[1][0], found[0][0], 1e-6)
    assert_all_close(found[1][1], found[0][1], 1e-6)
    # the gradient of what was scaled shrinks by the factor; all others stay
    names = scaled_parameters(module, site)
    got = {n: g * factor if n in names else g for n, g in found[1][2].items()}
    assert_all_close(got, found[0][2], 1e-5)


@pytest.mark.parametrize("site", SITES)
@law(15)
@given(data=st.data())
def test_the_gradient_of_a_normalised_weight_is_orthogonal_to_it(site, data):
    case = data.draw(any_case_with(site))
    module, sequences, hx = case.module(), case.sequences(), case.hx()
    found = gradients(module, sequences, hx, *run(module, sequences, hx))
    scaled = scaled_parameters(module, site)
    layers = {name: name.rpartition("_l")[2] for name in scaled}
    for layer in set(layers.values()):
        terms = [found[n] * w for n, w in scaled.items() if layers[n] == layer]
        product = sum(term.sum() for term in terms)
        size = sum(term.abs().sum() for term in terms)
        assert abs(product) <= 1e-6 * size + 1e-9


@law(25)
@given(
    cell=st.sampled_from(("RNN_TANH", "LSTM", "GRU", "GRU-before", "LiGRU")),
    kind=st.sampled_from([LayerNorm, RMSNorm]),
    over=st.sampled_from([None, "term", "gate"]),
    site=st.sampled_from(["input", "recurrent", "joint"]),
    factor=st.sampled_from([0.1, 3.0, 1e3]),
)
def test_scaling_the_weights_of_a_row_norm_changes_nothing(cell, kind, over, site, factor):
    assume(site != "joint" or cell != "GRU")
    joint = {"joint": True, "input": False, "recurrent": False} if site == "joint" else {}
    # some rows are nearly constant by chance
    case = Case(cell, kind(over=over, eps=1e-20, **joint), lengths=(3, 3))
    module, other = case.module(), case.module()
    with torch.no_grad():
        for parameter in scaled_parameters(other, site).values():
            parameter.mul_(factor)
    found, want = (run(each, case.sequences(), case.hx()) for each in (other, module))
    assert_all_close(found[0], want[0], 1e-6)
    assert_all_close(found[1], want[1], 1e-6)


def test_the_population_scales_with_the_weights():
    case = Case(norm=BatchNorm(cell=None), lengths=(3, 3, 3))
    module, other = case.module(), case.module()
    with torch.no_grad():
        other.weight_ih_l0.mul_(4)
    run(module, case.sequences(), case.hx())
    run(other, case.sequences(), case.hx())
    got, want = buffers(other), buffers(module)
    assert_all_close(
        [got["population_input_l0.mean"], got["population_input_l0.var"]],
        [4 * want["population_input_l0.mean"], 16 * want["population_input_l0.var"]],
    )
