"""Gradients of graph programs: transforms from programs to programs (`docs/gradients.md`)."""

from tilewright.graph.gradient import rules
from tilewright.graph.gradient.api import grad, jvp, value_and_grad, vjp
from tilewright.graph.gradient.constants import lift_constants, parameters_of
from tilewright.graph.gradient.custom import custom_vjp

__all__ = ["custom_vjp", "grad", "jvp", "lift_constants", "parameters_of", "rules", "value_and_grad", "vjp"]
