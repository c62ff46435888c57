"""What decides the code of a program beside the program and the sources of Tilewright: part of names in caches."""

from __future__ import annotations

from tilewright.backends.compiler import compiler_of
from tilewright.support.fingerprint import packages_fingerprint
from tilewright.target import Target
from tilewright.target.machine import parameters_fingerprint


def target_parts(target: Target) -> list[str]:
    """The target with all its numbers, and the versions of everything that makes code for it.

    The whole target: schedules depend on its caches and on how many cores share the work, and on what was measured of
    its processor, which a table of the user's may say.
    """
    versions = compiler_of(target.kind).version(), packages_fingerprint("numpy")
    return [str(target), parameters_fingerprint(target), *versions]
