"""A PyTorch module three ways: imported and compiled, with a batch size that varies, and through `torch.compile`.

Run it with `python examples/torch_module.py`; it needs torch (`pip install 'tilewright[torch]'`).
"""

from __future__ import annotations

import sys

import tilewright as tw

try:
    import torch
    from torch import nn
except ImportError:
    print("this example needs torch: pip install 'tilewright[torch]'")
    sys.exit(0)


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 10, 32)
    with torch.no_grad():
        expected = model(x)

    exe = tw.compile(tw.frontend.from_torch(model, (x,)))
    torch.testing.assert_close(exe(x), expected, rtol=1e-4, atol=1e-4)
    print("compiled:", tuple(exe(x).shape))

    shapes = {"src": {0: torch.export.Dim("batch")}}
    open_batch = tw.compile(tw.frontend.from_torch(model, (x,), dynamic_shapes=shapes))
    with torch.no_grad():
        for batch in (1, 3):
            more = torch.randn(batch, 10, 32)
            torch.testing.assert_close(open_batch(more), model(more), rtol=1e-4, atol=1e-4)
    print("any batch size: fine")

    with torch.no_grad():
        quick = torch.compile(model, backend="tilewright")
        torch.testing.assert_close(quick(x), expected, rtol=1e-4, atol=1e-4)
    print("torch.compile: fine")


if __name__ == "__main__":
    main()
