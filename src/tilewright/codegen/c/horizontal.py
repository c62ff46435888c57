"""Launches that do the work of several kernels, as C text: each block finds its kernel by its number.

    if (tw_block < 24) {                                  kernel a of 12 blocks, used twice
      const int tw_use = tw_block / 12;
      const int tw_row = tw_block % 12;
      float* x_;
      switch (tw_use) { case 0: x_ = arg0; break; default: x_ = arg2; }
      ...
    } else { ... }

The code of a kernel is there once, however often it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.c.kernels import CLanguage, KernelText, emit_texts
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import Buffer
from tilewright.tir.horizontal import HorizontalLaunch, Run, block_count
from tilewright.tir.passes.split_host_device import DeviceKernel


def emit_launches(launches: Sequence[Run | HorizontalLaunch], dialect: CLanguage) -> str:
    """One program of launches, some of which do the work of several kernels."""

    def text(launch: Run | HorizontalLaunch, helpers: Helpers) -> str:
        if isinstance(launch, HorizontalLaunch):
            return _Launch(launch, dialect, helpers).emit()
        return KernelText(launch.kernel, dialect, helpers).emit()

    return emit_texts(launches, text, dialect)


class _Launch:
    """One launch being emitted."""

    def __init__(self, launch: HorizontalLaunch, dialect: CLanguage, helpers: Helpers) -> None:
        self._launch, self._dialect, self._helpers = launch, dialect, helpers
        self._lines: list[str] = []
        self._taken: set[str] = set()

    def emit(self) -> str:
        """The text of the launch's kernel."""
        launch, dialect = self._launch, self._dialect
        array = dialect.shared_array(max(kernel.shared_bytes for kernel in launch.kernels), False)
        if array is not None and any(kernel.shared for kernel in launch.kernels):
            self._lines.append(f"  {array}")
        texts = [self._text(kernel, array is None) for kernel in launch.kernels]
        self._lines.append(f"  const int tw_block = {dialect.axis('blockIdx.x')};")
        first = 0
        for text in texts:
            runs = [run for run in launch.runs if run.kernel is text.kernel]
            self._branch(text, runs, first)
            first += len(runs) * block_count(text.kernel)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        head = dialect.signature(launch.name, self._parameters(texts), threads)
        return "\n".join([f"{head} {{", *self._lines, "}", ""])

    def _text(self, kernel: DeviceKernel, declares: bool) -> KernelText:
        """The text of a kernel to be: where a language declares shared buffers, it does so in front of everything."""
        text = KernelText(kernel, self._dialect, self._helpers)
        text.values.keep_apart(self._taken)
        text.values.depth = 2
        if declares:
            for buffer in kernel.shared:
                self._lines.append(f"  {text.shared_buffer(buffer)}")
        else:
            text.place_shared()
        return text

    def _parameters(self, texts: Sequence[KernelText]) -> list[str]:
        """The launch's parameters, as the kernels that are given them declare them."""
        declared: dict[int, tuple[KernelText, Buffer]] = {}
        kernels = {id(text.kernel): text for text in texts}
        for run in self._launch.runs:
            text = kernels[id(run.kernel)]
            for number, param in zip(run.arguments, text.kernel.func.params, strict=True):
                if not isinstance(param, Buffer):
                    raise CompilerBug(f"{text.kernel.func.name}: launches are shared by kernels of buffers alone")
                declared.setdefault(number, (text, param))
        return [text.pointer(param, f"arg{number}") for number, (text, param) in declared.items()]

    def _branch(self, text: KernelText, runs: Sequence[Run], first: int) -> None:
        """What the blocks of a kernel do, the first of which has a number."""
        kernel = text.kernel
        count = block_count(kernel)
        own = f"(tw_block - {first})" if first else "tw_block"
        is_last = first + len(runs) * count == self._launch.blocks
        opening = "{" if is_last else f"if (tw_block < {first + len(runs) * count}) {{"
        self._lines.append(f"  {'else ' if first else ''}{opening}")
        if len(runs) > 1:
            self._lines += [f"    const int tw_use = {own} / {count};", f"    const int tw_row = {own} % {count};"]
        else:
            self._lines.append(f"    const int tw_row = {own};")
        self._choose(text, runs)
        guarded = kernel.block != self._launch.block
        if guarded:
            self._lines.append(f"    if ({self._dialect.axis('threadIdx.x')} < {kernel.block[0]}) {{")
        text.emit_body("tw_row")
        self._lines += [*text.values.lines, *(["    }"] if guarded else []), "  }"]

    def _choose(self, text: KernelText, runs: Sequence[Run]) -> None:
        """Give a kernel's parameters the arguments of the use at hand."""
        params = [param for param in text.kernel.func.params if isinstance(param, Buffer)]
        names = [text.values.name(param) for param in params]
        varying = [n for n in range(len(params)) if len({run.arguments[n] for run in runs}) > 1]
        for number, param in enumerate(params):
            start = "" if number in varying else f" = arg{runs[0].arguments[number]}"
            self._lines.append(f"    {text.pointer(param, names[number])}{start};")
        if varying:
            self._lines.append("    switch (tw_use) {")
            for use, run in enumerate(runs):
                case = "default" if use == len(runs) - 1 else f"case {use}"
                given = " ".join(f"{names[n]} = arg{run.arguments[n]};" for n in varying)
                self._lines.append(f"      {case}: {given} break;")
            self._lines.append("    }")
