"""How many operations a step of the reference is: on a GPU each of them is a launch."""

from collections import Counter

import pytest
from problems import Problem
from torch.utils._python_dispatch import TorchDispatchMode

from rnnorm.kernels import reference

# what moves no data
FREE = {"view", "t", "split", "split_with_sizes", "unsafe_split", "unbind", "detach", "slice"}
FREE |= {"select", "expand", "unsqueeze", "alias", "_unsafe_view", "empty", "transpose", "permute"}
#: forward and backward; those of docs/gpu.md
LAUNCHES = {
    ("LSTM", "all"): (14, 25),
    ("LSTM", "layer"): (13, 22),
    ("LSTM", "none"): (10, 17),
    ("GRU", "all"): (8, 27),
    ("GRU", "layer"): (9, 28),
    ("GRU", "none"): (7, 23),
    ("RNN_TANH", "all"): (5, 10),
    ("RNN_TANH", "layer"): (4, 7),
    ("RNN_TANH", "none"): (2, 5),
}


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names[str(operator).split(".")[1]] += 1
        return operator(*args, **(kwargs or {}))


def operations(cell, norm, steps, lengths=None):
    problem = Problem(cell, norm, (steps, 4, 3, 5), lengths)
    leaves = {name: leaf.requires_grad_() for name, leaf in problem.leaves.items()}
    with Counted() as forward:
        outputs, moments = problem.run(reference.layer, leaves)
        loss = outputs[0].sum()
    with Counted() as backward:
        loss.backward()
    assert bool(moments) == (norm not in ("layer", "none"))
    return forward.names, backward.names


@pytest.mark.parametrize(("cell", "norm"), LAUNCHES)
def test_a_step_is_so_many_launches(cell, norm):
    more, fewer = operations(cell, norm, 21), operations(cell, norm, 11)
    for passes in zip(more, fewer, LAUNCHES[cell, norm], strict=True):
        many, few, most = passes
        extra = {name: (count - few[name]) / 10 for name, count in many.items()}
        assert sum(count for name, count in extra.items() if name not in FREE) <= most, extra


@pytest.mark.parametrize("lengths", [None, [9, 9, 7, 4]], ids=("dense", "ragged"))
@pytest.mark.parametrize("norm", ["all", "sequence", "layer"])
def test_nothing_comes_from_the_host_but_what_is_given(norm, lengths):
    # a tensor of Python's numbers is lifted, and on a GPU copied there
    for names in operations("LSTM", norm, 9, lengths):
        assert not {"lift_fresh", "_to_copy"} & set(names)
