"""Law: synchronised ranks are one process with the whole batch."""

import copy
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from cases import (
    Case,
    any_case,
    assert_all_close,
    assert_close,
    buffers,
    cut,
    law,
    single,
    tuple_of,
)
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import ranks
from rnnorm import (
    GRU,
    HMLSTM,
    LSTM,
    BatchNorm,
    LayerNorm,
    LSTMCell,
    average_population,
    freeze,
    select_horizon,
    synchronize,
    update_bn,
)
from rnnorm.diagnostics import gradient_norms
from rnnorm.kernels import dispatch

# every rank draws the same examples, and would not if each shrank its own
same_everywhere = settings(law(15), phases=[Phase.generate])


def loss_of(output, states, row, kind):
    """One sequence's: kinds look at different outputs, and some at none of a direction."""
    generator = torch.Generator().manual_seed(row)
    seen = {0: [output, *states], 1: [output[-1:]], 2: [output[:1], states[-1]]}[kind]
    return sum(
        (part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum()
        for part in seen
    )


def run_rows(module, case, rows, owner, resets=None):
    """Outputs of some rows of a case, and the gradients of their loss."""
    sequences, hx = case.sequences(), case.hx()
    mine = [sequences[b] for b in rows]
    state = None if hx is None else single(tuple(s[:, rows] for s in hx))
    if rows:
        padded = pad_sequence(mine, padding_value=float("nan"))
        reset = None if resets is None else pad_sequence([resets[b] for b in rows])
        # ranks without a reset need no argument
        reset = None if reset is None or not reset.any() else reset
        output, last = module(padded, state, lengths=[len(s) for s in mine], reset=reset)
    else:
        output, last = module(torch.zeros(1, 0, case.input_size).double(), state)
    outputs = [output[: len(s), k] for k, s in enumerate(mine)]
    last = tuple_of(last)
    # also where this rank has nothing to say, for the others wait for it
    loss = 0 * output.sum()
    for k, b in enumerate(rows):
        loss = loss + loss_of(outputs[k], [s[:, k] for s in last], b, owner[b])
    leaves = [*module.parameters(), *mine, *(hx or ())]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]
    count = len(list(module.parameters()))
    states = [g[:, rows] for g in found[count + len(mine) :]]
    kept = [s.detach() for s in last]
    return outputs, kept, found[:count], [*found[count : count + len(mine)], *states]


def with_room(module, steps):
    """Buffers that need not grow, which they do not for one process among several."""
    for population in module.children():
        population.grow(steps, agreed=True)
    return module


def equals_one_process(case, owner, rank, group, resets=None):
    """Checks the rows ``b`` with ``owner[b] == rank`` against a process that has them all.

    With the kernel that is best, and with the reference on all ranks or on one of them.
    """
    equals_with(None, case, owner, rank, group, resets)
    other = "reference" if rank == 0 or case.seed % 3 == 0 else None
    equals_with(other, case, owner, rank, group, resets)


def equals_with(backend, case, owner, rank, group, resets):
    everything, mine = list(range(len(owner))), [b for b, r in enumerate(owner) if r == rank]
    whole = resets or [torch.zeros(n, dtype=torch.bool) for n in case.lengths]
    longest = max(len(part) for _, _, part in cut(case.sequences(), whole))
    alone = with_room(case.module(), longest)
    module = synchronize(case.module(), group)
    with dispatch.use_backend("reference"):
        outputs, states, weights, inputs = run_rows(alone, case, everything, owner, resets)
    with dispatch.use_backend(backend) if backend else nullcontext():
        got = run_rows(module, case, mine, owner, resets)
    assert_all_close(got[0], [outputs[b] for b in mine], 1e-12)
    if mine:
        assert_all_close(got[1], [s[:, mine] for s in states], 1e-12)
    # the gradient of a sum over ranks
    # biases that are added up share one gradient
    total = [gradient.clone() for gradient in got[2]]
    for gradient in total:
        torch.distributed.all_reduce(gradient, group=group)
    assert_all_close(total, weights, 1e-10)
    sequences, states = inputs[: len(owner)], inputs[len(owner) :]
    want = [*[sequences[b] for b in mine], *[s[:, mine] for s in states]]
    if mine:
        assert_all_close(got[3], want, 1e-10)
    assert_all_close(buffers(module), buffers(alone), 1e-12)
    for name, buffer in module.named_buffers():
        first = buffer.clone()
        torch.distributed.broadcast(first, 0, group=group)
        assert torch.equal(first, buffer), f"{name} differs from that of the first rank"


def check_any_case(rank, group, world):
    @same_everywhere
    @given(any_case(), st.lists(st.integers(0, world - 1), min_size=5, max_size=5))
    def check(case, owner):
        equals_one_process(case, owner[: len(case.lengths)], rank, group)

    check()


def check_resets_and_mixed_norms(rank, group, world):
    @same_everywhere
    @given(
        any_case(norms="mixed"),
        st.lists(st.integers(0, world - 1), min_size=5, max_size=5),
        st.lists(st.booleans(), min_size=25, max_size=25),
    )
    def check(case, owner, flags):
        flags = torch.tensor(flags).view(5, 5)
        resets = [flags[b, :n] for b, n in enumerate(case.lengths)]
        equals_one_process(case, owner[: len(case.lengths)], rank, group, resets)

    check()


def check_few_rows(rank, group, world):
    # of 10 rows, 8 and then 6 go on: no rank has 8 by itself, and the last steps take no statistic
    case = Case(
        "LSTM", BatchNorm(input="frame", min_rows=8), lengths=(5, 5, 5, 5, 4, 4, 3, 3, 1, 1)
    )
    equals_one_process(case, [b % world for b in range(10)], rank, group)
    # the first rank has the short ones
    equals_one_process(case, [min(world - 1, (9 - b) // 4) for b in range(10)], rank, group)
    # and here one has none at all
    equals_one_process(case, [0] * 10, rank, group)
    equals_one_process(replace(case, norm=BatchNorm(input="sequence")), [1] * 10, rank, group)
    mixed = {"input": BatchNorm(), "recurrent": LayerNorm(), "cell": BatchNorm(momentum=None)}
    equals_one_process(replace(case, norm=mixed), [b % world for b in range(10)], rank, group)


def check_one_row(rank, group, world):
    """On the last rank, and of one frame."""
    for norm in (BatchNorm(), BatchNorm(input="sequence")):
        alone = with_room(Case("LSTM", norm).module(), 4)
        alone(torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0)).double())
        x = torch.ones(1, 1, 3).double()
        for backend in (nullcontext(), dispatch.use_backend("reference")):
            module = synchronize(copy.deepcopy(alone), group)
            with backend, pytest.warns(UserWarning, match="got 1: .*as in evaluation"):
                got, _ = module(x if rank == world - 1 else x[:, :0])
            want, _ = copy.deepcopy(alone).eval()(x)
            if got.numel():
                assert_close("output", got, want, 1e-12)
            assert_all_close(buffers(module), buffers(alone), 0)


def check_cells(rank, group, world):
    torch.manual_seed(0)
    alone = with_room(LSTMCell(3, 4, norm="batch", dtype=torch.float64), 3)
    module = synchronize(copy.deepcopy(alone), group)
    x, mine = torch.randn(3, 6, 3, dtype=torch.float64), slice(rank, None, world)
    want = got = None
    for t in range(3):
        want, got = alone(x[t], want, step=t), module(x[t, mine], got, step=t)
    assert_all_close(got, [s[mine] for s in want], 1e-12)
    assert_all_close(buffers(module), buffers(alone), 1e-12)


def check_hmlstm(rank, group, world):
    torch.manual_seed(0)
    norm = BatchNorm(min_rows=2)
    alone = with_room(HMLSTM(3, 4, norm=norm, initial_noise=0, boundary="soft").double(), 5)
    module = synchronize(copy.deepcopy(alone), group)
    x, mine = torch.randn(5, 6, 3, dtype=torch.float64), slice(rank, None, world)
    want, got = alone(x)[0], module(x[:, mine])[0]
    assert_close("output", got, want[:, mine], 1e-12)
    for output in (want, got):
        output.square().sum().backward()
    for (name, p), q in zip(alone.named_parameters(), module.parameters(), strict=True):
        torch.distributed.all_reduce(q.grad, group=group)
        assert_close(name, q.grad, p.grad, 1e-10)


def check_training(rank, group, world):
    """Under DDP, the mean over ranks of losses that are ``world`` times each one's share."""
    case = Case("GRU", BatchNorm(min_rows=2), num_layers=2, given_state=False, lengths=(3,) * 6)
    alone, module = with_room(case.module(), 3), synchronize(case.module(), group)
    parallel = nn.parallel.DistributedDataParallel(module, process_group=group)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, module)]
    for seed in range(3):
        x = torch.stack(replace(case, seed=seed).sequences(), 1).detach()
        for network, frames, scale in ((alone, x, 1), (parallel, x[:, rank::world], world)):
            (network(frames)[0].square().sum() * scale).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_all_close(dict(module.named_parameters()), dict(alone.named_parameters()), 1e-11)
    assert_all_close(buffers(module), buffers(alone), 1e-11)

    x = torch.randn(2, 5, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # update_bn itself would add up what every rank has alone
    for population in with_room(alone, 5).children():
        population.momentum = None
        population.reset_running_stats()
    for frames in x:
        alone(frames)
    update_bn(list(x[:, :, rank::world]), parallel)
    assert_all_close(buffers(module), buffers(alone), 1e-11)


def check_kept_graph(rank, group, world):
    case = Case("GRU", BatchNorm(), given_state=False)
    module = synchronize(case.module(), group)
    loss = module(torch.stack([s[:2] for s in case.sequences()], 1))[0].sum()
    leaves = list(module.parameters())
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert_all_close(torch.autograd.grad(loss, leaves), first, 0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves)


def check_which_kernel_runs(rank, group, world):
    x = torch.randn(2, 8, 3)
    for norm, kernel in (("batch", "cpu"), (BatchNorm(carry="frame"), "reference")):
        layer = synchronize(LSTM(3, 4, norm=norm), group)
        before = dispatch.calls[kernel]
        layer(x)[0].sum().backward()
        assert dispatch.calls[kernel] == before + 1 or dispatch.backends()[kernel]
    # no rank waits for another in evaluation
    if rank == 0:
        layer.eval()(x)


def check_threads(rank, group, world):
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(rank)
        x = torch.randn(5, 6, 3)
        torch.manual_seed(0)
        layer = synchronize(LSTM(3, 40, norm="batch", initial_noise=0.0), group)
        output, _ = layer(x)
        output.square().sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        results.append([output, *gradients, *layer.buffers()])
    torch.set_num_threads(1)
    assert all(torch.equal(one, more) for one, more in zip(*results, strict=True))


def check_second_derivatives(rank, group, world):
    for backend in ("cpu", "reference"):
        if dispatch.backends()[backend]:
            continue
        x = torch.randn(2, 8, 3, requires_grad=True)
        with dispatch.use_backend(backend):
            output, _ = synchronize(GRU(3, 4, norm="batch"), group)(x)
            (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
            with pytest.raises(RuntimeError, match="once_differentiable"):
                slope.sum().backward()


def check_average(rank, group, world):
    if group is not None:
        return
    torch.manual_seed(rank)
    layer = LSTM(3, 4, norm=BatchNorm(horizon=6), dtype=torch.float64)
    other = nn.BatchNorm1d(4, dtype=torch.float64)
    model = nn.ModuleList([layer, other])
    for rows in ((2, 8)[rank % 2], 9):
        output, _ = layer(torch.randn(3 + rank, rows, 3, dtype=torch.float64))
        other(output.flatten(0, 1))
    own = layer.population_recurrent_l0
    stored = [None] * world
    torch.distributed.all_gather_object(
        stored, (own.mean, own.var, own.rows, own.num_batches_tracked)
    )
    frozen = freeze(layer)
    kept = buffers(frozen)
    average_population(nn.ModuleList([model, frozen]))
    assert_all_close(buffers(frozen), kept, 0)
    means, variances, rows, batches = (
        torch.stack(each).double() for each in zip(*stored, strict=True)
    )
    for got, each, weight in ((own.mean, means, rows), (own.var, variances, rows - batches)):
        share = (weight / weight.sum(0).clamp(min=1)).unsqueeze(2)
        assert_close("moment", got[: 2 + world], (share * each).sum(0)[: 2 + world], 1e-12)
    once = buffers(model)
    average_population(model)
    assert_all_close(buffers(model), once, 1e-12)
    assert own.rows.tolist() == (rows.sum(0) / world).ceil().int().tolist()
    for buffer in model.buffers():
        first = buffer.clone()
        torch.distributed.broadcast(first, 0)
        assert torch.equal(first, buffer)


def check_groups_side_by_side(rank, group, world):
    if group is not None:
        return
    groups = [torch.distributed.new_group(members) for members in ([0, 1], [2])]
    layer = synchronize(LSTM(3, 4, norm=BatchNorm(horizon=5)), groups[rank // 2])
    update_bn([torch.randn(5, 8, 3)], layer)
    # neither group waits for the other, nor adds up with it
    rows = layer.population_recurrent_l0.rows
    assert rows.tolist() == [(16, 8)[rank // 2]] * len(rows)


def check_update_bn_where_ranks_keep_other_numbers_of_steps(rank, group, world):
    if group is not None:
        return
    layer = LSTM(3, 4, norm=BatchNorm(horizon=10))
    layer(torch.randn(9, 8, 3))
    select_horizon(layer, lambda model: abs(len(model.population_input_l0) - 4))
    update_bn([torch.randn(5 + rank, 8, 3)], layer)
    # steps that some ranks lack have few rows
    rows = layer.population_input_l0.rows
    assert rows.tolist() == [8 * world] * 5 + [0] * (world - 1)


def check_gradient_norms_of_one_rank(rank, group, world):
    layer = synchronize(LSTM(3, 4, norm=BatchNorm(horizon=5)), group)
    if rank == 0:
        norms = gradient_norms(layer, lambda out: out[0].sum(), torch.randn(5, 8, 3))
        assert norms.shape == (5,)
    assert layer.synchronized()


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in sorted(globals().items())
    if name.startswith("check_")
}


def check_on_a_rank(rank, world, folder):
    """Every check with all ranks, then with the first two; tells which have passed."""
    import warnings

    warnings.simplefilter("error")
    ranks.join(rank, world, folder)
    two = torch.distributed.new_group([0, 1])
    for group, size in ((None, world), (two, 2)):
        for name, check in CHECKS.items():
            if rank < size:
                check(rank, group, size)
            (folder / f"{name}-{size}-{rank}").touch()
    ranks.leave()


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    results = ranks.finish(ranks.start(check_on_a_rank, 3, folder))
    return folder, results


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_ranks_are_one_process(passed, check, world):
    folder, results = passed
    missing = [r for r in range(world) if not (folder / f"{check}-{world}-{r}").exists()]
    assert not missing, "\n".join(results[r][1][-4000:] for r in missing)
    assert [code for code, _ in results] == [0, 0, 0]


def lose_a_rank(rank, world, folder):
    ranks.join(rank, world, folder)
    # a group of its own: that of all would have to meet within this time
    group = torch.distributed.new_group(timeout=timedelta(seconds=2))
    layer = synchronize(GRU(3, 4, norm="batch"), group)
    x = torch.randn(3, 8, 3)
    output = layer(x)[0]
    if rank == 1:
        # one that is late, and then one that is no more
        time.sleep(3)
        os._exit(0)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?i)time|clos|reset|peer"):
            output.sum().backward()
        assert time.monotonic() - began < 60
        with pytest.raises(RuntimeError):
            layer(x)
        time.sleep(2)
    (folder / "told").touch()
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_dies_gives_the_others_an_error(tmp_path):
    results = ranks.finish(ranks.start(lose_a_rank, 2, tmp_path))
    assert (tmp_path / "told").exists(), results[0][1]


def test_a_single_process_is_as_without(tmp_path):
    ranks.join(0, 1, tmp_path)
    try:
        case = Case("LSTM", BatchNorm())
        alone, module = case.module(), synchronize(case.module())
        for network in (alone, module):
            packed = pack_sequence(case.sequences(), enforce_sorted=False)
            network(packed)[0].data.sum().backward()
        for p, q in zip(alone.parameters(), module.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
        assert_all_close(buffers(module), buffers(alone), 0)
    finally:
        torch.distributed.destroy_process_group()


def test_without_torch_distributed_nothing_changes():
    case = Case("GRU", BatchNorm())
    module = synchronize(case.module())
    assert not module.synchronized()
    x = torch.stack([s[:2] for s in case.sequences()], 1)
    assert torch.equal(module(x)[0], case.module()(x)[0])
    average_population(module)
