"""The schema of Core ML's files."""

from tilewright.frontend.core.protobuf import Schema
from tilewright.frontend.coreml.schema_layers import LAYERS
from tilewright.frontend.coreml.schema_model import MODEL
from tilewright.frontend.coreml.schema_network import NETWORK
from tilewright.frontend.coreml.schema_program import PROGRAM

SCHEMA = Schema(MODEL + NETWORK + LAYERS + PROGRAM)
