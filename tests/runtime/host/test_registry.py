"""The registry of host functions."""

from __future__ import annotations

import pytest

from tilewright.runtime.host import host_function, names, register
from tilewright.support.errors import CompilerBug, UserError


def test_a_name_nobody_registered_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no host function 'no_such_function'"):
        host_function("no_such_function")


def test_a_name_is_registered_once() -> None:
    for name in names():
        with pytest.raises(CompilerBug, match="registered twice"):
            register(name)(lambda values, attributes: values)
        break
    else:
        register("test_only")(lambda values, attributes: values)
        with pytest.raises(CompilerBug, match="registered twice"):
            register("test_only")(lambda values, attributes: values)
