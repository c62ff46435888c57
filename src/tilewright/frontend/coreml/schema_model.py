"""The schema of Core ML's models: descriptions, pipelines, trees, linear models and what prepares features.

Numbers and names of fields; `Nothing` is a message whose presence says all. Enumerations are their numbers.
"""

MODEL = """
message Nothing

message ArrayFeatureExtractor
  1 extractIndex uint64*

message CategoricalMapping
  1 stringToInt64Map StringToInt64Map
  2 int64ToStringMap Int64ToStringMap
  101 strValue string
  102 int64Value int64

message StringToInt64Map
  1 map map string int64

message Int64ToStringMap
  1 map map int64 string

message StringToDoubleMap
  1 map map string double

message Int64ToDoubleMap
  1 map map int64 double

message StringVector
  1 vector string*

message Int64Vector
  1 vector int64*

message FloatVector
  1 vector float*

message DoubleVector
  1 vector double*

message DictVectorizer
  1 stringToIndex StringVector
  2 int64ToIndex Int64Vector

message SizeRange
  1 lowerBound uint64
  2 upperBound int64

message ImageFeatureType
  1 width int64
  2 height int64
  21 enumeratedSizes EnumeratedImageSizes
  31 imageSizeRange ImageSizeRange
  3 colorSpace int32

message ImageSize
  1 width uint64
  2 height uint64

message EnumeratedImageSizes
  1 sizes ImageSize*

message ImageSizeRange
  1 widthRange SizeRange
  2 heightRange SizeRange

message ArrayFeatureType
  1 shape int64*
  2 dataType int32
  21 enumeratedShapes EnumeratedShapes
  31 shapeRange ShapeRange
  41 intDefaultValue int32
  51 floatDefaultValue float
  61 doubleDefaultValue double

message Shape
  1 shape int64*

message EnumeratedShapes
  1 shapes Shape*

message ShapeRange
  1 sizeRanges SizeRange*

message DictionaryFeatureType
  1 int64KeyType Nothing
  2 stringKeyType Nothing

message SequenceFeatureType
  1 int64Type Nothing
  3 stringType Nothing
  101 sizeRange SizeRange

message FeatureType
  1 int64Type Nothing
  2 doubleType Nothing
  3 stringType Nothing
  4 imageType ImageFeatureType
  5 multiArrayType ArrayFeatureType
  6 dictionaryType DictionaryFeatureType
  7 sequenceType SequenceFeatureType
  8 stateType Nothing
  1000 isOptional bool

message FeatureVectorizer
  1 inputList InputColumn*

message InputColumn
  1 inputColumn string
  2 inputDimensions uint64

message GLMClassifier
  1 weights DoubleVector*
  2 offset double*
  3 postEvaluationTransform int32
  4 classEncoding int32
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector

message GLMRegressor
  1 weights DoubleVector*
  2 offset double*
  3 postEvaluationTransform int32

message Imputer
  1 imputedDoubleValue double
  2 imputedInt64Value int64
  3 imputedStringValue string
  4 imputedDoubleArray DoubleVector
  5 imputedInt64Array Int64Vector
  6 imputedStringDictionary StringToDoubleMap
  7 imputedInt64Dictionary Int64ToDoubleMap
  11 replaceDoubleValue double
  12 replaceInt64Value int64
  13 replaceStringValue string

message Pipeline
  1 models Model*
  2 names string*

message PipelineClassifier
  1 pipeline Pipeline

message PipelineRegressor
  1 pipeline Pipeline

message FeatureDescription
  1 name string
  3 type FeatureType

message FunctionDescription
  1 name string
  2 input FeatureDescription*
  3 output FeatureDescription*
  6 state FeatureDescription*
  4 predictedFeatureName string
  5 predictedProbabilitiesName string

message ModelDescription
  20 functions FunctionDescription*
  21 defaultFunctionName string
  1 input FeatureDescription*
  10 output FeatureDescription*
  13 state FeatureDescription*
  11 predictedFeatureName string
  12 predictedProbabilitiesName string

message SerializedModel
  1 identifier string
  2 model bytes

message Model
  1 specificationVersion int32
  2 description ModelDescription
  200 pipelineClassifier PipelineClassifier
  201 pipelineRegressor PipelineRegressor
  202 pipeline Pipeline
  300 glmRegressor GLMRegressor
  301 supportVectorRegressor SupportVectorRegressor
  302 treeEnsembleRegressor TreeEnsembleRegressor
  303 neuralNetworkRegressor NeuralNetworkRegressor
  304 bayesianProbitRegressor Nothing
  400 glmClassifier GLMClassifier
  401 supportVectorClassifier SupportVectorClassifier
  402 treeEnsembleClassifier TreeEnsembleClassifier
  403 neuralNetworkClassifier NeuralNetworkClassifier
  404 kNearestNeighborsClassifier KNearestNeighborsClassifier
  500 neuralNetwork NeuralNetwork
  501 itemSimilarityRecommender Nothing
  502 mlProgram Program
  555 customModel Nothing
  556 linkedModel Nothing
  560 classConfidenceThresholding Nothing
  600 oneHotEncoder OneHotEncoder
  601 imputer Imputer
  602 featureVectorizer FeatureVectorizer
  603 dictVectorizer DictVectorizer
  604 scaler Scaler
  606 categoricalMapping CategoricalMapping
  607 normalizer Normalizer
  609 arrayFeatureExtractor ArrayFeatureExtractor
  610 nonMaximumSuppression NonMaximumSuppression
  900 identity Nothing
  2000 textClassifier Nothing
  2001 wordTagger Nothing
  2002 visionFeaturePrint Nothing
  2003 soundAnalysisPreprocessing Nothing
  2004 gazetteer Nothing
  2005 wordEmbedding Nothing
  2006 audioFeaturePrint Nothing
  3000 serializedModel SerializedModel

message KNearestNeighborsClassifier
  1 nearestNeighborsIndex NearestNeighborsIndex
  3 numberOfNeighbors Int64Parameter
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector
  110 defaultStringLabel string
  111 defaultInt64Label int64
  200 uniformWeighting Nothing
  210 inverseDistanceWeighting Nothing

message NearestNeighborsIndex
  1 numberOfDimensions int32
  2 floatSamples FloatVector*
  100 linearIndex Nothing
  110 singleKdTreeIndex Nothing
  200 squaredEuclideanDistance Nothing

message NonMaximumSuppression
  1 pickTop PickTop
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector
  110 iouThreshold double
  111 confidenceThreshold double
  200 confidenceInputFeatureName string
  201 coordinatesInputFeatureName string
  202 iouThresholdInputFeatureName string
  203 confidenceThresholdInputFeatureName string
  210 confidenceOutputFeatureName string
  211 coordinatesOutputFeatureName string

message PickTop
  1 perClass bool

message Normalizer
  1 normType int32

message OneHotEncoder
  1 stringCategories StringVector
  2 int64Categories Int64Vector
  10 outputSparse bool
  11 handleUnknown int32

message Int64Parameter
  1 defaultValue int64
  10 range Nothing
  11 set Nothing

message RBFKernel
  1 gamma double

message PolyKernel
  1 degree int32
  2 c double
  3 gamma double

message SigmoidKernel
  1 gamma double
  2 c double

message Kernel
  1 linearKernel Nothing
  2 rbfKernel RBFKernel
  3 polyKernel PolyKernel
  4 sigmoidKernel SigmoidKernel

message SparseNode
  1 index int32
  2 value double

message SparseVector
  1 nodes SparseNode*

message SparseSupportVectors
  1 vectors SparseVector*

message DenseSupportVectors
  1 vectors DoubleVector*

message Coefficients
  1 alpha double*

message SupportVectorRegressor
  1 kernel Kernel
  2 sparseSupportVectors SparseSupportVectors
  3 denseSupportVectors DenseSupportVectors
  4 coefficients Coefficients
  5 rho double

message SupportVectorClassifier
  1 kernel Kernel
  2 numberOfSupportVectorsPerClass int32*
  3 sparseSupportVectors SparseSupportVectors
  4 denseSupportVectors DenseSupportVectors
  5 coefficients Coefficients*
  6 rho double*
  7 probA double*
  8 probB double*
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector

message Scaler
  1 shiftValue double*
  2 scaleValue double*

message TreeEnsembleParameters
  1 nodes TreeNode*
  2 numPredictionDimensions uint64
  3 basePredictionValue double*

message TreeNode
  1 treeId uint64
  2 nodeId uint64
  3 nodeBehavior int32
  10 branchFeatureIndex uint64
  11 branchFeatureValue double
  12 trueChildNodeId uint64
  13 falseChildNodeId uint64
  14 missingValueTracksTrueChild bool
  20 evaluationInfo EvaluationInfo*

message EvaluationInfo
  1 evaluationIndex uint64
  2 evaluationValue double

message TreeEnsembleClassifier
  1 treeEnsemble TreeEnsembleParameters
  2 postEvaluationTransform int32
  100 stringClassLabels StringVector
  101 int64ClassLabels Int64Vector

message TreeEnsembleRegressor
  1 treeEnsemble TreeEnsembleParameters
  2 postEvaluationTransform int32
"""
