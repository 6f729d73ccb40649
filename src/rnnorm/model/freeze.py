"""Freezing: a copy of a model for inference."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.layers.normalised_module import NormalisedModule, warn_without_statistic
from rnnorm.norm.frozen_population import FrozenPopulation
from rnnorm.norm.population import Population

Model = TypeVar("Model", bound=nn.Module)

#: advice where a hook or a computed tensor is in the way
UNDO_FIRST = (
    "undo pruning by torch.nn.utils.prune.remove, and the older weight and spectral norm by "
    "remove_weight_norm and remove_spectral_norm of torch.nn.utils, first"
)


def freeze(model: Model) -> Model:
    """Copy a model for inference, with the results of the model in evaluation.

    The copy is in evaluation, and no parameter requires a gradient. The statistics of each step
    are looked up once, and parametrized weights are computed once. Further training of the model
    does not change the copy. A warning says if no statistic was taken yet.

    Args:
        model: a layer of rnnorm, or a model with some.

    Returns:
        the copy. With batch normalisation it raises a RuntimeError if it is called in training or
        to take statistics.

    Raises:
        RuntimeError: if the model cannot be copied.
    """
    warn_without_statistic(model)
    try:
        model = copy.deepcopy(model).eval()
    except RuntimeError as error:
        if "deepcopy protocol" not in str(error):
            raise
        raise RuntimeError(
            "model must be one that copy.deepcopy copies, got one with a tensor computed from "
            "others: " + UNDO_FIRST
        ) from None
    compute_parametrized(model)
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, Population) and not isinstance(child, FrozenPopulation):
                module._modules[name] = FrozenPopulation(child)
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, NormalisedModule):
            module._frozen = True
        if isinstance(module, nn.RNNBase):
            # torch's classes copy what compile() has made of the original, which it would run
            module._compiled_call_impl = None
            # cuDNN wants the weights in one block, deepcopy has copied them one by one
            module.flatten_parameters()
    return model


def compute_parametrized(model: nn.Module) -> None:
    """Replace each parametrization in a copied model by the weight that it computes now."""
    for module in list(model.modules()):
        if not is_parametrized(module):
            continue
        made = module.parametrizations
        assert isinstance(made, nn.ModuleDict)
        with torch.no_grad():
            values = {name: getattr(module, name).clone() for name in made}
        # remove_parametrizations would change the class, which a copy shares with its original,
        # and the value of a parameter that another module may have, too
        module.__class__ = type(module).__bases__[0]
        del module.parametrizations
        for name, value in values.items():
            if any(True for _ in made[name].parameters(recurse=False)):
                module.register_parameter(name, nn.Parameter(value))
            else:
                module.register_buffer(name, value)
