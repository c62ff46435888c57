"""The schema of the parameters of layers of Core ML's neural networks."""

LAYERS = """
message ConvolutionLayerParams
  1 outputChannels uint64
  2 kernelChannels uint64
  10 nGroups uint64
  20 kernelSize uint64*
  30 stride uint64*
  40 dilationFactor uint64*
  50 valid ValidPadding
  51 same SamePadding
  60 isDeconvolution bool
  70 hasBias bool
  90 weights WeightParams
  91 bias WeightParams
  100 outputShape uint64*

message Convolution3DLayerParams
  1 outputChannels int32
  2 inputChannels int32
  10 nGroups int32
  20 kernelDepth int32
  21 kernelHeight int32
  22 kernelWidth int32
  31 strideDepth int32
  32 strideHeight int32
  33 strideWidth int32
  40 dilationDepth int32
  41 dilationHeight int32
  42 dilationWidth int32
  50 hasBias bool
  60 weights WeightParams
  61 bias WeightParams
  70 paddingType int32
  80 customPaddingFront int32
  81 customPaddingBack int32
  82 customPaddingTop int32
  83 customPaddingBottom int32
  84 customPaddingLeft int32
  85 customPaddingRight int32
  86 isDeconvolution bool
  87 outputShape uint64*

message InnerProductLayerParams
  1 inputChannels uint64
  2 outputChannels uint64
  10 hasBias bool
  20 weights WeightParams
  21 bias WeightParams
  22 int8DynamicQuantize bool

message EmbeddingLayerParams
  1 inputDim uint64
  2 outputChannels uint64
  10 hasBias bool
  20 weights WeightParams
  21 bias WeightParams

message EmbeddingNDLayerParams
  1 vocabSize uint64
  2 embeddingSize uint64
  3 hasBias bool
  20 weights WeightParams
  21 bias WeightParams

message BatchnormLayerParams
  1 channels uint64
  5 computeMeanVar bool
  6 instanceNormalization bool
  10 epsilon float
  15 gamma WeightParams
  16 beta WeightParams
  17 mean WeightParams
  18 variance WeightParams

message PoolingLayerParams
  1 type int32
  10 kernelSize uint64*
  20 stride uint64*
  30 valid ValidPadding
  31 same SamePadding
  32 includeLastPixel ValidCompletePadding
  50 avgPoolExcludePadding bool
  60 globalPooling bool

message ValidCompletePadding
  10 paddingAmounts uint64*

message Pooling3DLayerParams
  1 type int32
  2 kernelDepth int32
  3 kernelHeight int32
  4 kernelWidth int32
  5 strideDepth int32
  6 strideHeight int32
  7 strideWidth int32
  15 paddingType int32
  8 customPaddingFront int32
  9 customPaddingBack int32
  10 customPaddingTop int32
  11 customPaddingBottom int32
  12 customPaddingLeft int32
  13 customPaddingRight int32
  14 countExcludePadding bool

message GlobalPooling3DLayerParams
  1 type int32

message PaddingLayerParams
  1 constant PaddingConstant
  2 reflection Nothing
  3 replication Nothing
  10 paddingAmounts BorderAmounts

message PaddingConstant
  1 value float

message ConcatLayerParams
  100 sequenceConcat bool

message LRNLayerParams
  1 alpha float
  2 beta float
  3 localSize uint64
  4 k float

message SplitLayerParams
  1 nOutputs uint64

message AddLayerParams
  1 alpha float

message MultiplyLayerParams
  1 alpha float

message UnaryFunctionLayerParams
  1 type int32
  2 alpha float
  3 epsilon float
  4 shift float
  5 scale float

message UpsampleLayerParams
  1 scalingFactor uint64*
  7 fractionalScalingFactor float*
  5 mode int32
  6 linearUpsampleMode int32

message ResizeBilinearLayerParams
  1 targetSize uint64*
  2 mode SamplingMode

message CropResizeLayerParams
  1 targetSize uint64*
  2 normalizedCoordinates bool
  3 mode SamplingMode
  4 boxIndicesMode BoxCoordinatesMode
  5 spatialScale float

message BiasLayerParams
  1 shape uint64*
  2 bias WeightParams

message ScaleLayerParams
  1 shapeScale uint64*
  2 scale WeightParams
  3 hasBias bool
  4 shapeBias uint64*
  5 bias WeightParams

message LoadConstantLayerParams
  1 shape uint64*
  2 data WeightParams

message L2NormalizeLayerParams
  1 epsilon float

message FlattenLayerParams
  1 mode int32

message ReshapeLayerParams
  1 targetShape int64*
  2 mode int32

message PermuteLayerParams
  1 axis uint64*

message ReorganizeDataLayerParams
  1 mode int32
  2 blockSize uint64

message SliceLayerParams
  1 startIndex int64
  2 endIndex int64
  3 stride uint64
  4 axis int32

message ReduceLayerParams
  1 mode int32
  2 epsilon float
  3 axis int32

message CropLayerParams
  1 cropAmounts BorderAmounts
  5 offset uint64*

message DotProductLayerParams
  1 cosineSimilarity bool

message MeanVarianceNormalizeLayerParams
  1 acrossChannels bool
  2 normalizeVariance bool
  3 epsilon float

message SequenceRepeatLayerParams
  1 nRepetitions uint64

message SimpleRecurrentLayerParams
  1 inputVectorSize uint64
  2 outputVectorSize uint64
  10 activation ActivationParams
  15 sequenceOutput bool
  20 hasBiasVector bool
  30 weightMatrix WeightParams
  31 recursionMatrix WeightParams
  32 biasVector WeightParams
  100 reverseInput bool

message GRULayerParams
  1 inputVectorSize uint64
  2 outputVectorSize uint64
  10 activations ActivationParams*
  15 sequenceOutput bool
  20 hasBiasVectors bool
  30 updateGateWeightMatrix WeightParams
  31 resetGateWeightMatrix WeightParams
  32 outputGateWeightMatrix WeightParams
  50 updateGateRecursionMatrix WeightParams
  51 resetGateRecursionMatrix WeightParams
  52 outputGateRecursionMatrix WeightParams
  70 updateGateBiasVector WeightParams
  71 resetGateBiasVector WeightParams
  72 outputGateBiasVector WeightParams
  100 reverseInput bool

message LSTMParams
  10 sequenceOutput bool
  20 hasBiasVectors bool
  30 forgetBias bool
  40 hasPeepholeVectors bool
  50 coupledInputAndForgetGate bool
  60 cellClipThreshold float

message LSTMWeightParams
  1 inputGateWeightMatrix WeightParams
  2 forgetGateWeightMatrix WeightParams
  3 blockInputWeightMatrix WeightParams
  4 outputGateWeightMatrix WeightParams
  20 inputGateRecursionMatrix WeightParams
  21 forgetGateRecursionMatrix WeightParams
  22 blockInputRecursionMatrix WeightParams
  23 outputGateRecursionMatrix WeightParams
  40 inputGateBiasVector WeightParams
  41 forgetGateBiasVector WeightParams
  42 blockInputBiasVector WeightParams
  43 outputGateBiasVector WeightParams
  60 inputGatePeepholeVector WeightParams
  61 forgetGatePeepholeVector WeightParams
  62 outputGatePeepholeVector WeightParams

message UniDirectionalLSTMLayerParams
  1 inputVectorSize uint64
  2 outputVectorSize uint64
  10 activations ActivationParams*
  15 params LSTMParams
  20 weightParams LSTMWeightParams
  100 reverseInput bool

message BiDirectionalLSTMLayerParams
  1 inputVectorSize uint64
  2 outputVectorSize uint64
  10 activationsForwardLSTM ActivationParams*
  11 activationsBackwardLSTM ActivationParams*
  15 params LSTMParams
  20 weightParams LSTMWeightParams*

message TransposeLayerParams
  1 axes uint64*

message BatchedMatMulLayerParams
  1 transposeA bool
  2 transposeB bool
  5 weightMatrixFirstDimension uint64
  6 weightMatrixSecondDimension uint64
  7 hasBias bool
  8 weights WeightParams
  9 bias WeightParams
  10 int8DynamicQuantize bool

message ConcatNDLayerParams
  1 axis int64
  2 interleave bool

message SoftmaxNDLayerParams
  1 axis int64

message ReverseLayerParams
  1 reverseDim bool*

message ReverseSeqLayerParams
  1 batchAxis int64
  2 sequenceAxis int64

message LoadConstantNDLayerParams
  1 shape uint64*
  2 data WeightParams

message FillLikeLayerParams
  1 value float

message FillStaticLayerParams
  1 value float
  2 targetShape uint64*

message FillDynamicLayerParams
  1 value float

message MatrixBandPartLayerParams
  1 numLower int64
  2 numUpper int64

message UpperTriangularLayerParams
  1 k int64

message LowerTriangularLayerParams
  1 k int64

message BroadcastToStaticLayerParams
  1 targetShape uint64*

message GatherLayerParams
  1 axis int64

message ScatterLayerParams
  1 axis int64
  2 mode int32

message ScatterNDLayerParams
  1 mode int32

message GatherAlongAxisLayerParams
  1 axis int64

message ScatterAlongAxisLayerParams
  1 axis int64
  2 mode int32

message StackLayerParams
  1 axis int64

message RankPreservingReshapeLayerParams
  1 targetShape int64*

message ConstantPaddingLayerParams
  1 value float
  2 padAmounts uint64*
  3 padToGivenOutputSizeMode bool

message RandomNormalLikeLayerParams
  1 seed int64
  2 mean float
  3 stdDev float

message RandomNormalStaticLayerParams
  1 seed int64
  2 mean float
  3 stdDev float
  4 outputShape uint64*

message RandomNormalDynamicLayerParams
  1 seed int64
  2 mean float
  3 stdDev float

message RandomUniformLikeLayerParams
  1 seed int64
  2 minVal float
  3 maxVal float

message RandomUniformStaticLayerParams
  1 seed int64
  2 minVal float
  3 maxVal float
  4 outputShape uint64*

message RandomUniformDynamicLayerParams
  1 seed int64
  2 minVal float
  3 maxVal float

message RandomBernoulliLikeLayerParams
  1 seed int64
  2 prob float

message RandomBernoulliStaticLayerParams
  1 seed int64
  2 prob float
  3 outputShape uint64*

message RandomBernoulliDynamicLayerParams
  1 seed int64
  2 prob float

message CategoricalDistributionLayerParams
  1 seed int64
  2 numSamples int64
  3 isLogits bool
  4 eps float
  5 temperature float

message ReduceAxesLayerParams
  1 axes int64*
  2 keepDims bool
  3 reduceAll bool

message ExpandDimsLayerParams
  1 axes int64*

message FlattenTo2DLayerParams
  1 axis int64

message ReshapeStaticLayerParams
  1 targetShape int64*

message SqueezeLayerParams
  1 axes int64*
  2 squeezeAll bool

message TopKLayerParams
  1 axis int64
  2 K uint64
  3 useBottomK bool

message ArgMaxLayerParams
  1 axis int64
  2 removeDim bool

message ArgMinLayerParams
  1 axis int64
  2 removeDim bool

message SplitNDLayerParams
  1 axis int64
  2 numSplits uint64
  3 splitSizes uint64*

message ClipLayerParams
  1 minVal float
  2 maxVal float

message SliceStaticLayerParams
  1 beginIds int64*
  2 beginMasks bool*
  3 endIds int64*
  4 endMasks bool*
  5 strides int64*
  6 squeezeMasks bool*

message SliceDynamicLayerParams
  2 beginMasks bool*
  3 endIds int64*
  4 endMasks bool*
  5 strides int64*
  6 squeezeMasks bool*

message TileLayerParams
  1 reps uint64*

message GeluLayerParams
  1 mode int32

message RangeStaticLayerParams
  1 endValue float
  2 startValue float
  3 stepSizeValue float

message RangeDynamicLayerParams
  2 startValue float
  3 stepSizeValue float

message SlidingWindowsLayerParams
  1 axis int64
  2 windowSize uint64
  3 step uint64

message LayerNormalizationLayerParams
  1 normalizedShape int64*
  2 eps float
  3 gamma WeightParams
  4 beta WeightParams

message NonMaximumSuppressionLayerParams
  1 iouThreshold float
  2 scoreThreshold float
  3 maxBoxes uint64
  4 perClassSuppression bool

message ClampedReLULayerParams
  1 alpha float
  2 beta float

message ArgSortLayerParams
  1 axis int64
  2 descending bool

message SliceBySizeLayerParams
  2 size int64
  3 axis int64

message NeuralNetworkClassifier
  1 layers NeuralNetworkLayer*
  2 preprocessing NeuralNetworkPreprocessing*
  5 arrayInputShapeMapping int32
  6 imageInputShapeMapping int32
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector
  200 labelProbabilityLayerName string

message OneHotLayerParams
  1 oneHotVectorSize uint64
  2 axis int64
  3 onValue float
  4 offValue float

message CumSumLayerParams
  1 axis int64
  2 excludeFinalSum bool
  3 reverse bool

message NeuralNetworkRegressor
  1 layers NeuralNetworkLayer*
  2 preprocessing NeuralNetworkPreprocessing*
  5 arrayInputShapeMapping int32
  6 imageInputShapeMapping int32
"""
