"""The importer of PaddlePaddle inference models: `from_paddle`, and `converter` for operators of one's own."""

from tilewright.frontend.paddle.importer import from_paddle
from tilewright.frontend.paddle.registry import converter

__all__ = ["converter", "from_paddle"]
