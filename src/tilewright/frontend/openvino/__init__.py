"""The importer of OpenVINO IR: `from_openvino`, and `converter` for operators of one's own."""

from tilewright.frontend.openvino.importer import from_openvino
from tilewright.frontend.openvino.registry import converter

__all__ = ["converter", "from_openvino"]
