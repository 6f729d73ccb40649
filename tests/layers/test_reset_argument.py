"""The forms that reset= takes, what it refuses, and resets in traced programs."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm
from rnnorm import tracing

F64 = {"dtype": torch.float64}
RESET = torch.tensor([[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]).bool()
SCAN = pytest.mark.skipif(bool(rnnorm.backends()["scan"]), reason=rnnorm.backends()["scan"])


def draw(*sizes, seed=0):
    return torch.randn(*sizes, 3, generator=torch.Generator().manual_seed(seed), **F64)


def layer(cls=rnnorm.GRU, **options):
    torch.manual_seed(0)
    return cls(3, 4, **{"initial_noise": 0.0, **F64, **options})


# a native call, and one of which rows are cut
@pytest.mark.parametrize("options", [{"norm": "layer"}, {"norm": "batch", "bidirectional": True}])
def test_all_forms_of_a_batch_give_the_same(options, close):
    x, lengths = draw(5, 3), torch.tensor([5, 2, 4])
    gru, rows_first = layer(**options), layer(**options, batch_first=True)
    want, state = gru(x, lengths=lengths, reset=RESET)
    found, found_state = rows_first(x.transpose(0, 1), lengths=lengths, reset=RESET.T.contiguous())
    close((found.transpose(0, 1), found_state), (want, state))
    packed, packed_reset = (
        pack_padded_sequence(each, lengths, enforce_sorted=False) for each in (x, RESET)
    )
    found, found_state = gru(packed, reset=packed_reset)
    close(found_state, state)
    close(found.data, pack_padded_sequence(want, lengths, enforce_sorted=False).data)
    assert torch.equal(found.batch_sizes, packed.batch_sizes)
    assert torch.equal(found.sorted_indices, packed.sorted_indices)


@pytest.mark.parametrize("norm", ["layer", None])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_unbatched_input_takes_one_flag_a_frame(norm, bidirectional, batch_first, close):
    lstm = layer(rnnorm.LSTM, norm=norm, bidirectional=bidirectional, batch_first=batch_first)
    x, hx = draw(5), (torch.randn(1 + bidirectional, 4, **F64),) * 2
    output, (h, c) = lstm(x, hx, reset=RESET[:, 2])
    rows = 0 if batch_first else 1
    want, states = lstm(
        x.unsqueeze(rows), [s.unsqueeze(1) for s in hx], reset=RESET[:, 2].unsqueeze(rows)
    )
    assert output.shape == (5, 4 * (1 + bidirectional))
    close((output, h, c), (want.squeeze(rows), *[s.squeeze(1) for s in states]))


def test_a_packed_reset_may_leave_out_indices_that_change_nothing(close):
    gru, x, lengths = layer(norm="layer"), draw(5, 3), torch.tensor([5, 4, 2])
    packed = [pack_padded_sequence(x, lengths, enforce_sorted=is_sorted) for is_sorted in (0, 1)]
    resets = [
        pack_padded_sequence(RESET, lengths, enforce_sorted=is_sorted) for is_sorted in (0, 1)
    ]
    want = gru(packed[0], reset=resets[0])[1]
    close(gru(packed[0], reset=resets[1])[1], want)
    close(gru(packed[1], reset=resets[0])[1], want)


X, LENGTHS = draw(5, 3), torch.tensor([5, 2, 4])
PACKED = pack_padded_sequence(X, LENGTHS, enforce_sorted=False)
FLAGS = torch.zeros(11, dtype=torch.bool)
IN_OTHER_ORDER = pack_padded_sequence(RESET, LENGTHS.flip(0), enforce_sorted=False)


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize(
    ("x", "reset", "error", "text"),
    [
        (X, RESET.tolist(), TypeError, "reset must be a bool tensor or None, got list"),
        (X, RESET.numpy(), TypeError, "reset must be a bool tensor or None, got ndarray"),
        (X, True, TypeError, "reset must be a bool tensor or None, got bool"),
        (X, RESET.float(), TypeError, "reset must be bool, .* got torch.float32"),
        (X, RESET.long(), TypeError, "reset must be bool, .* got torch.int64"),
        (X, RESET.T, RuntimeError, r"the shape \(T, B\) of the input, \(5, 3\), got \(3, 5\)"),
        (X, RESET[:, 0], RuntimeError, r"of the input, \(5, 3\), got \(5,\)"),
        (X, RESET[:1], RuntimeError, r"of the input, \(5, 3\), got \(1, 3\)"),
        (X, RESET.unsqueeze(2), RuntimeError, r"of the input, \(5, 3\), got \(5, 3, 1\)"),
        (X[:, 0], RESET, RuntimeError, r"the shape \(T,\) of the input, \(5,\), got \(5, 3\)"),
        (X, RESET.to("meta"), RuntimeError, "device of the input, cpu, got meta"),
        (X, PACKED._replace(data=FLAGS), TypeError, "a bool tensor or None, got PackedSequence"),
        (PACKED, RESET, TypeError, "reset must be a PackedSequence, .* or None, got Tensor"),
        (PACKED, PACKED, TypeError, "reset must be bool, .* got torch.float64"),
        (PACKED, PACKED._replace(data=FLAGS[1:]), RuntimeError, r"\(11,\), got \(10,\)"),
        (PACKED, IN_OTHER_ORDER, RuntimeError, "packed as the input is"),
        (
            PACKED,
            PackedSequence(FLAGS, torch.tensor([3, 3, 3, 2]), *PACKED[2:]),
            RuntimeError,
            "packed as the input is",
        ),
    ],
)
def test_what_reset_refuses(norm, x, reset, error, text):
    gru = layer(norm=norm).eval()
    gru._warned_of_step = True
    for population in gru.children():
        population._checked = True
    with pytest.raises(error, match=text):
        gru(x, reset=reset)


def test_the_shape_that_is_asked_for_follows_batch_first():
    with pytest.raises(RuntimeError, match=r"the shape \(B, T\) of the input, \(3, 5\), got"):
        layer(batch_first=True)(X.transpose(0, 1), reset=RESET)


@pytest.mark.parametrize("cls", [rnnorm.LSTM, rnnorm.LSTMCell])
def test_a_tensor_of_steps_trains_without_statistics_over_rows(cls, close):
    step = torch.tensor([3, 0, 7])
    x = X if cls is rnnorm.LSTM else X[0]
    for norm in (None, "layer"):
        module = cls(3, 4, norm=norm, **F64)
        close(module(x, step=step), module(x))
    for norm in ("batch", rnnorm.BatchNorm(population="shared")):
        with pytest.raises(ValueError, match="step must be an int in training with batch norm"):
            cls(3, 4, norm=norm, **F64)(x, step=step)


def test_training_with_statistics_over_rows_has_no_first_pieces_of_another_age():
    gru = layer(norm="batch")
    with pytest.raises(ValueError, match="step must be 0 with reset in training with batch norm"):
        gru(X, step=2, reset=RESET)
    layer(norm="layer")(X, step=2, reset=RESET)
    gru(X, reset=RESET)
    gru.eval()(X, step=2, reset=RESET)


def test_a_batch_without_rows_has_nothing_to_reset():
    for norm in (None, "layer"):
        for bidirectional in (False, True):
            gru = layer(norm=norm, bidirectional=bidirectional)
            output, h = gru(draw(5, 0), reset=torch.zeros(5, 0, dtype=torch.bool))
            assert output.shape == (5, 0, 4 + 4 * bidirectional)
            assert h.shape == (1 + bidirectional, 0, 4)


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_frozen_copies_and_evaluation_without_gradients_see_resets(norm, close):
    lstm = layer(rnnorm.LSTM, norm=norm)
    lstm(X)
    want = lstm.eval()(X, reset=RESET)
    frozen = rnnorm.freeze(lstm)
    with torch.no_grad():
        for each in (lstm, frozen):
            each(X)
            close(each(X, reset=RESET), want)
            # without a row that is longer than another
            close(each(X, reset=torch.ones_like(RESET))[0][2], each(X[2:3])[0][0])


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_autocast_gives_the_dtypes_of_a_call_without_resets(norm, bidirectional):
    lstm = rnnorm.LSTM(3, 4, norm=norm, bidirectional=bidirectional)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = lstm(X.float(), reset=RESET)
        try:
            want, want_state = lstm(X.float())
        except RuntimeError as error:
            if "could not create a primitive" in str(error):
                pytest.skip("torch has no kernel of this dtype for this processor")
            raise
    assert output.dtype == want.dtype
    assert [s.dtype for s in state] == [s.dtype for s in want_state]


class Own(nn.Module):
    """A model with a layer that the fused kernels do not run, unless ``reset_after=True``."""

    def __init__(self, **options):
        super().__init__()
        self.layer = layer(rnnorm.GRU, **{"reset_after": False, **options})

    def forward(self, x, reset):
        return self.layer(x, reset=reset)


@SCAN
@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("norm", ["layer", rnnorm.BatchNorm(population="shared")])
def test_an_exported_layer_takes_resets_at_any_size(norm, reset_after, close):
    model = Own(norm=norm, reset_after=reset_after)
    # one minibatch of statistics
    model.layer(X)
    model.train(norm == "layer")
    T, B = torch.export.Dim("T", min=2), torch.export.Dim("B", min=2)
    sizes = {"x": {0: T, 1: B}, "reset": {0: T, 1: B}}
    program = torch.export.export(model, (X, RESET), dynamic_shapes=sizes, strict=False).module()
    close(program(X, RESET), model(X, RESET))
    x, reset = draw(7, 4, seed=1), torch.rand(7, 4) < 0.4
    close(program(x, reset), model(x, reset))


@SCAN
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"norm": "batch"}, "batch normalisation has statistics"),
        ({"norm": "layer", "bidirectional": True}, "a backward direction"),
        ({"norm": "layer", "learn_initial_state": True}, "states that are not zeros"),
    ],
)
def test_a_program_of_cut_rows_is_refused_in_words(options, why, strict):
    model = Own(**options).eval()
    with pytest.raises(Exception, match=f"reset must be None in torch.export .*{why}"):
        torch.export.export(model, (X, RESET), strict=strict)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_layer_takes_other_resets(close):
    model = Own(norm="layer").eval()
    traced = torch.jit.trace(model, (X, RESET), check_trace=False)
    other = RESET.flip(0)
    close(traced(X, other), model(X, other))
    with pytest.raises(RuntimeError, match=r"reset must be None in torch.export and torch.jit"):
        torch.jit.trace(Own(norm="batch").eval(), (X, RESET), check_trace=False)


@pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="the graph breaks at every layer")
@pytest.mark.parametrize("options", [{"norm": "layer"}, {"norm": "batch"}, {"bidirectional": True}])
def test_a_compiled_model_takes_resets(options, close):
    torch._dynamo.reset()
    model = Own(**options)
    model(X, RESET)
    compiled = torch.compile(model.eval(), backend="aot_eager")
    for seed in (1, 2):
        reset = torch.rand(5, 3, generator=torch.Generator().manual_seed(seed)) < 0.4
        close(compiled(X, reset), model(X, reset))
    torch._dynamo.reset()


@pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="torch.func hides the values of lengths")
@pytest.mark.parametrize(
    "options", [{}, {"norm": "layer", "bidirectional": True}, {"norm": "batch"}]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("form", ["reset", "lengths", "packed"])
def test_derivatives_of_torch_func_and_forward_mode_know_resets_and_lengths(options, form, close):
    gru = layer(**options)
    gru(X)
    gru._warned_of_step = True
    parameters = dict(gru.eval().named_parameters())

    def run(parameters, x, given):
        packed = PACKED._replace(data=x) if form == "packed" else x
        named = {} if form == "packed" else {form: given}
        output = torch.func.functional_call(gru, parameters, (packed,), named)[0]
        return output.data.square().sum() if form == "packed" else output.square().sum()

    given = RESET if form == "reset" else LENGTHS
    x = PACKED.data if form == "packed" else X
    plain = {name: p.detach() for name, p in parameters.items()}
    want = torch.autograd.grad(run(parameters, x, given), list(parameters.values()))
    close(list(torch.func.grad(run)(plain, x, given).values()), list(want))
    each = torch.func.vmap(lambda one: run(plain, one, given))(torch.stack([x, 2 * x]))
    close(each, torch.stack([run(plain, one, given) for one in (x, 2 * x)]))
    slope = torch.func.jvp(lambda x: run(plain, x, given), (x,), (x,))[1]
    with forward_ad.dual_level():
        dual = run(plain, forward_ad.make_dual(x, x), given)
        close(forward_ad.unpack_dual(dual).tangent, slope)
    follows = x.clone().requires_grad_()
    close((torch.autograd.grad(run(plain, follows, given), follows)[0] * x).sum(), slope)


def test_flags_that_torch_func_maps_are_refused_where_rows_would_be_cut():
    gru, native = layer(bidirectional=True, norm="layer"), layer(norm="layer")
    resets = torch.stack([RESET, RESET.flip(0)])
    mapped = torch.func.vmap(lambda each: native(X, reset=each)[0])(resets)
    torch.testing.assert_close(mapped[1], native(X, reset=resets[1])[0])
    with pytest.raises(RuntimeError, match=r"reset must have values before the call"):
        torch.func.vmap(lambda each: gru(X, reset=each)[0])(resets)


@pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="torch.func hides the values of lengths")
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("options", [{"reset": RESET}, {"lengths": LENGTHS}])
# torch has no batching rule for index_copy
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_transforms_of_torch_func_take_resets_and_lengths(norm, bidirectional, options, close):
    gru = layer(norm=norm, bidirectional=bidirectional)
    gru(X)
    gru.eval()

    def run(x):
        return gru(x, **options)[0]

    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(run(x).square().sum(), x)
    close(torch.func.grad(lambda x: run(x).square().sum())(X), grad)
    close(torch.func.vmap(run)(torch.stack([X, 2 * X]))[1], run(2 * X))
    _, tangent = torch.func.jvp(run, (X,), (X,))
    close(tangent, torch.autograd.functional.jvp(run, X, X)[1])
