"""Floor 12: the learned tuner. Spaces of schedules, features, cost models, search, measurement.

    report = tw.tune.tune_model("resnet18.onnx", trials=500, threads=1)
    exe = tw.compile("resnet18.onnx", threads=1)          # asks the same database

Names are loaded when first used: a process that only builds or runs candidates needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.lower.database import Database
    from tilewright.lower.records import Record
    from tilewright.tune.board_measure import BoardMeasurer
    from tilewright.tune.cluster import ClusterMeasurer
    from tilewright.tune.cost import CostModel, RandomModel, TreeModel
    from tilewright.tune.device_measure import DeviceMeasurer
    from tilewright.tune.forest import Forest
    from tilewright.tune.measure import LocalMeasurer, Measurement, Measurer
    from tilewright.tune.model import tune_model
    from tilewright.tune.neural import NeuralModel
    from tilewright.tune.remote import RemoteMeasurer
    from tilewright.tune.report import write_report
    from tilewright.tune.rules import tiled_contraction
    from tilewright.tune.space import Space
    from tilewright.tune.task import Task, extract_tasks
    from tilewright.tune.templates import Config, Template, template
    from tilewright.tune.tuner import Progress, Report, TuneOptions, tune

_NAMES = {
    "BoardMeasurer": "board_measure",
    "ClusterMeasurer": "cluster",
    "Config": "templates",
    "CostModel": "cost",
    "DeviceMeasurer": "device_measure",
    "Forest": "forest",
    "LocalMeasurer": "measure",
    "Measurement": "measure",
    "Measurer": "measure",
    "NeuralModel": "neural",
    "Progress": "tuner",
    "RandomModel": "cost",
    "RemoteMeasurer": "remote",
    "Report": "tuner",
    "Space": "space",
    "Task": "task",
    "Template": "templates",
    "TreeModel": "cost",
    "TuneOptions": "tuner",
    "extract_tasks": "task",
    "template": "templates",
    "tiled_contraction": "rules",
    "tune": "tuner",
    "tune_model": "model",
    "write_report": "report",
}
_STORED = {"Database": "database", "Record": "records"}

__all__ = [
    "BoardMeasurer",
    "ClusterMeasurer",
    "Config",
    "CostModel",
    "Database",
    "DeviceMeasurer",
    "Forest",
    "LocalMeasurer",
    "Measurement",
    "Measurer",
    "NeuralModel",
    "Progress",
    "RandomModel",
    "Record",
    "RemoteMeasurer",
    "Report",
    "Space",
    "Task",
    "Template",
    "TreeModel",
    "TuneOptions",
    "extract_tasks",
    "template",
    "tiled_contraction",
    "tune",
    "tune_model",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name in _STORED:
        place = f"tilewright.lower.{_STORED[name]}"
    elif name in _NAMES:
        place = f"tilewright.tune.{_NAMES[name]}"
    else:
        raise AttributeError(f"module 'tilewright.tune' has no attribute {name!r}")
    value: object = getattr(import_module(place), name)
    globals()[name] = value
    return value
