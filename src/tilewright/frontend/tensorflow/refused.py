"""Operators that are refused for a reason of principle, and what to do instead."""

from __future__ import annotations

_TRAINING = ("it belongs to training", "export the model for inference")
_FILES = ("it decodes a file", "decode it before the model runs, and import the rest: inputs=[...]")
_RANDOM = (
    "it draws random numbers that TensorFlow alone reproduces",
    "export the model for inference (training=False), or make the numbers an input",
)
_STATISTICS = ("it is a function of statistics", "compute it outside of the model, or register a converter")
_FACTORS = ("it has no conversion", "compute it outside of the model")
_FUSED = ("a runtime has made it for one machine", "give the graph before it was optimised")

_GROUPS: tuple[tuple[tuple[str, str], str], ...] = (
    (_FILES, "DecodeJpeg DecodePng DecodeImage DecodeBmp DecodeGif DecodeRaw ParseExample ParseExampleV2 ReadFile"),
    (_RANDOM, "StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2"),
    (_RANDOM, "StatelessRandomGetKeyCounter TruncatedNormal RandomShuffle RandomGammaV3 StatefulUniform"),
    (_STATISTICS, "Erfinv Ndtri Lgamma Digamma Igamma Igammac Polygamma Zeta Betainc BesselI0e BesselI1e"),
    (_FACTORS, "LogMatrixDeterminant Lu MatrixExponential MatrixSquareRoot MatrixLogarithm"),
)
_REASONS = {name: reason for reason, names in _GROUPS for name in names.split()}


def reason_of(operator: str) -> tuple[str, str] | None:
    """Why an operator is refused, and what to do; None if there is no reason of principle."""
    if operator in _REASONS:
        return _REASONS[operator]
    if operator.startswith(("_Fused", "_Mkl")):
        return _FUSED
    is_gradient = operator.endswith(("Grad", "GradV2", "GradV3", "BackpropFilter")) or "Apply" in operator
    return _TRAINING if is_gradient else None
