"""The libraries that the bindings open, exported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings import models as exporter


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `python bindings/models.py` writes."""
    folder = tmp_path_factory.mktemp("models")
    exporter.main([str(folder)])
    return folder


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what a binding builds: its tests and its example share it."""
    return tmp_path_factory.mktemp("build")
