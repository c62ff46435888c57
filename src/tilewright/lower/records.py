"""Records of tuning: what was measured of a candidate, and what was selected for a whole model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.topi.schedule.choices import Answer, answers_from_json, answers_to_json


@dataclass(frozen=True, slots=True)
class Record:
    """One measured candidate: its answers, and its time in seconds or why it has none.

    `reference` is the time of the default schedule measured beside it: their ratio cancels a machine's drift. `run` and
    `number` say when in which tuning it was measured, `compiler` which compiler's code it was
    (`support.fingerprint.compiler_name`; nothing where that is not known).
    """

    task: str
    target: str
    answers: Mapping[str, Answer]
    seconds: float | None
    error: str | None = None
    reference: float | None = None
    created: float = field(default_factory=time.time)
    run: str = ""
    number: int = 0
    compiler: str = ""

    @property
    def ok(self) -> bool:
        """Whether the candidate ran and was right."""
        return self.seconds is not None

    @property
    def relative(self) -> float | None:
        """Its time as a part of the default schedule's, if both are known."""
        if self.seconds is None or not self.reference:
            return None
        return self.seconds / self.reference

    @property
    def worth(self) -> float:
        """What records are compared by: the least is the best."""
        return math.inf if self.seconds is None else self.seconds / (self.reference or 1)

    def checked(self) -> Record:
        """The record, which came from a file; a `TypeError` says what in it cannot be."""
        _check_texts(task=self.task, target=self.target, error=self.error or "", run=self.run, compiler=self.compiler)
        _check_times(seconds=self.seconds, reference=self.reference, created=self.created)
        if not isinstance(self.number, int):
            raise TypeError(f"the number of a record is {self.number!r}")
        return self

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "answers": answers_to_json(self.answers)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Record:
        """The record that `to_json` stored."""
        return Record(**{**data, "answers": answers_from_json(data["answers"])}).checked()


@dataclass(frozen=True, slots=True)
class Selection:
    """What a whole model runs best with: answers for a task that compilation takes before those of its quickest record.

    Without answers the template decides.
    """

    task: str
    target: str
    answers: Mapping[str, Answer]
    created: float = field(default_factory=time.time)
    compiler: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "answers": answers_to_json(self.answers)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Selection:
        """The selection that `to_json` stored."""
        found = Selection(**{**data, "answers": answers_from_json(data["answers"])})
        _check_texts(task=found.task, target=found.target, compiler=found.compiler)
        _check_times(created=found.created)
        return found


def _check_texts(**texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"the {name} of a record is {text!r}, not a text")


def _check_times(**times: object) -> None:
    """Times are positive; nothing is quicker than a negative one, nor than one that is no number."""
    for name, seconds in times.items():
        if seconds is None and name != "created":
            continue
        if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise TypeError(f"the {name} of a record is {seconds!r}, not a positive number")
