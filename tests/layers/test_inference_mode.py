import pytest
import torch

import rnnorm


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return rnnorm.LSTM(3, 5, norm="batch")


def trains(layer):
    layer.train()
    # in the rows that are there, then in more
    for steps in (6, 9):
        layer(torch.randn(steps, 4, 3))[0].sum().backward()
    return len(layer.population_cell_l0) == 9


def test_training_goes_on_after_statistics_grew_in_inference_mode(layer):
    with torch.inference_mode():
        layer(torch.randn(6, 4, 3))
    assert trains(layer)


def test_training_goes_on_after_a_checkpoint_was_loaded_in_inference_mode(layer):
    other = rnnorm.LSTM(3, 5, norm="batch")
    other(torch.randn(6, 4, 3))
    with torch.inference_mode():
        layer.load_state_dict(other.state_dict())
    assert trains(layer)


def test_training_goes_on_after_update_bn_in_inference_mode(layer):
    with torch.inference_mode():
        rnnorm.update_bn([torch.randn(6, 4, 3)], layer)
        with pytest.raises(ValueError, match="minibatch"):
            rnnorm.update_bn([], layer)
    assert trains(layer)


def test_training_goes_on_after_select_horizon_in_inference_mode(layer):
    layer(torch.randn(6, 4, 3))
    with torch.inference_mode():
        assert rnnorm.select_horizon(layer, lambda model: -len(model.population_cell_l0)) == 6
    assert trains(layer)
