"""TorchScript modules (`torch.jit.load`, scripted and traced ones) as exported programs, by torch's own converter."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tilewright.support.errors import UnsupportedError

_HINT = "export the module that the script was made from, with torch.export or torch.onnx"


def exported_script(
    torch: Any, script: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> Any:
    """The program of a TorchScript module, for the sizes of its example inputs: the converter knows no others."""
    from torch._export.converter import TS2EPConverter

    if dynamic_shapes is not None:
        raise UnsupportedError("a TorchScript module has the sizes of its example inputs only", hint=_HINT)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Torch wants to be rid of TorchScript, and says so at each conversion.
            warnings.simplefilter("ignore", DeprecationWarning)
            return TS2EPConverter(script, args, dict(kwargs)).convert()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"torch cannot convert the TorchScript module: {type(error).__name__}: {reason}", hint=_HINT
        ) from error
