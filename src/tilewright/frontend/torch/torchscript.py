"""TorchScript modules (`torch.jit.load`, scripted and traced ones) as exported programs.

Torch's own converter comes first. It knows few forms of branches; where it fails, the module is exported as a part of
an ordinary one: torch runs the script on tensors without values, so that branches on types and sizes are taken as the
example inputs say, and one on values is an error.
"""

from __future__ import annotations

import inspect
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
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        graph = script.inlined_graph  # its nodes live as long as it does
        written = sorted({node.s("name") for node in graph.findAllNodes("prim::SetAttr")})
        if written:
            raise UnsupportedError(
                f"the TorchScript module keeps a state from call to call (it writes its {', '.join(written)}): "
                "a compiled model has none",
                hint="compile a part of it that is given its state, such as script.network",
            ) from None
        return _exported_in_a_module(torch, script, args, kwargs)


def _exported_in_a_module(torch: Any, script: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The program of a module that calls the script."""

    class Calling(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return script(*args, **kwargs)

    names = [argument.name for argument in script.forward.schema.arguments[1:]]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *names[: len(args)], *kwargs)])
    Calling.forward.__signature__ = signature  # type: ignore[attr-defined]
    try:
        with torch.no_grad():
            return torch.export.export(Calling().eval(), args, dict(kwargs), strict=False)
    # An error of fake tensors is of no class that torch promises.
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"torch cannot convert the TorchScript module: {type(error).__name__}: {reason}", hint=_HINT
        ) from error
