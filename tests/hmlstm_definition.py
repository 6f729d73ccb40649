"""A definition of HMLSTM written from the three operations of its paper, and what is compared."""

import torch

import rnnorm
from rnnorm import BatchNorm, LayerNorm

L, H, INPUTS = 3, 4, 3
LENGTHS = (6, 6, 5, 3, 3, 2)
NORMS = {
    "none": None,
    "batch": BatchNorm(gamma=0.7, eps=1e-2, min_rows=2),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", eps=1e-2, min_rows=2),
    "layer": LayerNorm(eps=1e-2),
}


class StraightThrough(torch.autograd.Function):
    """A step in the forward pass, nothing in the backward pass."""

    @staticmethod
    def forward(ctx, probability):
        return (probability > 0.5).to(probability.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


def normaliser(module, norm):
    def normalise(site, z):
        field = site.split("_")[0]
        if not getattr(norm, field, None):
            return z
        over = 0 if isinstance(norm, BatchNorm) else 1
        var = z.var(over, keepdim=True, unbiased=False)
        z = (z - z.mean(over, keepdim=True)) / (var + norm.eps).sqrt()
        z = z * getattr(module, f"gamma_{site}")
        return z + getattr(module, f"beta_{site}") if field == "cell" else z

    return normalise


def definition(module, norm, sequences, boundary="step", slope=1.0, by_cases=False):
    """Outputs, boundaries and final states of sequences that are sorted by length."""
    W, normalise = module.get_parameter, normaliser(module, norm)
    rows = len(sequences)
    h, c = ([torch.zeros(rows, H, dtype=torch.float64) for _ in range(L)] for _ in range(2))
    z = [torch.zeros(rows, 1, dtype=torch.float64) for _ in range(L)]
    outputs, found = [[] for _ in sequences], [[] for _ in sequences]
    for t in range(len(sequences[0])):
        n = sum(len(s) > t for s in sequences)
        below, z_below = torch.stack([s[t] for s in sequences[:n]]), torch.ones(n, 1).double()
        # the last inputs of a frame may be its boundaries
        below, given = below.split(
            [INPUTS - L + 1, L - 1] if boundary == "given" else [INPUTS, 0], 1
        )
        old_h, old_c, old_z = ([part[:n] for part in parts] for parts in (h, c, z))
        new = []
        for k in range(L):
            s = z_below * normalise(f"input_l{k}", below @ W(f"weight_ih_l{k}").T)
            s = s + normalise(f"recurrent_l{k}", old_h[k] @ W(f"weight_hh_l{k}").T)
            if k < L - 1:
                above = normalise(f"recurrent_above_l{k}", old_h[k + 1] @ W(f"weight_ah_l{k}").T)
                s = s + old_z[k] * above
            s = normalise(f"joint_l{k}", s) + W(f"bias_l{k}")
            i, f, o = (s[:, a * H : (a + 1) * H].sigmoid() for a in (0, 1, 3))
            g = s[:, 2 * H : 3 * H].tanh()
            update, flush = f * old_c[k] + i * g, i * g
            if by_cases:
                kept = torch.where(z_below == 1, update, old_c[k])
                c_k = torch.where(old_z[k] == 1, flush, kept)
                moves = (old_z[k] == 1) | (z_below == 1)
                h_k = torch.where(moves, o * normalise(f"cell_l{k}", c_k).tanh(), old_h[k])
            else:
                copies = (1 - old_z[k]) * (1 - z_below)
                c_k = old_z[k] * flush + (1 - old_z[k]) * z_below * update + copies * old_c[k]
                h_k = copies * old_h[k] + (1 - copies) * o * normalise(f"cell_l{k}", c_k).tanh()
            z_k = torch.zeros(n, 1).double()
            if k < L - 1 and boundary == "given":
                z_k = given[:, k : k + 1]
            elif k < L - 1:
                z_k = ((slope * s[:, 4 * H :] + 1) / 2).clamp(0, 1)
                z_k = z_k if boundary == "soft" else StraightThrough.apply(z_k)
            new.append((h_k, c_k, z_k))
            below, z_below = h_k, z_k
        now = torch.cat([h_k for h_k, _, _ in new], 1)
        gates = (now @ W("weight_go").T).sigmoid()
        W_o = W("weight_ho").split(H, 1)
        output = sum(gates[:, k : k + 1] * (new[k][0] @ W_o[k].T) for k in range(L)).relu()
        for b in range(n):
            outputs[b].append(output[b])
            found[b].append(torch.cat([z_k[b] for _, _, z_k in new[:-1]]))
        for k in range(L):
            for part, fresh in zip((h, c, z), new[k], strict=True):
                part[k] = torch.cat([fresh, part[k][n:]])
    states = torch.stack(h), torch.stack(c), torch.stack(z[:-1]).squeeze(2)
    return [torch.stack(o) for o in outputs], [torch.stack(o) for o in found], states


def draw(norm=None, num_layers=L, **options):
    torch.manual_seed(3)
    module = rnnorm.HMLSTM(
        INPUTS, H, num_layers, norm=norm, initial_noise=0.0, dtype=torch.float64, **options
    )
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "gamma" in name:
                parameter.uniform_(0.5, 1.0)
            elif "beta" in name:
                parameter.normal_()
            else:
                parameter.mul_(2)
    return module


def sequences():
    torch.manual_seed(4)
    return [torch.randn(n, INPUTS).double().requires_grad_() for n in LENGTHS]
