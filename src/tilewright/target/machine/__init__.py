"""Machine parameters: what was fitted by measuring processors, as typed values and tables of them."""

from __future__ import annotations

from tilewright.target.machine.cpu import CpuParameters
from tilewright.target.machine.gpu import GpuParameters
from tilewright.target.machine.parameters import cpu_parameters, gpu_parameters, parameters_fingerprint

__all__ = ["CpuParameters", "GpuParameters", "cpu_parameters", "gpu_parameters", "parameters_fingerprint"]
