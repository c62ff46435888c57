"""The schema of Core ML's neural networks: layers, weights, preprocessing.

Numbers and names of fields; `Nothing` is a message whose presence says all. Enumerations are their numbers.
"""

NETWORK = """
message NeuralNetwork
  1 layers NeuralNetworkLayer*
  2 preprocessing NeuralNetworkPreprocessing*
  5 arrayInputShapeMapping int32
  6 imageInputShapeMapping int32

message NeuralNetworkImageScaler
  10 channelScale float
  20 blueBias float
  21 greenBias float
  22 redBias float
  30 grayBias float

message NeuralNetworkMeanImage
  1 meanImage float*

message NeuralNetworkPreprocessing
  1 featureName string
  10 scaler NeuralNetworkImageScaler
  11 meanImage NeuralNetworkMeanImage

message ActivationLeakyReLU
  1 alpha float

message ActivationScaledTanh
  1 alpha float
  2 beta float

message ActivationLinear
  1 alpha float
  2 beta float

message ActivationSigmoidHard
  1 alpha float
  2 beta float

message ActivationPReLU
  1 alpha WeightParams

message ActivationELU
  1 alpha float

message ActivationThresholdedReLU
  1 alpha float

message ActivationParametricSoftplus
  1 alpha WeightParams
  2 beta WeightParams

message ActivationParams
  5 linear ActivationLinear
  10 ReLU Nothing
  15 leakyReLU ActivationLeakyReLU
  20 thresholdedReLU ActivationThresholdedReLU
  25 PReLU ActivationPReLU
  30 tanh Nothing
  31 scaledTanh ActivationScaledTanh
  40 sigmoid Nothing
  41 sigmoidHard ActivationSigmoidHard
  50 ELU ActivationELU
  60 softsign Nothing
  70 softplus Nothing
  71 parametricSoftplus ActivationParametricSoftplus

message Tensor
  1 rank uint32
  2 dimValue int64*

message NeuralNetworkLayer
  1 name string
  2 input string*
  3 output string*
  100 convolution ConvolutionLayerParams
  120 pooling PoolingLayerParams
  130 activation ActivationParams
  140 innerProduct InnerProductLayerParams
  150 embedding EmbeddingLayerParams
  160 batchnorm BatchnormLayerParams
  165 mvn MeanVarianceNormalizeLayerParams
  170 l2normalize L2NormalizeLayerParams
  175 softmax Nothing
  180 lrn LRNLayerParams
  190 crop CropLayerParams
  200 padding PaddingLayerParams
  210 upsample UpsampleLayerParams
  211 resizeBilinear ResizeBilinearLayerParams
  212 cropResize CropResizeLayerParams
  220 unary UnaryFunctionLayerParams
  230 add AddLayerParams
  231 multiply MultiplyLayerParams
  240 average Nothing
  245 scale ScaleLayerParams
  250 bias BiasLayerParams
  260 max Nothing
  261 min Nothing
  270 dot DotProductLayerParams
  280 reduce ReduceLayerParams
  290 loadConstant LoadConstantLayerParams
  300 reshape ReshapeLayerParams
  301 flatten FlattenLayerParams
  310 permute PermuteLayerParams
  320 concat ConcatLayerParams
  330 split SplitLayerParams
  340 sequenceRepeat SequenceRepeatLayerParams
  345 reorganizeData ReorganizeDataLayerParams
  350 slice SliceLayerParams
  400 simpleRecurrent SimpleRecurrentLayerParams
  410 gru GRULayerParams
  420 uniDirectionalLSTM UniDirectionalLSTMLayerParams
  430 biDirectionalLSTM BiDirectionalLSTMLayerParams
  500 custom Nothing
  600 copy Nothing
  605 branch BranchLayerParams
  615 loop LoopLayerParams
  620 loopBreak Nothing
  625 loopContinue Nothing
  635 rangeStatic RangeStaticLayerParams
  640 rangeDynamic RangeDynamicLayerParams
  660 clip ClipLayerParams
  665 ceil Nothing
  670 floor Nothing
  680 sign Nothing
  685 round Nothing
  700 exp2 Nothing
  710 sin Nothing
  715 cos Nothing
  720 tan Nothing
  730 asin Nothing
  735 acos Nothing
  740 atan Nothing
  750 sinh Nothing
  755 cosh Nothing
  760 tanh Nothing
  770 asinh Nothing
  775 acosh Nothing
  780 atanh Nothing
  790 erf Nothing
  795 gelu GeluLayerParams
  815 equal EqualityLayerParams
  820 notEqual EqualityLayerParams
  825 lessThan OrderLayerParams
  827 lessEqual OrderLayerParams
  830 greaterThan OrderLayerParams
  832 greaterEqual OrderLayerParams
  840 logicalOr Nothing
  845 logicalXor Nothing
  850 logicalNot Nothing
  855 logicalAnd Nothing
  865 modBroadcastable Nothing
  870 minBroadcastable Nothing
  875 maxBroadcastable Nothing
  880 addBroadcastable Nothing
  885 powBroadcastable Nothing
  890 divideBroadcastable Nothing
  895 floorDivBroadcastable Nothing
  900 multiplyBroadcastable Nothing
  905 subtractBroadcastable Nothing
  920 tile TileLayerParams
  925 stack StackLayerParams
  930 gather GatherLayerParams
  935 scatter ScatterLayerParams
  940 gatherND Nothing
  945 scatterND ScatterNDLayerParams
  950 softmaxND SoftmaxNDLayerParams
  952 gatherAlongAxis GatherAlongAxisLayerParams
  954 scatterAlongAxis ScatterAlongAxisLayerParams
  960 reverse ReverseLayerParams
  965 reverseSeq ReverseSeqLayerParams
  975 splitND SplitNDLayerParams
  980 concatND ConcatNDLayerParams
  985 transpose TransposeLayerParams
  995 sliceStatic SliceStaticLayerParams
  1000 sliceDynamic SliceDynamicLayerParams
  1005 slidingWindows SlidingWindowsLayerParams
  1015 topK TopKLayerParams
  1020 argMin ArgMinLayerParams
  1025 argMax ArgMaxLayerParams
  1040 embeddingND EmbeddingNDLayerParams
  1045 batchedMatmul BatchedMatMulLayerParams
  1065 getShape Nothing
  1070 loadConstantND LoadConstantNDLayerParams
  1080 fillLike FillLikeLayerParams
  1085 fillStatic FillStaticLayerParams
  1090 fillDynamic FillDynamicLayerParams
  1100 broadcastToLike Nothing
  1105 broadcastToStatic BroadcastToStaticLayerParams
  1110 broadcastToDynamic Nothing
  1120 squeeze SqueezeLayerParams
  1125 expandDims ExpandDimsLayerParams
  1130 flattenTo2D FlattenTo2DLayerParams
  1135 reshapeLike Nothing
  1140 reshapeStatic ReshapeStaticLayerParams
  1145 reshapeDynamic Nothing
  1150 rankPreservingReshape RankPreservingReshapeLayerParams
  1155 constantPad ConstantPaddingLayerParams
  1170 randomNormalLike RandomNormalLikeLayerParams
  1175 randomNormalStatic RandomNormalStaticLayerParams
  1180 randomNormalDynamic RandomNormalDynamicLayerParams
  1190 randomUniformLike RandomUniformLikeLayerParams
  1195 randomUniformStatic RandomUniformStaticLayerParams
  1200 randomUniformDynamic RandomUniformDynamicLayerParams
  1210 randomBernoulliLike RandomBernoulliLikeLayerParams
  1215 randomBernoulliStatic RandomBernoulliStaticLayerParams
  1220 randomBernoulliDynamic RandomBernoulliDynamicLayerParams
  1230 categoricalDistribution CategoricalDistributionLayerParams
  1250 reduceL1 ReduceAxesLayerParams
  1255 reduceL2 ReduceAxesLayerParams
  1260 reduceMax ReduceAxesLayerParams
  1265 reduceMin ReduceAxesLayerParams
  1270 reduceSum ReduceAxesLayerParams
  1275 reduceProd ReduceAxesLayerParams
  1280 reduceMean ReduceAxesLayerParams
  1285 reduceLogSum ReduceAxesLayerParams
  1290 reduceSumSquare ReduceAxesLayerParams
  1295 reduceLogSumExp ReduceAxesLayerParams
  1313 whereNonZero Nothing
  1315 matrixBandPart MatrixBandPartLayerParams
  1320 lowerTriangular LowerTriangularLayerParams
  1325 upperTriangular UpperTriangularLayerParams
  1330 whereBroadcastable Nothing
  1350 layerNormalization LayerNormalizationLayerParams
  1400 NonMaximumSuppression NonMaximumSuppressionLayerParams
  1450 oneHot OneHotLayerParams
  1455 cumSum CumSumLayerParams
  1460 clampedReLU ClampedReLULayerParams
  1461 argSort ArgSortLayerParams
  1465 pooling3d Pooling3DLayerParams
  1466 globalPooling3d GlobalPooling3DLayerParams
  1470 sliceBySize SliceBySizeLayerParams
  1471 convolution3d Convolution3DLayerParams

message BranchLayerParams
  1 ifBranch NeuralNetwork
  2 elseBranch NeuralNetwork

message LoopLayerParams
  1 maxLoopIterations uint64
  2 conditionVar string
  3 conditionNetwork NeuralNetwork
  4 bodyNetwork NeuralNetwork

message OrderLayerParams
  2 alpha float

message EqualityLayerParams
  1 alpha float

message BorderAmounts
  10 borderAmounts EdgeSizes*

message EdgeSizes
  1 startEdgeSize uint64
  2 endEdgeSize uint64

message ValidPadding
  1 paddingAmounts BorderAmounts

message SamePadding
  1 asymmetryMode int32

message SamplingMode
  1 samplingMethod int32

message BoxCoordinatesMode
  1 boxMode int32

message WeightParams
  1 floatValue float*
  2 float16Value bytes
  30 rawValue bytes
  31 int8RawValue bytes
  40 quantization QuantizationParams

message QuantizationParams
  1 numberOfBits uint64
  101 linearQuantization LinearQuantizationParams
  102 lookupTableQuantization LookUpTableQuantizationParams

message LinearQuantizationParams
  1 scale float*
  2 bias float*

message LookUpTableQuantizationParams
  1 floatValue float*
"""
