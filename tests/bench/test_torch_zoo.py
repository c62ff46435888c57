"""The architecture command: its tables, verdicts, processes and summary, with models of our own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench import torch_zoo
from bench.architectures import ARCHITECTURES
from bench.architectures.case import Architecture, Sizes
from bench.torch_zoo import Figure
from tests.requirements import need_module

torch = need_module("torch")


class Net(torch.nn.Module):
    """A layer, and a cache of results."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(4, 3), function

    def forward(self, x):
        """A structure of results."""
        return {"first": self.function(self.layer(x)), "second": [x.sum(-1)]}


def architecture(function):
    torch.manual_seed(0)
    return Architecture(
        "Net",
        "ours",
        lambda: Net(function).eval(),
        lambda sizes: {"x": torch.randn(sizes.batch, sizes.length, 4)},
        small=Sizes(2, 3),
        large=Sizes(3, 5),
    )


@pytest.fixture(scope="module")
def ways():
    import bench.torch_ways

    return bench.torch_ways


def test_there_are_forty_architectures_of_three_packages():
    assert len(ARCHITECTURES) >= 40
    assert {item.package for item in ARCHITECTURES.values()} == {"transformers", "timm", "torchvision"}


def test_right_wrong_and_refused(ways, monkeypatch):
    subject = ways.Subject(architecture(torch.relu))
    assert ways.judge(subject, "Net", "from_torch").verdict == "right"
    assert ways.judge(subject, "Net", "torch.compile").verdict == "right"
    subject.expected[1][0] += 1
    wrong = ways.judge(subject, "Net", "from_torch")
    assert (wrong.verdict, wrong.reason.split(" differs")[0]) == ("wrong", "result 0 of the large inputs")
    unsupported = ways.Subject(architecture(lambda x: torch.multinomial(x.reshape(-1, 3).softmax(-1), 1).float() * 0))
    refused = ways.judge(unsupported, "Net", "from_torch")
    assert refused.verdict == "refused" and "multinomial" in refused.reason
    partly = ways.judge(unsupported, "Net", "torch.compile")
    assert partly.verdict == "right" and "multinomial" in partly.reason
    inward = ways.Subject(architecture(lambda x: x if bool(x.sum() > -1e9) else -x))
    assert ways.judge(inward, "Net", "from_torch").verdict == "no export"

    def broken(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(ways, "from_torch", broken)
    assert ways.judge(subject, "Net", "from_torch").verdict == "crashed"


def test_results_of_other_shapes_and_infinities_are_wrong(ways):
    for found, wanted in (
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.tensor([0.0, torch.inf])),
        (torch.tensor([torch.nan, 1.0]), torch.ones(2)),
    ):
        with pytest.raises(ways.Wrong):
            ways._compare(found, wanted, "it")
    ways._compare(torch.tensor([torch.inf, 1.0]), torch.tensor([torch.inf, 1.00001]), "it")


def test_a_process_that_dies_or_takes_too_long_is_one_row(monkeypatch):
    row = json.dumps({"architecture": "Net", "way": "from_torch", "verdict": "right", "reason": "", "seconds": 1.0})
    real = subprocess.run

    def script(text):
        def run(command, **keywords):
            return real([sys.executable, "-c", text], **keywords)

        return run

    dies = f"import os; print({row!r}, flush=True); os.abort()"
    monkeypatch.setattr(torch_zoo.subprocess, "run", script(dies))
    rows = torch_zoo.run(sys.executable, "Net", ("from_torch", "onnx"), 30)
    assert rows["from_torch"].verdict == "right"
    assert (rows["onnx"].verdict, "ended with code" in rows["onnx"].reason) == ("crashed", True)
    monkeypatch.setattr(torch_zoo.subprocess, "run", script("import time; time.sleep(60)"))
    late = torch_zoo.run(sys.executable, "Net", ("onnx",), 0.5)
    assert "not done after" in late["onnx"].reason


def test_the_summary_counts_architectures_and_ways():
    right, refused, not_exported = (Figure(verdict, "why", 1.0) for verdict in ("right", "refused", "no export"))
    figures = {
        "Llama": {"from_torch": right, "onnx": right},
        "BERT": {"from_torch": right, "onnx": refused},
        "Mixtral": {"from_torch": right, "onnx": not_exported},
        "Longformer": {"from_torch": not_exported},
    }
    summary = torch_zoo.summarize(figures)
    assert (summary["architectures"], summary["right"], summary["right_in_every_way"]) == (4, 2, 1)
    assert (summary["ways"], summary["right_ways"], summary["refused"], summary["wrong"]) == (7, 4, 1, 0)
    assert summary["not_exported"] == 2
    assert "why" in torch_zoo.render(figures)


def test_torchvision_belongs_to_torch():
    assert torch_zoo.torchvision_for("2.13.0+cpu") == "0.28.0"
