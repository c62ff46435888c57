"""Models computed in half precision: products in float16 or bfloat16, and what lies between them.

Before:  x (float32) -> conv2d(x, w) -> + b -> relu -> ... -> softmax -> y (float32)
After:   x -> cast -> conv2d(float16) -> + b -> relu -> ... -> softmax -> cast -> y

Products take their operands in half precision and add up in float32. Operators that neither grow values much nor lose
digits follow their inputs: elementwise ones, pools, moves, and softmax and norms, which compute in float32 inside. The
rest (exponentials, quotients, powers, long sums, recurrent layers) stays in float32. Of a long short-term memory of
several sequences tensor cores multiply weights and hidden states in half precision; cells stay in float32. Inputs and
results keep their types; constants are rounded at compile time.

A value that products read as halves, and beside them only sums (the gradient of a bias), is read as halves by these
too: memory holds one of it, the narrow one.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.float_types import FloatTypes, element_type
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.target.machine import gpu_parameters

PRODUCTS = frozenset(["matmul", "nn.conv2d", "nn.conv2d_transpose", "nn.attention"])
"""Operators whose float32 inputs become halves."""
ON_DEVICES = frozenset(["nn.conv2d_weight_gradient"])
"""The same on devices, whose tensor cores take halves; CPUs add up pixels of float32."""
RECURRENT = "nn.lstm"
"""Several steps of several sequences are products too, of weights and hidden states, where there are tensor cores."""
PACKED = frozenset(["packed.matmul"])
"""The same on devices, of float16: their scales are halves too."""
FOLLOWERS = frozenset(
    "add subtract multiply maximum minimum negative abs clip where sign nn.relu nn.leaky_relu nn.prelu nn.elu nn.selu "
    "nn.hard_sigmoid nn.gelu sigmoid tanh erf concatenate split reshape transpose slice pad tile take broadcast_to "
    "assume_shape nn.max_pool2d nn.avg_pool2d nn.max_pool2d_gradient nn.avg_pool2d_gradient nn.softmax nn.layer_norm "
    "mean max min".split()
)
"""Operators that compute in half precision where what they read is."""
STATISTICS = {"moments": (0,), "nn.batch_norm": (0,), "nn.batch_norm_sums": (0, 2)}
"""Operators of which these inputs follow; statistics, theirs and those they are given, stay in float32."""
HALVES = (FLOAT16, BFLOAT16)


def reduce_precision(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute float32 models in half precision where that is safe."""
    dtype = options.half
    if dtype is None:
        return module
    on_device = options.target is not None and not options.target.is_cpu
    products = PRODUCTS | (ON_DEVICES if on_device else frozenset())
    if on_device and dtype is FLOAT16:
        products |= PACKED
    has_tensor_cores = options.target is not None and options.target.has_tensor_cores
    sequences = gpu_parameters(options.machine).recurrence.least_sequences if has_tensor_cores else None
    return map_functions(
        module, lambda function: _sums_of_halves(_Reduce(dtype, products, sequences).run(function), dtype)
    )


def _sums_of_halves(function: Function, dtype: DataType) -> Function:
    """Sums read halves where everybody else does."""
    order = post_order(function)
    readers = users(order)

    def is_half(item: GraphExpr) -> bool:
        return is_call_to(item, "cast") and element_type(item) is dtype

    def is_sum(item: GraphExpr) -> bool:
        if is_call_to(item, "reshape"):
            return all(is_call_to(reader, "sum") for reader in readers[id(item)])
        return is_call_to(item, "sum") and element_type(item) is FLOAT32

    def reads_alone(item: GraphExpr) -> bool:
        found = readers[id(item)]
        return any(map(is_half, found)) and all(is_half(reader) or is_sum(reader) for reader in found)

    wanted = {id(item) for item in order if isinstance(item, Call) and is_sum(item) and reads_alone(item.args[0])}
    if not wanted:
        return function

    def changed(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        new.type = old.type if new.type is None else new.type
        if id(old) not in wanted:
            return None
        assert isinstance(new, Call)
        wide = make("cast", make("cast", new.args[0], dtype=dtype), dtype=FLOAT32)
        result = Call(new.callee, (wide, *new.args[1:]), new.attributes)
        result.span, result.type = old.span, old.type
        return result

    result = function.replace(body=rewrite(function.body, changed))
    result.type = function.type
    return result


class _Reduce(FloatTypes):
    """One run over a function."""

    def __init__(self, dtype: DataType, products: frozenset[str], sequences: int | None) -> None:
        super().__init__((FLOAT32, dtype))
        self._dtype = dtype
        self._products = products
        self._sequences = sequences
        """Sequences from which on recurrent layers are products; None where they never are."""

    def computed_in(self, item: Call) -> DataType | None:
        """Half precision for products, and for what follows them."""
        assert isinstance(item.callee, Operator)
        name = item.callee.name
        floats = [arg for arg in item.args if element_type(arg) is FLOAT32]
        if not floats:
            return None
        following = [item.args[place] for place in STATISTICS[name]] if name in STATISTICS else floats
        moving = [arg for arg in following if not isinstance(arg, Constant)]
        may_follow = name in FOLLOWERS or name in STATISTICS
        follows = may_follow and any(element_type(self.new(arg)) is self._dtype for arg in moving)
        computes = name in self._products or (name == RECURRENT and self._has_sequences(item))
        return self._dtype if computes or follows else None

    def _has_sequences(self, layer: Call) -> bool:
        """Whether a recurrent layer with constant weights has several steps of enough sequences."""
        steps, sequences, *_ = static_shape(layer.args[0]) or (0, 0)
        enough = self._sequences is not None and sequences >= self._sequences
        return enough and steps > 1 and isinstance(layer.args[1], Constant)

    def converted_call(self, item: Call, dtype: DataType) -> GraphExpr:
        """An operator that computes in a type, or reads data of that type."""
        assert isinstance(item.callee, Operator)
        if item.callee.name == RECURRENT:
            # What enters the gates is as it was made.
            entering = element_type(self.new(item.args[0])) or FLOAT32
            return self.typed_call(item, [entering, dtype, dtype, *[FLOAT32] * (len(item.args) - 3)])
        places = STATISTICS.get(item.callee.name, range(len(item.args)))
        return self.typed_call(item, [dtype if place in places else FLOAT32 for place in range(len(item.args))])
