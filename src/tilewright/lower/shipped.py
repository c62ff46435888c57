"""Records that come with Tilewright: the best answers for the kernels of common models, one file a processor.

A file lies in `lower/tuned` under the processor's name and holds, for each number of cores (of a GPU: of its
multiprocessors), the answers by the kernels' keys. A record of a user's database is of one exact target; these are for
all machines with that processor: what differs between them (memory, system, size of the last cache) seldom changes
which schedule is best. `bench.tune_models` and `bench.gpu_records` make the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tilewright.support.errors import CompilerBug
from tilewright.support.files import replacing
from tilewright.target import Target
from tilewright.topi.schedule.choices import Answer, answers_from_json, answers_to_json

FOLDER = Path(__file__).parent / "tuned"
Answers = Mapping[str, Mapping[str, Answer]]


def shipped_answers(target: Target) -> Answers:
    """For each kernel that was tuned on the target's processor and number of cores the best answers; often none."""
    return _read(FOLDER / _file_name(target)).get(target.cores, {})


def add_shipped(target: Target, answers: Answers) -> Path:
    """Write answers for a target's processor and number of cores, in the place of what was there for these."""
    path = FOLDER / _file_name(target)
    known = dict(_read(path))
    known[target.cores] = answers
    # A kernel a line: that is how people compare such files.
    parts = []
    for cores, items in sorted(known.items()):
        lines = [f"  {json.dumps(key)}: {json.dumps(answers_to_json(found))}" for key, found in sorted(items.items())]
        parts.append(f' "{cores}": {{\n' + ",\n".join(lines) + "\n }")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    _read.cache_clear()
    return path


def _file_name(target: Target) -> str:
    """The processor, and how long its vectors are (a hypervisor may hide the longest); the kind and family of a GPU."""
    if not target.is_cpu:
        return f"{target.kind}-{target.arch or 'any'}.json"
    return f"{target.arch}-{target.cpu}-{target.vector_bits}.json"


@cache
def _read(path: Path) -> Mapping[int, Answers]:
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            int(cores): {key: answers_from_json(found) for key, found in items.items()} for cores, items in data.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CompilerBug(f"the shipped records {path.name} cannot be read: {error}") from error
