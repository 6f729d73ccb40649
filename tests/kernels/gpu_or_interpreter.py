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
    import triton.language as tl
    from triton.runtime import interpreter

    def _call(self, *args, **kwargs):
        """Call a function of a kernel without patching Triton's language where the kernel has.

        Triton patches it anew at each call, which takes half of the interpreter's time.
        """
        languages = [each for each in self.fn.__globals__.values() if each is tl or each is tl.core]
        if any(tl.core.is_builtin(each.load) for each in languages):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = _call
