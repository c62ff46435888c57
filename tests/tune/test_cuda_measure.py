"""Measuring on an NVIDIA GPU: candidates that fault, hang, do nothing or ask for too much lose only themselves."""

from __future__ import annotations

from dataclasses import replace

from tests.requirements import need
from tests.tune.test_device_measure import product
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.compiler import Compilation
from tilewright.lower.kernel import CompiledKernel
from tilewright.tune.device_measure import DeviceMeasurer
from tilewright.tune.measure import Limits
from tilewright.tune.space import Point
from tilewright.tune.task import Task, extract_tasks

KERNELS = {
    "fault": "float* p = (float*)8; p[threadIdx.x * 1000000] = 1.0f;",
    "hang": "while (a[0] < 1e30f) {}",
    "nothing": "",
}
"""What stands for the bodies of a candidate's kernels; their first argument is an array around zero."""
_MUCH = 1 << 20


class Spoiling(DeviceMeasurer):
    """Exchanges the code of some candidates, by their answers."""

    spoiled: dict[str, str]

    def code(self, task: Task, point: Point) -> CompiledKernel:
        made = super().code(task, point)
        how = self.spoiled.get(str(point))
        assert made.device is not None
        if how == "memory":
            launches = tuple(replace(launch, dynamic_bytes=_MUCH) for launch in made.device.launches)
            return replace(made, device=replace(made.device, launches=launches))
        if how is None:
            return made
        texts = [
            f'extern "C" __global__ void {launch.symbol}(volatile float* a) {{ {KERNELS[how]} }}'
            for launch in made.device.launches
        ]
        return replace(made, code=compile_cuda("\n".join(texts), task.target.arch))


def test_bad_candidates_lose_only_themselves() -> None:
    need("cuda")
    (task,) = extract_tasks(Compilation(product(64), "cuda").lowered)
    space = task.space()
    points = [space.canonical({"tile": option}) for option in space.questions["tile"].options[:9]]
    with Spoiling(4, limits=Limits(run_seconds=5.0)) as measurer:
        names = ("fault", "hang", "nothing", "memory")
        measurer.spoiled = {str(point): name for point, name in zip(points[1::2], names, strict=True)}
        results = list(measurer.measure(task, points))
        errors = [result.error for result in results]
        assert [error is None for error in errors] == [number % 2 == 0 for number in range(9)], errors
        for error, words in zip(
            errors[1::2], ("ILLEGAL_ADDRESS", "took more than 5 s", "wrong result", "CUDA_ERROR"), strict=True
        ):
            assert error is not None and words in error
        # The process was started again after the fault and after the hang.
        assert measurer._runner.starts == 3
        assert all(0 < (result.seconds or 0) < 1e-3 for result in results[::2])
