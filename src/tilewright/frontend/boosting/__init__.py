"""Importers of gradient-boosted trees: XGBoost (`from_xgboost`) and LightGBM (`from_lightgbm`)."""

from tilewright.frontend.boosting.lightgbm import from_lightgbm
from tilewright.frontend.boosting.xgboost import from_xgboost

__all__ = ["from_lightgbm", "from_xgboost"]
