import pytest
import torch
from torch.nn import functional

from rnnorm.experiments.models.measures import cross_entropy


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_it_is_not_rounded_to_half_precision(dtype):
    torch.manual_seed(0)
    scores, targets = torch.randn(200, 50).to(dtype), torch.randint(50, (200,))
    found = cross_entropy(scores, targets)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    expected = functional.cross_entropy(scores.double(), targets)
    # of float32 the last bits depend on the order of the sum
    rtol = 1e-7 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=0)
    each = cross_entropy(scores, targets, reduction="none", ignore_index=int(targets[0]))
    assert each.shape == targets.shape
    assert each[0] == 0
