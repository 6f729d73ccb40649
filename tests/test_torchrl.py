"""TorchRL's modules with layers of rnnorm, where TorchRL is installed."""

import pytest
import torch

import rnnorm

pytest.importorskip("torchrl")
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import InitTracker, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.custom import PendulumEnv
from torchrl.envs.transforms import CatTensors, UnsqueezeTransform
from torchrl.modules import ValueOperator, set_recurrent_mode
from torchrl.objectives.value import GAE

from rnnorm.torchrl import GRUModule, LSTMModule
from rnnorm.tracing import RELEASE

pytestmark = pytest.mark.filterwarnings("ignore")
MODULES = {"LSTM": LSTMModule, "GRU": GRUModule}


def make(name, norm="layer", **options):
    torch.manual_seed(0)
    states = ["h", "c"] if name == "LSTM" else ["h"]
    keys = {"in_keys": ["x", *states], "out_keys": ["y", *(("next", s) for s in states)]}
    options = {"num_layers": 2, "norm": norm, "dtype": torch.float64, **options}
    return MODULES[name](3, 4, **keys, **options).eval()


def window(*shape, begins=0.3):
    torch.manual_seed(1)
    x = torch.randn(*shape, 3, dtype=torch.float64)
    return TensorDict({"x": x, "is_init": torch.rand(*shape, 1) < begins}, shape)


def states_of(module):
    return module.in_keys[1 : len(module.out_keys)]


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 3, 9)], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_a_window_is_its_steps_one_by_one(name, shape, norm, learn):
    module = make(name, norm, learn_initial_state=learn, step_key="age" if norm else None)
    layer = getattr(module, module.name)
    for parameter in (p for n, p in layer.named_parameters() if n.endswith("_0")):
        torch.nn.init.normal_(parameter)
    if norm == "batch":
        layer.train()(torch.randn(9, 12, 3, dtype=torch.float64))
        layer.eval()
    data = window(*shape)
    # a window begins amid trajectories, from states of its own
    age, found = torch.full((*shape[:-1], 1), 4), []
    step = data[..., 0].select("x", "is_init").clone()
    for s in states_of(module):
        step[s] = torch.randn(*shape[:-1], 2, 4, dtype=torch.float64)
        data[s] = step[s].unsqueeze(len(shape) - 1).expand(*shape, 2, 4).clone()
    ages = []
    for t in range(shape[-1]):
        step["x"], step["is_init"] = data["x"][..., t, :], data["is_init"][..., t, :]
        age = torch.where(step["is_init"], 0, age)
        step["age"] = age
        ages.append(age)
        module(step)
        found.append(step.select("y", "next").clone())
        for s in states_of(module):
            step[s] = step["next", s]
        age = age + 1
    data["age"] = torch.stack(ages, len(shape) - 1)
    with set_recurrent_mode(True):
        module(data)
    for t, one in enumerate(found):
        torch.testing.assert_close(data["y"][..., t, :], one["y"])
        for s in states_of(module):
            torch.testing.assert_close(data["next", s][..., t, :, :], one["next", s])


@pytest.mark.parametrize("name", MODULES)
def test_without_a_norm_it_is_torchrls_own(name):
    import torchrl.modules

    module, data = make(name, None), window(3, 9)
    for s in states_of(module):
        # the primer's default, zeros, stands where a trajectory begins
        data[s] = torch.where(
            data["is_init"].unsqueeze(-1), 0, torch.randn(3, 9, 2, 4, dtype=torch.float64)
        )
    theirs = getattr(torchrl.modules, f"{name}Module")(
        3, 4, 2, in_keys=module.in_keys[:-1], out_keys=module.out_keys
    ).double()
    theirs.load_state_dict(module.state_dict())
    other = data.clone()
    with set_recurrent_mode(True):
        module(data), theirs(other)
    torch.testing.assert_close(data["y"], other["y"])
    ends = torch.cat([data["is_init"][:, 1:, 0], torch.ones(3, 1, dtype=torch.bool)], 1)
    for s in states_of(module):
        torch.testing.assert_close(data["next", s][ends], other["next", s][ends])


def test_gradients_reach_states_and_weights():
    module, data = make("LSTM"), window(3, 6, begins=0)
    data["h"], data["c"] = (torch.randn(3, 6, 2, 4, dtype=torch.float64) for _ in range(2))
    first = data["h"].requires_grad_()
    with set_recurrent_mode(True):
        module(data)["y"].sum().backward()
    assert first.grad[:, 0].any()
    assert not first.grad[:, 1:].any()
    assert all(p.grad is not None for p in module.parameters())


def test_a_layer_of_ones_own_is_taken_and_torchs_refused():
    layer = rnnorm.LSTM(3, 4, norm="layer", batch_first=True)
    module = LSTMModule(lstm=layer, in_key="x", out_key="y", default_recurrent_mode=True)
    assert module.lstm is layer
    assert module.recurrent_mode
    data = window(2, 5)
    assert module(data.set("x", data["x"].float()))["y"].shape == (2, 5, 4)
    with pytest.raises(TypeError, match=r"lstm must be a rnnorm.LSTM, got LSTM"):
        LSTMModule(lstm=torch.nn.LSTM(3, 4, batch_first=True), in_key="x", out_key="y")
    with pytest.raises(ValueError, match="gru must be given alone"):
        GRUModule(3, 4, gru=rnnorm.GRU(3, 4, batch_first=True), in_key="x", out_key="y")
    with pytest.raises(ValueError, match="batch_first"):
        GRUModule(3, 4, batch_first=False, in_key="x", out_key="y")
    with pytest.raises(RuntimeError, match="drop its norm"):
        module.make_python_based()


def test_what_is_missing_is_named():
    module = make("LSTM")
    with pytest.raises(KeyError, match="is_init"):
        module(window(3).exclude("is_init"))
    with pytest.raises(RuntimeError, match="all or none of the states"):
        module(window(3).set("h", torch.zeros(3, 2, 4, dtype=torch.float64)))
    with set_recurrent_mode(True), pytest.raises(ValueError, match="time"):
        module(window())


def test_the_primer_has_the_sizes_of_the_states():
    module = LSTMModule(3, 4, 2, proj_size=2, norm="layer", in_key="x", out_key="y")
    sizes = {
        key: tuple(spec.shape) for key, spec in module.make_tensordict_primer().primers.items()
    }
    assert sizes == {"recurrent_state_h": (2, 2), "recurrent_state_c": (2, 4)}


@pytest.mark.parametrize("options", [{"shifted": True}, {"deactivate_vmap": True}, {}], ids=str)
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("name", MODULES)
def test_an_environment_and_an_estimate_of_advantages_run_a_policy(name, norm, options):
    torch.manual_seed(0)
    angles = ["th", "thdot"]
    env = TransformedEnv(SerialEnv(3, PendulumEnv))
    env.append_transform(UnsqueezeTransform(dim=-1, in_keys=angles, in_keys_inv=angles))
    env.append_transform(CatTensors(angles, "observation", del_keys=False))
    env.append_transform(InitTracker()).append_transform(StepCounter(max_steps=5))
    keys = {"in_key": "observation", "out_key": "features", "step_key": norm and "step_count"}
    module = MODULES[name](2, 4, norm=norm, **keys)
    layer = getattr(module, module.name)
    layer(torch.randn(12, 5, 2))
    layer.eval()
    env.append_transform(module.make_tensordict_primer())
    actor = TensorDictModule(torch.nn.Linear(4, 1), in_keys=["features"], out_keys=["action"])
    policy = TensorDictSequential(module, actor)
    with torch.no_grad():
        data = env.rollout(12, policy, break_when_any_done=False)
    assert data["is_init"].sum() == 3 * 3
    head = ValueOperator(torch.nn.Linear(4, 1), in_keys=["features"])
    value = TensorDictSequential(module, head)
    estimate = GAE(gamma=0.9, lmbda=0.9, value_network=value, **options)
    with set_recurrent_mode(True), torch.no_grad():
        again = policy(data.select(*policy.in_keys))
        torch.testing.assert_close(again["action"], data["action"])
        if norm == "batch" and not options:
            with pytest.raises(RuntimeError, match=r"mapped by torch.func.vmap"):
                estimate(data)
        else:
            estimate(data)
            assert data["advantage"].isfinite().all()


@pytest.mark.slow
@pytest.mark.skipif(RELEASE < (2, 13), reason="the compiler of this torch does not take layers")
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_module_computes_the_same(name, norm, recurrent):
    torch._dynamo.reset()
    module, data = make(name, norm), window(3, 6)
    data = data if recurrent else data[:, 0].clone()
    with set_recurrent_mode(recurrent):
        expected = module(data.clone())
        found = torch.compile(module, backend="aot_eager")(data.clone())
    for key in module.out_keys:
        torch.testing.assert_close(found[key], expected[key])
