"""The messages of PaddlePaddle's programs, and the numbers of its data types."""

from __future__ import annotations

from tilewright.frontend.core.protobuf import Schema

SCHEMA = Schema("""
message Scalar
  1 type int32
  2 b bool
  3 i int64
  4 r double

message Attribute
  1 name string
  2 type int32
  3 i int32
  4 f float
  5 s bytes
  6 ints int32*
  7 floats float*
  8 strings bytes*
  10 b bool
  11 bools bool*
  12 block_idx int32
  13 l int64
  14 blocks_idx int32*
  15 longs int64*
  16 float64s double*
  17 var_name string
  18 vars_name string*
  19 float64 double
  20 scalar Scalar
  21 scalars Scalar*

message Arguments
  1 parameter string
  2 arguments string*

message Operator
  1 inputs Arguments*
  2 outputs Arguments*
  3 type string
  4 attrs Attribute*

message TensorDesc
  1 data_type int32
  2 dims int64*

message LoDTensorDesc
  1 tensor TensorDesc
  2 lod_level int32

message VarType
  1 type int32
  2 selected_rows TensorDesc
  3 lod_tensor LoDTensorDesc
  4 tensor_array LoDTensorDesc

message Variable
  1 name string
  2 type VarType
  3 persistable bool

message Block
  1 idx int32
  2 parent_idx int32
  3 vars Variable*
  4 ops Operator*

message Program
  1 blocks Block*
""")

FIELDS = (
    "i f s ints floats strings b bools block_idx l blocks_idx longs float64s var_name vars_name float64 scalar scalars"
).split()
"""The fields that attributes are held in, by the number of their type."""
TYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
}
"""Names of data types by their numbers."""
LOD_TENSOR, FEED, FETCH, ARRAY, READER, RAW = 7, 9, 10, 13, 15, 17
"""Kinds of variables."""
