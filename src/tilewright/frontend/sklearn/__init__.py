"""The importer of fitted scikit-learn estimators: `from_sklearn`."""

from tilewright.frontend.sklearn.importer import from_sklearn

__all__ = ["from_sklearn"]
