"""Writes the header with the equations of all cells: python csrc/generate.py FOLDER/cells.h.

The building of the package runs it, in an environment that need not have torch.
"""

import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


class Function:
    """A function of torch: it is handed to the first argument that asks for it, as by torch."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *args, **kwargs):
        """Return what the first argument of that kind makes of a call."""
        flat = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
        handler = next(a for a in flat if hasattr(type(a), "__torch_function__"))
        return type(handler).__torch_function__(self, (), args, kwargs)


class Module(ModuleType):
    """A module of torch's, which has every class and function."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() else Function(name)
        setattr(self, name, value)
        return value


for module in ("torch", "torch.nn", "torch.nn.functional"):
    sys.modules[module] = Module(module)
sys.modules["torch"].is_grad_enabled = lambda: True

from rnnorm.cells.gru import GRU  # noqa: E402
from rnnorm.cells.indrnn import IndRNN  # noqa: E402
from rnnorm.cells.ligru import LiGRU  # noqa: E402
from rnnorm.cells.lstm import LSTM  # noqa: E402
from rnnorm.cells.rnn import RNN  # noqa: E402
from rnnorm.kernels.cpu.generate import headers  # noqa: E402
from rnnorm.kernels.equations.trace import trace  # noqa: E402

# by the names in csrc/pass.h; an LSTM's peepholes may be absent
CELLS = {
    "Lstm": LSTM("all"),
    "Gru": GRU(),
    "GruBoth": GRU("both"),
    "LiGru": LiGRU(),
    "RnnTanh": RNN(),
    "RnnRelu": RNN("relu"),
    "IndRnnTanh": IndRNN("tanh"),
    "IndRnnRelu": IndRNN(),
}

if __name__ == "__main__":
    graphs = {name: trace(cell) for name, cell in CELLS.items()}
    header, text = Path(sys.argv[1]), headers(graphs, optional=["Lstm"])
    # nothing is compiled again where the text is as before
    if not header.exists() or header.read_text() != text:
        header.write_text(text)
