"""The messages of TensorFlow's files: graphs, functions, SavedModels, and the index of checkpoints."""

from __future__ import annotations

from tilewright.frontend.core.protobuf import Schema

TYPES: dict[int, tuple[str, str]] = {
    1: ("FLOAT", "float32"),
    2: ("DOUBLE", "float64"),
    3: ("INT32", "int32"),
    4: ("UINT8", "uint8"),
    5: ("INT16", "int16"),
    6: ("INT8", "int8"),
    7: ("STRING", "string"),
    8: ("COMPLEX64", "complex64"),
    9: ("INT64", "int64"),
    10: ("BOOL", "bool"),
    11: ("QINT8", "qint8"),
    12: ("QUINT8", "quint8"),
    13: ("QINT32", "qint32"),
    14: ("BFLOAT16", "bfloat16"),
    15: ("QINT16", "qint16"),
    16: ("QUINT16", "quint16"),
    17: ("UINT16", "uint16"),
    18: ("COMPLEX128", "complex128"),
    19: ("HALF", "float16"),
    20: ("RESOURCE", "resource"),
    21: ("VARIANT", "variant"),
    22: ("UINT32", "uint32"),
    23: ("UINT64", "uint64"),
    24: ("FLOAT8_E5M2", "float8_e5m2"),
    25: ("FLOAT8_E4M3FN", "float8_e4m3fn"),
    26: ("FLOAT8_E4M3FNUZ", "float8_e4m3fnuz"),
    28: ("FLOAT8_E5M2FNUZ", "float8_e5m2fnuz"),
    29: ("INT4", "int4"),
    30: ("UINT4", "uint4"),
}
"""Element types by number: the name in texts, which begins with DT_, and ours."""
OF_REFERENCES = 100
"""How much greater the number of a type is where a reference to a variable is meant."""
_LABELS = " ".join(f"DT_{name}={number} DT_{name}_REF={number + OF_REFERENCES}" for number, (name, _) in TYPES.items())

SCHEMA = Schema(
    f"enum Type {_LABELS}\n"
    """
message Dim
  1 size int64
  2 name string

message TensorShape
  2 dim Dim*
  3 unknown_rank bool

message Tensor
  1 dtype Type
  2 tensor_shape TensorShape
  4 tensor_content bytes
  5 float_val float*
  6 double_val double*
  7 int_val int32*
  8 string_val bytes*
  9 scomplex_val float*
  10 int64_val int64*
  11 bool_val bool*
  12 dcomplex_val double*
  13 half_val int32*
  16 uint32_val uint32*
  17 uint64_val uint64*
  18 float8_val bytes

message AttrList
  2 s bytes*
  3 i int64*
  4 f float*
  5 b bool*
  6 type Type*
  7 shape TensorShape*
  8 tensor Tensor*
  9 func NameAttrs*

message NameAttrs
  1 name string
  2 attr map string Attr

message Attr
  1 list AttrList
  2 s bytes
  3 i int64
  4 f float
  5 b bool
  6 type Type
  7 shape TensorShape
  8 tensor Tensor
  9 placeholder string
  10 func NameAttrs

message Node
  1 name string
  2 op string
  3 input string*
  4 device string
  5 attr map string Attr

message Arg
  1 name string
  3 type Type
  4 type_attr string
  5 number_attr string
  6 type_list_attr string

message Op
  1 name string
  2 input_arg Arg*
  3 output_arg Arg*
  20 control_output string*

message OpList
  1 op Op*

message Function
  1 signature Op
  3 node_def Node*
  4 ret map string string
  5 attr map string Attr
  6 control_ret map string string

message Library
  1 function Function*

message Graph
  1 node Node*
  2 library Library

message TensorInfo
  1 name string
  2 dtype Type
  3 tensor_shape TensorShape

message Signature
  1 inputs map string TensorInfo
  2 outputs map string TensorInfo
  3 method_name string

message Asset
  1 tensor_info TensorInfo
  2 filename string

message Saver
  1 filename_tensor_name string
  2 save_tensor_name string
  3 restore_op_name string

message MetaInfo
  2 stripped_op_list OpList
  4 tags string*
  5 tensorflow_version string

message NodeList
  1 value string*

message Collection
  1 node_list NodeList

message MetaGraph
  1 meta_info_def MetaInfo
  2 graph_def Graph
  3 saver_def Saver
  4 collection_def map string Collection
  5 signature_def map string Signature
  6 asset_file_def Asset*

message SavedModel
  1 saved_model_schema_version int64
  2 meta_graphs MetaGraph*

message BundleHeader
  1 num_shards int32
  2 endianness int32

message Extent
  1 start int64
  2 length int64

message Slice
  1 extent Extent*

message BundleEntry
  1 dtype Type
  2 shape TensorShape
  3 shard_id int32
  4 offset int64
  5 size int64
  6 crc32c fixed32
  7 slices Slice*

message SavedSlice
  1 name string
  2 slice Slice
  3 data Tensor

message SavedSliceMeta
  1 name string
  2 shape TensorShape
  3 type Type
  4 slice Slice*

message SavedMeta
  1 tensor SavedSliceMeta*

message SavedSlices
  1 meta SavedMeta
  2 data SavedSlice
"""
)
