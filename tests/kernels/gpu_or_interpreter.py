"""Where the Triton kernels are tested: interpreted on the CPU, or on a GPU; for each to import."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="`make triton` runs these")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("`make triton` runs these, with TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

if INTERPRETED:
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    def _call(self, *args, **kwargs):
        """Call a function of a kernel, whose launch has patched Triton's language already.

        Triton would patch it again, which took half of the processor time of the tests measured.
        """
        return self.rewrite()(*args, **kwargs)

    _multiply = interpreter.InterpreterBuilder.create_dot

    def _create_dot(self, a, b, *args):
        """Multiply bfloat16 as numbers, which Triton 3.9 holds as uint16 and multiplies as such."""
        if a.dtype.is_bf16():
            a, b = (
                interpreter.TensorHandle(
                    interpreter._convert_float(t.data, tl.bfloat16, tl.float32, None).view(
                        np.float32
                    ),
                    tl.float32,
                )
                for t in (a, b)
            )
        return _multiply(self, a, b, *args)

    interpreter.InterpreterBuilder.create_dot = _create_dot
    interpreter.InterpretedFunction.__call__ = _call
    # a launch patches ``triton.language``; functions of Triton's own read ``triton.language.core``
    interpreter._patch_lang(tl.zeros.fn)
