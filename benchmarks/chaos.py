"""How far float32 is from float64 after many steps, by norm and γ: the table of docs/norms.md."""

import argparse
import copy

import torch

import rnnorm

GAMMAS = (1.0, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1)
CASES = {
    **{f"LSTM layer, γ = {g}": ("LSTM", rnnorm.LayerNorm(gamma=g)) for g in GAMMAS},
    **{
        f"LSTM layer, γ = {g} at {site}": ("LSTM", rnnorm.LayerNorm(gamma={site: g}))
        for site, g in (("recurrent", 0.7), ("cell", 0.5), ("input", 0.5))
    },
    "LSTM layer, γ = 1, no cell site": ("LSTM", rnnorm.LayerNorm(cell=False)),
    'LSTM layer, γ = 1, over="gate"': ("LSTM", rnnorm.LayerNorm(over="gate")),
    **{f"LSTM rms, γ = {g}": ("LSTM", rnnorm.RMSNorm(gamma=g)) for g in (1.0, 0.5)},
    **{f"LSTM batch, γ = {g}": ("LSTM", rnnorm.BatchNorm(gamma=g)) for g in (1.0, 0.1)},
    "LSTM none": ("LSTM", None),
    **{f"{cell} layer, γ = 1.0": (cell, rnnorm.LayerNorm()) for cell in ("GRU", "RNN")},
}


def differences(cell: str, norm: object, kernel: str, steps: list[int], seed: int) -> list[float]:
    """Return the root mean square of float32 minus the reference in float64, after some steps."""
    torch.manual_seed(seed)
    layer = getattr(rnnorm, cell)(40, 320, norm=norm, initial_noise=0.0)
    x = torch.randn(max(steps), 80, 40)
    exact = copy.deepcopy(layer).double()
    with torch.no_grad():
        with rnnorm.use_backend("reference"):
            want, _ = exact(x.double())
        with rnnorm.use_backend(kernel):
            found, _ = layer(x)
    off = (found.double() - want).square().flatten(1).mean(1).sqrt()
    return [off[step - 1].item() for step in steps]


def main() -> None:
    """Print a line for each case, with the largest of the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if min(options.seeds, *options.steps) < 1:
        parser.error("--steps and --seeds must be 1 or more")
    for name, (cell, norm) in CASES.items():
        for kernel in ("reference", "cpu"):
            try:
                runs = [
                    differences(cell, norm, kernel, options.steps, seed)
                    for seed in range(options.seeds)
                ]
            except RuntimeError as error:
                print(f"{name:36}{kernel:10}{error}", flush=True)
                continue
            worst = "".join(f"{max(each):10.0e}" for each in zip(*runs, strict=True))
            print(f"{name:36}{kernel:10}{worst}", flush=True)


if __name__ == "__main__":
    main()
