"""The stateful way to run a model: set inputs, run, get outputs.

module = runtime.create(exe, cpu(0))
module.set_input("data", image)
module.run()
scores = module.get_output(0)
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.ndarray import NDArray, array
from tilewright.runtime.device.device import Device, cpu
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of


class GraphModule:
    """A model with remembered inputs and outputs. Not for several threads at once: use the executable for that."""

    def __init__(self, executable: Executable, device: Device) -> None:
        self.executable = executable
        self.device = device
        self._inputs: dict[str, object] = {}
        self._outputs: list[Array] | None = None

    def __repr__(self) -> str:
        ready = ", ".join(self._inputs) or "none"
        return f"GraphModule({self.executable!r} on {self.device}, inputs set: {ready})"

    def set_input(self, key: str | int | None = None, value: object = None, **params: object) -> None:
        """Remember a copy of an input by name or index, and of any given by keyword."""
        if key is not None:
            self._set(self._name(key), value)
        for name, given in params.items():
            self._set(self._name(name), given)

    def _set(self, name: str, value: object) -> None:
        info = next(info for info in self.executable.input_info if info.name == name)
        # A list takes the input's type; anything else is checked, against shape too, when the model runs.
        is_plain = isinstance(value, (list, tuple, int, float, bool))
        self._inputs[name] = array(value, info.dtype if is_plain else None, self.device)

    def _name(self, key: str | int) -> str:
        names = [info.name for info in self.executable.input_info]
        if isinstance(key, int):
            if not 0 <= key < len(names):
                raise UserError(f"the model has no input number {key}", hint=f"it has {len(names)}: {', '.join(names)}")
            return names[key]
        if key not in names:
            raise UserError(f"the model has no input '{key}'", hint=f"its inputs: {', '.join(names)}")
        return key

    def run(self, **inputs: object) -> None:
        """Run on the remembered inputs; keywords set inputs first."""
        for name, value in inputs.items():
            self._set(self._name(name), value)
        self._outputs = self.executable.run(self._inputs)

    def get_num_inputs(self) -> int:
        """How many inputs the model has."""
        return len(self.executable.input_info)

    def get_num_outputs(self) -> int:
        """How many outputs the model has."""
        return len(self.executable.output_info)

    def get_input(self, key: str | int) -> NDArray:
        """The remembered input."""
        name = self._name(key)
        value = self._inputs.get(name)
        if not isinstance(value, NDArray):
            raise UserError(f"the input '{name}' was not set", hint="call set_input first")
        return value

    def get_output(self, index: int = 0, out: object = None) -> NDArray:
        """Output number `index` of the last run; copied into `out` as well when that is given."""
        infos = self.executable.output_info
        if not 0 <= index < len(infos):
            raise UserError(f"the model has no output number {index}", hint=f"it has {len(infos)}")
        if self._outputs is None:
            raise UserError("the model has not run yet", hint="call run() before get_output()")
        result = NDArray(self._outputs[index], infos[index].dtype, self.device)
        if isinstance(out, NDArray):
            return out.copy_from(result)
        if out is not None:
            array_out = NDArray(_writable(out), infos[index].dtype, self.device)
            array_out.copy_from(result)
        return result


def _writable(out: object) -> Array:
    if not isinstance(out, np.ndarray) or not out.flags.writeable:
        raise UserError("the argument 'out' of get_output must be an NDArray or a writable numpy array")
    return out


def create(program: Executable | GraphModule, device: Device | None = None) -> GraphModule:
    """A stateful module that runs `program` on `device` (the CPU unless told)."""
    executable = program.executable if isinstance(program, GraphModule) else program
    if not isinstance(executable, Executable):
        raise UserError(f"runtime.create takes an executable (from tilewright.compile or load), not {kind_of(program)}")
    return GraphModule(executable, device or cpu())
