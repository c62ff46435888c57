"""The messages of Caffe's files, with those of its forks for detection; the weights of a file by themselves.

Forks gave the same numbers to different fields: layers that only they have (from 200001 on) are read from texts, where
fields have names.
"""

from __future__ import annotations

from tilewright.frontend.core.protobuf import Schema

_BLOBS = """
enum StorageType DOUBLE=0 FLOAT=1 FLOAT16=2 INT=3 UINT=4

message BlobShape
  1 dim int64*

message BlobProto
  7 shape BlobShape
  5 data float*
  8 double_data double*
  10 raw_data_type StorageType
  12 raw_data bytes
  1 num int32
  2 channels int32
  3 height int32
  4 width int32
"""

WEIGHTS = Schema(
    _BLOBS
    + """
message NetParameter
  1 name string
  2 layers V1LayerParameter*
  100 layer LayerParameter*

message LayerParameter
  1 name string
  7 blobs BlobProto*

message V1LayerParameter
  1 layer V0LayerParameter
  4 name string
  6 blobs BlobProto*

message V0LayerParameter
  1 name string
  50 blobs BlobProto*
"""
)
"""What is read of a .caffemodel whose net is in a text beside it."""

_SHARED_OPTIONS = (
    ("accuracy", "Accuracy", 102, 27),
    ("argmax", "ArgMax", 103, 23),
    ("batch_norm", "BatchNorm", 139, 0),
    ("bias", "Bias", 141, 0),
    ("concat", "Concat", 104, 9),
    ("convolution", "Convolution", 106, 10),
    ("crop", "Crop", 144, 0),
    ("data", "Data", 107, 11),
    ("detection_output", "DetectionOutput", 147, 0),
    ("dummy_data", "DummyData", 109, 26),
    ("eltwise", "Eltwise", 110, 24),
    ("elu", "ELU", 140, 0),
    ("embed", "Embed", 137, 0),
    ("exp", "Exp", 111, 41),
    ("flatten", "Flatten", 135, 0),
    ("image_data", "ImageData", 115, 15),
    ("inner_product", "InnerProduct", 117, 17),
    ("input", "Input", 143, 0),
    ("log", "Log", 134, 0),
    ("lrn", "LRN", 118, 18),
    ("memory_data", "MemoryData", 119, 22),
    ("mvn", "MVN", 120, 34),
    ("norm", "Normalize", 149, 0),
    ("parameter", "Parameter", 145, 0),
    ("permute", "Permute", 148, 0),
    ("pooling", "Pooling", 121, 19),
    ("power", "Power", 122, 21),
    ("prelu", "PReLU", 131, 0),
    ("prior_box", "PriorBox", 150, 0),
    ("recurrent", "Recurrent", 146, 0),
    ("reduction", "Reduction", 136, 0),
    ("relu", "ReLU", 123, 30),
    ("reshape", "Reshape", 133, 0),
    ("roi_pooling", "ROIPooling", 8266711, 0),
    ("scale", "Scale", 142, 0),
    ("slice", "Slice", 126, 31),
    ("softmax", "Softmax", 125, 39),
    ("threshold", "Threshold", 128, 25),
    ("tile", "Tile", 138, 0),
    ("transform", "Transformation", 100, 36),
    ("interp", "Interp", 200001, 0),
    ("upsample", "Upsample", 200002, 0),
    ("shuffle_channel", "ShuffleChannel", 200003, 0),
    ("relu6", "ReLU", 200004, 0),
)
"""Options of layers: their field `<name>_param`, their message, its numbers in layers of version 2 and 1 (0: none)."""


def _options(version: int) -> str:
    place = 2 if version == 2 else 3
    lines = [f"  {item[place]} {item[0]}_param {item[1]}Parameter" for item in _SHARED_OPTIONS if item[place]]
    return "\n".join(lines)


NET = Schema(
    _BLOBS
    + f"""
enum Phase TRAIN=0 TEST=1
enum LayerType NONE=0 ABSVAL=35 ACCURACY=1 ARGMAX=30 BNLL=2 CONCAT=3 CONTRASTIVE_LOSS=37 CONVOLUTION=4 DATA=5 DECONVOLUTION=39 DROPOUT=6 DUMMY_DATA=32 EUCLIDEAN_LOSS=7 ELTWISE=25 EXP=38 FLATTEN=8 HDF5_DATA=9 HDF5_OUTPUT=10 HINGE_LOSS=28 IM2COL=11 IMAGE_DATA=12 INFOGAIN_LOSS=13 INNER_PRODUCT=14 LRN=15 MEMORY_DATA=29 MULTINOMIAL_LOGISTIC_LOSS=16 MVN=34 POOLING=17 POWER=26 RELU=18 SIGMOID=19 SIGMOID_CROSS_ENTROPY_LOSS=27 SILENCE=36 SOFTMAX=20 SOFTMAX_LOSS=21 SPLIT=22 SLICE=33 TANH=23 WINDOW_DATA=24 THRESHOLD=31
enum PoolMethod MAX=0 AVE=1 STOCHASTIC=2
enum RoundMode CEIL=0 FLOOR=1
enum EltwiseOp PROD=0 SUM=1 MAX=2
enum NormRegion ACROSS_CHANNELS=0 WITHIN_CHANNEL=1
enum ReductionOp SUM=1 ASUM=2 SUMSQ=3 MEAN=4
enum CodeType CORNER=1 CENTER_SIZE=2 CORNER_SIZE=3

message NetParameter
  1 name string
  3 input string*
  8 input_shape BlobShape*
  4 input_dim int32*
  6 state NetState
  100 layer LayerParameter*
  2 layers V1LayerParameter*

message NetState
  1 phase Phase = TEST
  2 level int32
  3 stage string*

message NetStateRule
  1 phase Phase
  2 min_level int32
  3 max_level int32
  4 stage string*
  5 not_stage string*

message ParamSpec
  1 name string

message LayerParameter
  1 name string
  2 type string
  3 bottom string*
  4 top string*
  6 param ParamSpec*
  7 blobs BlobProto*
  8 include NetStateRule*
  9 exclude NetStateRule*
{_options(2)}

message V1LayerParameter
  1 layer V0LayerParameter
  2 bottom string*
  3 top string*
  4 name string
  5 type LayerType
  6 blobs BlobProto*
  32 include NetStateRule*
  33 exclude NetStateRule*
  1001 param string*
{_options(1)}

message V0LayerParameter
  1 name string
  2 type string
  3 num_output uint32
  4 biasterm bool = true
  7 pad uint32
  8 kernelsize uint32
  9 group uint32 = 1
  10 stride uint32 = 1
  11 pool PoolMethod = MAX
  13 local_size uint32 = 5
  14 alpha float = 1
  15 beta float = 0.75
  22 k float = 1
  19 batchsize uint32
  20 cropsize uint32
  50 blobs BlobProto*
  104 concat_dim uint32 = 1

message TransformationParameter
  3 crop_size uint32

message AccuracyParameter
  1 top_k uint32 = 1

message ArgMaxParameter
  1 out_max_val bool
  2 top_k uint32 = 1
  3 axis int32

message ConcatParameter
  2 axis int32 = 1
  1 concat_dim uint32 = 1

message BatchNormParameter
  1 use_global_stats bool
  3 eps float = 1e-5
  7 scale_bias bool

message BiasParameter
  1 axis int32 = 1
  2 num_axes int32 = 1

message ScaleParameter
  1 axis int32 = 1
  2 num_axes int32 = 1
  4 bias_term bool

message ConvolutionParameter
  1 num_output uint32
  2 bias_term bool = true
  3 pad uint32*
  4 kernel_size uint32*
  6 stride uint32*
  18 dilation uint32*
  9 pad_h uint32
  10 pad_w uint32
  11 kernel_h uint32
  12 kernel_w uint32
  13 stride_h uint32
  14 stride_w uint32
  5 group uint32 = 1
  16 axis int32 = 1

message CropParameter
  1 axis int32 = 2
  2 offset uint32*

message DataParameter
  4 batch_size uint32
  5 crop_size uint32

message ImageDataParameter
  4 batch_size uint32 = 1
  5 crop_size uint32
  9 new_height uint32
  10 new_width uint32
  11 is_color bool = true

message MemoryDataParameter
  1 batch_size uint32
  2 channels uint32
  3 height uint32
  4 width uint32

message DummyDataParameter
  6 shape BlobShape*
  2 num uint32*
  3 channels uint32*
  4 height uint32*
  5 width uint32*

message InputParameter
  1 shape BlobShape*

message DetectionOutputParameter
  1 num_classes uint32
  2 share_location bool = true
  3 background_label_id int32 = 0
  4 nms_param NonMaximumSuppressionParameter
  6 code_type CodeType = CORNER
  7 keep_top_k int32 = -1
  8 variance_encoded_in_target bool
  9 confidence_threshold float

message NonMaximumSuppressionParameter
  1 nms_threshold float = 0.3
  2 top_k int32
  3 eta float = 1

message EltwiseParameter
  1 operation EltwiseOp = SUM
  2 coeff float*

message ELUParameter
  1 alpha float = 1

message EmbedParameter
  1 num_output uint32
  2 input_dim uint32
  3 bias_term bool = true

message ExpParameter
  1 base float = -1
  2 scale float = 1
  3 shift float

message LogParameter
  1 base float = -1
  2 scale float = 1
  3 shift float

message FlattenParameter
  1 axis int32 = 1
  2 end_axis int32 = -1

message InnerProductParameter
  1 num_output uint32
  2 bias_term bool = true
  5 axis int32 = 1
  6 transpose bool

message LRNParameter
  1 local_size uint32 = 5
  2 alpha float = 1
  3 beta float = 0.75
  4 norm_region NormRegion = ACROSS_CHANNELS
  5 k float = 1

message MVNParameter
  1 normalize_variance bool = true
  2 across_channels bool
  3 eps float = 1e-9

message NormalizeParameter
  1 across_spatial bool = true
  3 channel_shared bool = true
  4 eps float = 1e-10

message ParameterParameter
  1 shape BlobShape

message PermuteParameter
  1 order uint32*

message PoolingParameter
  1 pool PoolMethod = MAX
  4 pad uint32
  9 pad_h uint32
  10 pad_w uint32
  2 kernel_size uint32
  5 kernel_h uint32
  6 kernel_w uint32
  3 stride uint32 = 1
  7 stride_h uint32
  8 stride_w uint32
  12 global_pooling bool
  13 round_mode RoundMode
  200001 ceil_mode bool = true

message PowerParameter
  1 power float = 1
  2 scale float = 1
  3 shift float

message PReLUParameter
  2 channel_shared bool

message PriorBoxParameter
  1 min_size float*
  2 max_size float*
  3 aspect_ratio float*
  4 flip bool = true
  5 clip bool
  6 variance float*
  7 img_size uint32
  8 img_h uint32
  9 img_w uint32
  10 step float
  11 step_h float
  12 step_w float
  13 offset float = 0.5

message RecurrentParameter
  1 num_output uint32
  5 expose_hidden bool

message ReductionParameter
  1 operation ReductionOp = SUM
  2 axis int32
  3 coeff float = 1

message ReLUParameter
  1 negative_slope float

message ReshapeParameter
  1 shape BlobShape
  2 axis int32
  3 num_axes int32 = -1

message ROIPoolingParameter
  1 pooled_h uint32
  2 pooled_w uint32
  3 spatial_scale float = 1

message SliceParameter
  3 axis int32 = 1
  2 slice_point uint32*
  1 slice_dim uint32 = 1

message SoftmaxParameter
  2 axis int32 = 1

message ThresholdParameter
  1 threshold float

message TileParameter
  1 axis int32 = 1
  2 tiles int32

message InterpParameter
  1 height int32
  2 width int32
  3 zoom_factor int32 = 1
  4 shrink_factor int32 = 1
  5 pad_beg int32
  6 pad_end int32

message UpsampleParameter
  1 scale int32 = 2
  2 scale_h int32
  3 scale_w int32
  5 upsample_h int32
  6 upsample_w int32

message ShuffleChannelParameter
  1 group uint32 = 1

"""  # noqa: E501
)
"""Nets with all their options."""
