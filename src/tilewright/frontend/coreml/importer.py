"""Import of Core ML models: networks, programs, pipelines, and models that predict from rows of features.

module = from_coreml("detector.mlmodel")
module = from_coreml("classifier.mlpackage", shapes={"image": (1, 3, 224, 224)}, function="main")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.coreml import estimators, preparation
from tilewright.frontend.coreml.blobs import Weights
from tilewright.frontend.coreml.features import Dims, Feature, features
from tilewright.frontend.coreml.files import read_files
from tilewright.frontend.coreml.network import run_network
from tilewright.frontend.coreml.operation import Plain, run_operation
from tilewright.frontend.coreml.program import run_function
from tilewright.frontend.coreml.types import type_name, value_dtype
from tilewright.graph.ir.dimensions import constants, product, same
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.dtype import FLOAT32, FLOAT64, STRING
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.span import Span

Named = dict[str, GraphExpr]
_FIRST_KIND = 200
_NETWORKS = ("neuralNetwork", "neuralNetworkClassifier", "neuralNetworkRegressor")
_PIPELINES = ("pipeline", "pipelineClassifier", "pipelineRegressor")
_CLASSIFIERS = {
    "treeEnsembleClassifier": estimators.tree_classifier,
    "glmClassifier": estimators.linear_classifier,
    "supportVectorClassifier": estimators.vector_classifier,
}
_REGRESSORS = {
    "treeEnsembleRegressor": estimators.tree_regressor,
    "glmRegressor": estimators.linear_regressor,
    "supportVectorRegressor": estimators.vector_regressor,
}
_PREPARATIONS = {
    "scaler": preparation.scaled,
    "normalizer": preparation.normalized,
    "imputer": preparation.imputed,
    "oneHotEncoder": preparation.one_hot,
    "categoricalMapping": preparation.mapped,
    "arrayFeatureExtractor": preparation.extracted,
}


def from_coreml(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    function: str | None = None,
) -> IRModule:
    """Import a Core ML model: the path of an .mlmodel file or .mlpackage folder, or the bytes of an .mlmodel file.

    Inputs and outputs have the names of the model. Images are uint8 arrays (1, channels, height, width) in the order of
    colours that the model says. Models without networks take a row for each sample: each input has a dimension `batch`
    before its own. Probabilities of classes are one tensor, in the order of the module's attribute `class_labels`.
    `function` names one of a program's functions.
    """
    model, weights, where = read_files(source)
    name = "model" if isinstance(source, bytes) else Path(os.fspath(source)).stem
    try:
        return _Importer(weights, where).module(model, dict(shapes or {}), function, name)
    except RecursionError as error:
        raise UserError("the model is nested too deeply", where=where) from error


def _kind(model: Any) -> tuple[str, Any]:
    """What a model is, and its parameters."""
    for field, value in model.ListFields():
        if field.number >= _FIRST_KIND:
            return field.name, value
    raise UnsupportedError("the model is of a kind that is not known", hint="is it a Core ML model?")


def _parts(own: Any) -> Any:
    """The pipeline inside a pipeline that classifies or predicts."""
    return own.pipeline if hasattr(own, "pipeline") else own


def _has_network(model: Any) -> bool:
    kind, own = _kind(model)
    if kind in _PIPELINES:
        return any(_has_network(item) for item in _parts(own).models)
    return kind in (*_NETWORKS, "mlProgram", "nonMaximumSuppression")


class _Importer:
    """The import of one model."""

    def __init__(self, weights: Weights, source: str) -> None:
        self.builder = ArithmeticBuilder()
        self.weights = weights
        self.source = source
        self.functions: list[Function] = []
        self.labels: list[Any] = []
        self.has_rows = False

    def module(
        self, model: Any, shapes: dict[str, Sequence[int | str | None]], function: str | None, name: str
    ) -> IRModule:
        description = self._description(model, function)
        if len(description.state):
            raise UnsupportedError(
                "a model that keeps state between calls",
                where=self.source,
                hint="convert it with the state as an input and an output",
            )
        self.has_rows = not _has_network(model)
        inputs, outputs = features(description.input), features(description.output)
        params = [self._parameter(model, item, shapes) for item in inputs]
        refuse_unknown(shapes, [item.name for item in inputs])
        if not outputs:
            raise UserError("the model has no outputs", where=self.source)
        results = self._run(model, dict(zip((item.name for item in inputs), params, strict=True)), function)
        values = [self._output(item, results) for item in outputs]
        names = [item.name for item in outputs]
        further = {"class_labels": tuple(self.labels)} if self.labels else {}
        return main_module(self.builder, params, values, names, name, self.functions, **further)

    def _description(self, model: Any, function: str | None) -> Any:
        """The description of the model, or of one of its functions."""
        description = model.description
        wanted = function or description.defaultFunctionName
        for item in description.functions:
            if item.name == wanted:
                return item
        if function is not None and not (_kind(model)[0] == "mlProgram" and function in _kind(model)[1].functions):
            known = ", ".join(item.name for item in description.functions) or "none"
            raise UserError(f"the model has no function '{function}'", where=self.source, hint=f"it has {known}")
        return description.functions[0] if description.functions and not description.input else description

    # Inputs

    def _parameter(self, model: Any, item: Feature, shapes: dict[str, Sequence[int | str | None]]) -> Var:
        dims = item.dims()
        if self.has_rows:
            dims = ("batch", *dims)
        elif _kind(model)[0] in _NETWORKS and item.kind == "multiArray":
            dims = self._ranked(model, item, dims, shapes)
        return new_input(self.builder, item.name, chosen_shape(item.name, dims, shapes), item.dtype())

    @staticmethod
    def _ranked(model: Any, item: Feature, dims: Dims, shapes: dict[str, Sequence[int | str | None]]) -> Dims:
        """Sizes with sequence and batch before them, where `shapes` asks for them in a network of five dimensions."""
        wanted = len(shapes.get(item.name, dims))
        if _kind(model)[1].arrayInputShapeMapping != 0 or wanted == len(dims) or len(dims) not in (1, 3):
            return dims
        leading = (f"{item.name}_sequence", f"{item.name}_batch")
        if wanted == 3 and len(dims) == 1:
            return (*leading, *dims)
        return (*leading, *dims, *(1,) * (3 - len(dims))) if wanted == 5 else dims

    # Models

    def _run(self, model: Any, inputs: Named, function: str | None = None) -> Named:
        """The results of a model by name."""
        kind, own = _kind(model)
        if kind in _NETWORKS:
            return self._network(model, kind, own, inputs)
        if kind == "mlProgram":
            return self._program(model, own, inputs, function)
        if kind in _PIPELINES:
            values = dict(inputs)
            for part in _parts(own).models:
                needed = {item.name: self._known(values, item.name) for item in part.description.input}
                values |= self._run(part, needed)
            return values
        self.builder.span = Span(kind, operation=kind)
        try:
            return self._simple(model, kind, own, inputs)
        except UserError as error:
            error.where = error.where or f"{self.source}, {kind}"
            raise

    def _known(self, values: Named, name: str) -> GraphExpr:
        if name not in values:
            raise UserError(f"no model of the pipeline gives '{name}'", where=self.source)
        return values[name]

    def _simple(self, model: Any, kind: str, own: Any, inputs: Named) -> Named:
        """Models on rows of features; where there are no rows, there is one."""
        if kind == "nonMaximumSuppression":
            return self._suppressed(own, inputs)
        rows = (
            inputs if self.has_rows else {name: self.builder.expand_dims(value, (0,)) for name, value in inputs.items()}
        )
        found = self._of_rows(model, kind, own, rows)
        if self.has_rows:
            return found
        return {name: self.builder.reshape(value, sizes_of(value)[1:]) for name, value in found.items()}

    def _of_rows(self, model: Any, kind: str, own: Any, rows: Named) -> Named:
        b, description = self.builder, model.description
        values = list(rows.values())
        outputs = features(description.output)
        if kind == "identity":
            return {item.name: rows.get(item.name, values[0]) for item in outputs}
        if kind == "featureVectorizer":
            return {outputs[0].name: preparation.vectorized(b, own, rows)}
        if kind in _PREPARATIONS:
            return {outputs[0].name: _PREPARATIONS[kind](b, own, values[0])}
        if kind in _REGRESSORS:
            name = description.predictedFeatureName or outputs[0].name
            return {name: _REGRESSORS[kind](b, own, estimators.as_rows(b, values))}
        if kind in _CLASSIFIERS:
            return self._classes(description, _CLASSIFIERS[kind](b, own, estimators.as_rows(b, values)), own)
        if kind == "kNearestNeighborsClassifier":
            found, self.labels = estimators.nearest_neighbors(b, own, estimators.as_rows(b, values))
            return self._classes(description, found, None)
        raise UnsupportedError(
            f"models of the kind {kind} are not supported",
            hint=f"known are networks, programs, pipelines, {', '.join((*_CLASSIFIERS, *_REGRESSORS, *_PREPARATIONS))}",
        )

    def _classes(self, description: Any, found: estimators.Classified, own: Any) -> Named:
        """Label and probabilities by the names of the description."""
        if own is not None:
            self.labels = list(estimators.labels_of(own))
        named = {description.predictedFeatureName: found[0], description.predictedProbabilitiesName: found[1]}
        return {name: value for name, value in named.items() if name}

    def _suppressed(self, own: Any, inputs: Named) -> Named:
        """Boxes and their confidences without those that overlap better ones; how many is up to the data."""
        b = self.builder
        scores = self._known(inputs, own.confidenceInputFeatureName)
        boxes = self._known(inputs, own.coordinatesInputFeatureName)
        thresholds: list[GraphExpr] = []
        for name, default in (
            (own.iouThresholdInputFeatureName, own.iouThreshold),
            (own.confidenceThresholdInputFeatureName, own.confidenceThreshold),
        ):
            given = inputs.get(name) if name else None
            thresholds.append(
                b.constant(float(default), "float32") if given is None else b.cast(b.reshape(given, ()), FLOAT32)
            )
        count = sizes_of(boxes)[0]
        arguments: dict[str, Plain] = {
            "boxes": b.reshape(boxes, (1, count, 4)),
            "scores": b.reshape(scores, (1, *sizes_of(scores))),
            "iou_threshold": thresholds[0],
            "score_threshold": thresholds[1],
            "per_class_suppression": bool(own.pickTop.perClass),
        }
        chosen = run_operation("suppressed_places", "nonMaximumSuppression", arguments, b)[0]
        results = [b.call("take", value, chosen, axis=0) for value in (scores, boxes)]
        return {own.confidenceOutputFeatureName: results[0], own.coordinatesOutputFeatureName: results[1]}

    # Networks

    def _network(self, model: Any, kind: str, own: Any, inputs: Named) -> Named:
        given = {item.name: self._blob(own, item, inputs[item.name]) for item in features(model.description.input)}
        values, functions = run_network(own, given, self.builder, self.source)
        self.functions.extend(functions)
        is_ranked = own.arrayInputShapeMapping == 0
        if kind == "neuralNetworkClassifier":
            return self._classified(model.description, own, values)
        results: Named = {}
        for item in features(model.description.output):
            results[item.name] = self._array(item, self._known(values, item.name), is_ranked)
        return results

    def _classified(self, description: Any, own: Any, values: Named) -> Named:
        name = own.labelProbabilityLayerName or (own.layers[-1].output[0] if len(own.layers) else "")
        scores = self.builder.flatten(self._known(values, name))
        self.labels = list(estimators.labels_of(own))
        row = self.builder.expand_dims(scores, (0,))
        label = self.builder.reshape(estimators.best_label(self.builder, self.labels, row), ())
        return {**values, **self._classes(description, (label, scores), None)}

    def _blob(self, own: Any, item: Feature, value: GraphExpr) -> GraphExpr:
        """An input as the layers of a network see it: float32, of five dimensions in old networks."""
        blob = self.builder.cast(value, FLOAT32)
        sizes = sizes_of(value)
        if item.kind == "image":
            blob = self._preprocessed(own, item, blob)
            return self.builder.expand_dims(blob, (0,)) if own.imageInputShapeMapping == 0 else blob
        if own.arrayInputShapeMapping != 0:
            return self.builder.at_least_1d(blob)
        five = {0: (1,) * 5, 1: (1, 1, *sizes, 1, 1), 5: sizes}
        if len(sizes) == 3:
            # Channels, height and width, unless the description has one number: then it is a sequence.
            five[3] = (*sizes, 1, 1) if len(item.dims()) == 1 else (1, 1, *sizes)
        if len(sizes) not in five:
            raise UserError(f"the input '{item.name}' has {len(sizes)} dimensions: 1, 3 or 5 are needed")
        return self.builder.reshape(blob, five[len(sizes)])

    def _preprocessed(self, own: Any, item: Feature, image: GraphExpr) -> GraphExpr:
        """An image times a factor, plus a number a channel, less a mean image."""
        b = self.builder
        for step in own.preprocessing:
            if step.featureName not in ("", item.name):
                continue
            if step.HasField("meanImage"):
                shape = constants(sizes_of(image)[1:])
                mean = np.array(step.meanImage.meanImage, np.float32)
                if shape is None or mean.size != int(np.prod(shape)):
                    raise UserError(f"a mean image of {mean.size} numbers does not fit '{item.name}'")
                image = b.call("subtract", image, b.constant(mean.reshape(shape), FLOAT32))
                continue
            scale = step.scaler
            colors = [scale.redBias, scale.greenBias, scale.blueBias]
            bias = [scale.grayBias] if item.is_gray else colors[::-1] if item.is_blue_first else colors
            factor = float(scale.channelScale) if scale.HasField("channelScale") else 1.0
            image = b.multiply(image, factor)
            image = b.call("add", image, b.constant(np.array(bias, np.float32).reshape(-1, 1, 1), FLOAT32))
        return image

    def _array(self, item: Feature, value: GraphExpr, is_ranked: bool) -> GraphExpr:
        """A result of a network in the shape that the description says, or without sequence and batch."""
        sizes = sizes_of(value)
        if item.is_scalar:
            return self.builder.reshape(value, ())
        if not is_ranked or len(sizes) != 5:
            return value
        if item.kind == "image":
            return self.builder.reshape(value, sizes[1:])
        declared = item.dims()
        numbers = [size for size in declared if isinstance(size, int)]
        if declared and len(numbers) == len(declared) and same(product(numbers), product(sizes)):
            return self.builder.reshape(value, numbers)
        if constants(sizes[:2]) != (1, 1):
            return value
        return self.builder.reshape(value, sizes[2:3] if constants(sizes[3:]) == (1, 1) else sizes[2:])

    # Programs

    def _program(self, model: Any, own: Any, inputs: Named, function: str | None) -> Named:
        wanted = function or model.description.defaultFunctionName or "main"
        if wanted not in own.functions:
            known = ", ".join(sorted(own.functions))
            raise UserError(f"the program has no function '{wanted}'", where=self.source, hint=f"it has {known}")
        chosen = own.functions[wanted]
        given: Named = {}
        for item in chosen.inputs:
            if item.type.HasField("stateType"):
                raise UnsupportedError(
                    f"the input '{item.name}' is a state that the model keeps between calls",
                    where=self.source,
                    hint="convert it with the state as an input and an output",
                )
            dtype = value_dtype(type_name(item.type.tensorType.dataType))
            value = self._known(inputs, item.name)
            if rank_of(value) == 0 and len(item.type.tensorType.dimensions):
                value = self.builder.reshape(value, (1,) * len(item.type.tensorType.dimensions))
            given[item.name] = self.builder.cast(value, dtype)
        results, functions = run_function(chosen, given, self.builder, self.weights, self.source)
        self.functions.extend(functions)
        self._note_labels(chosen)
        return results

    def _note_labels(self, function: Any) -> None:
        """The labels of the operation that classifies, if there is one."""
        for block in function.block_specializations.values():
            constants_by_name = {item.outputs[0].name: item for item in block.operations if item.type == "const"}
            for item in block.operations:
                if item.type != "classify":
                    continue
                for binding in item.inputs["classes"].arguments:
                    source = constants_by_name.get(binding.name)
                    value = binding.value if binding.HasField("value") else source and source.attributes["val"]
                    if value:
                        tensor = value.immediateValue.tensor
                        self.labels = list(tensor.strings.values) or [*tensor.longInts.values, *tensor.ints.values]

    # Outputs

    def _output(self, item: Feature, results: Named) -> GraphExpr:
        """A result under its name, in the type that the description says."""
        value = self._known(results, item.name)
        if item.kind in ("image", "dictionary", "string"):
            return value
        if item.is_scalar and self.has_rows:
            value = self.builder.reshape(value, sizes_of(value)[:1])
        elif item.is_scalar:
            value = self.builder.reshape(value, ())
        if dtype_of(value) is STRING:
            return value
        if item.kind == "double":
            return self.builder.cast(value, FLOAT64)
        return self.builder.cast(value, item.dtype())
