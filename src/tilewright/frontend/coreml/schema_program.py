"""The schema of Core ML's programs (MIL): functions, blocks, operations, values.

Numbers and names of fields; `Nothing` is a message whose presence says all. Enumerations are their numbers.
"""

PROGRAM = """
message Program
  1 version int64
  2 functions map string Function
  4 attributes map string Value

message Function
  1 inputs NamedValueType*
  2 opset string
  3 block_specializations map string Block
  4 attributes map string Value

message Block
  1 inputs NamedValueType*
  2 outputs string*
  3 operations Operation*
  4 attributes map string Value

message Argument
  1 arguments Binding*

message Binding
  1 name string
  2 value Value

message Operation
  1 type string
  2 inputs map string Argument
  3 outputs NamedValueType*
  4 blocks Block*
  5 attributes map string Value

message NamedValueType
  1 name string
  2 type ValueType

message ValueType
  1 tensorType TensorType
  2 listType ListType
  3 tupleType TupleType
  4 dictionaryType DictionaryType
  5 stateType StateType

message TensorType
  1 dataType int32
  2 rank int64
  3 dimensions Dimension*
  4 attributes map string Value

message TupleType
  1 types ValueType*

message ListType
  1 type ValueType
  2 length Dimension

message DictionaryType
  1 keyType ValueType
  2 valueType ValueType

message StateType
  1 wrappedType ValueType

message Dimension
  1 constant ConstantDimension
  2 unknown UnknownDimension

message ConstantDimension
  1 size uint64

message UnknownDimension
  1 variadic bool

message Value
  2 type ValueType
  3 immediateValue ImmediateValue
  5 blobFileValue BlobFileValue

message ImmediateValue
  1 tensor TensorValue
  2 tuple TupleValue
  3 list ListValue
  4 dictionary DictionaryValue

message BlobFileValue
  1 fileName string
  2 offset uint64

message TensorValue
  1 floats RepeatedFloats
  2 ints RepeatedInts
  3 bools RepeatedBools
  4 strings RepeatedStrings
  5 longInts RepeatedLongInts
  6 doubles RepeatedDoubles
  7 bytes RepeatedBytes

message RepeatedFloats
  1 values float*

message RepeatedDoubles
  1 values double*

message RepeatedInts
  1 values int32*

message RepeatedLongInts
  1 values int64*

message RepeatedBools
  1 values bool*

message RepeatedStrings
  1 values string*

message RepeatedBytes
  1 values bytes

message TupleValue
  1 values Value*

message ListValue
  1 values Value*

message DictionaryValue
  1 values KeyValuePair*

message KeyValuePair
  1 key Value
  2 value Value
"""
