"""Operator fusion: groups of operators become primitive functions, each of which is compiled to one kernel.

Before:  relu(add(conv2d(x, w), b))
After:   fused_nn_conv2d_add_nn_relu(x, w, b)       a call to a function with the note `primitive`

Four kinds of operator take part by these rules, over the post-dominator tree of the dataflow:
 1. An out-fusable operator (conv2d, matmul) takes the elementwise operators that follow it, up to the next
    post-dominator, while they have the shape of its result. A residual add is one of them: its other operand is an
    input of the group. Even and odd columns of a product may meet there on GPUs (`paired_columns`): half as many from
    there on.
 2. Injective operators merge into the injective operator or the reduction that post-dominates them.
 3. Reductions end a group (but for the rounding of their results for tensor cores); opaque operators are alone.
 4. A convolution of an image of few channels takes the change of layout before it.
 5. A depthwise convolution joins the 1 x 1 convolution before or after it where the results in between are too large
    for the cache.
 6. Bytes that the epilogue of an out-fusable operator reads as numbers (a quantised residual) are converted there.
    Where memory is short, an epilogue ends with bytes, and whatever reads them converts them. What it selects by (the
    gradient where a result was positive) is compared there too, and on CPUs so is multiplied what it adds (an
    optimizer's momentum).
 7. On GPUs with products of warp groups, two 1 x 1 convolutions of bytes whose results are added (the branch of a
    residual network that changes its size) are one group: the sums of both are in registers, and none goes to memory.
Everything between a node and its post-dominator joins the group, so a group has one result and never waits for
itself. Operators that the host does stay as they are. Expensive operators are not merged where they would be computed
again for each reader (broadcasting, sliding windows, several passes over the input). A reshape at the border of a
group is left outside, and a slice of contiguous memory that is alone is left as it is: they are views, free. So is
`checked`, which is its first input; the check itself is opaque.

After the pass, a function is made of calls to primitive functions, views, tuples, and control flow. A
result that is an input, a constant, a view of one of them or the same as another result is copied by a primitive of
its own, so that every result has storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.dimensions import at_least, product
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, Var
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.rewrite import known_sizes, make, static_shape
from tilewright.graph.ir.scopes import ScopeMap, find_scopes
from tilewright.graph.ir.traverse import (
    children,
    graph_functions,
    map_functions,
    post_order,
    users,
    with_children,
)
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.shape import SliceAttributes, TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.joined_convolutions import joining_pays, may_join, may_share_registers
from tilewright.graph.views import DEPENDENT_VIEWS, is_view, is_whole_view
from tilewright.ir.dtype import BFLOAT16, BOOL, INT8, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.support.order import children_first
from tilewright.target import Target

MAX_GROUP = 64
"""Operators a group may have: more makes kernels slow to compile and gains nothing."""
_NAME_LENGTH = 80
_FEW_CHANNELS = 4
"""Channels of an image up to which a convolution may read planes: so many places in memory are read at a time."""

_LIGHT = frozenset(
    """add subtract multiply minimum maximum negative abs cast clip nn.relu nn.leaky_relu where equal not_equal less
    less_equal greater greater_equal logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor
    bitwise_not left_shift right_shift reshape transpose broadcast_to concatenate split slice take pad tile sign
    nn.batch_norm dimensions arange assume_shape""".split()
)
"""Injective operators that are cheap to compute again for each reader."""
_DEQUANTIZING = frozenset(
    ["cast", "subtract", "add", "multiply", "left_shift", "right_shift", "qnn.high_product", "qnn.rounded_shift"]
)
"""Operators that bytes become numbers by, or integers of the scale that a sum has."""
_PIECEWISE = ("pad", "concatenate", "take", "tile")
"""Injective operators whose elements come from several places, which each reader has to find out."""
_BORDERED = frozenset(["qnn.conv2d", "qnn.word_conv2d"])
"""Contractions that read a number beside their operands: what the border is filled with."""
WITH_ANY_NUMBER = frozenset(["add", "subtract", "multiply"])
"""Operators that are as quick with one number as with another (scales and zero points: each layer has its own)."""
_SINGLE_PASS = frozenset(["sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin"])
"""Reductions that read each input element once."""
_ENDINGS = frozenset(["round_to_tf32"])
"""Elementwise operators that also follow a reduction in its group."""


def fuse(module: IRModule, options: GraphOptions) -> IRModule:
    """Group the operators of every function into primitive functions, for a target if one is given.

    What `choices` know of the last two rules goes before the estimates.
    """
    names: dict[str, int] = {}
    return map_functions(module, lambda function: _Fuser(function, names, options.target, options.choices).run())


def is_primitive(item: object) -> bool:
    """Whether a value is a fused function."""
    return isinstance(item, Function) and bool(item.notes.get("primitive"))


def primitive_functions(module: IRModule) -> list[Function]:
    """The fused functions of a module, in the order of their calls, each once."""
    found: dict[int, Function] = {}
    for function in graph_functions(module).values():
        for item in post_order(function):
            if isinstance(item, Call) and isinstance(item.callee, Function) and is_primitive(item.callee):
                found.setdefault(id(item.callee), item.callee)
    return list(found.values())


@dataclass(eq=False)
class _Group:
    """Operators that become one kernel."""

    kind: FusionKind
    members: list[Call] = field(default_factory=list)
    heavy: bool = False

    def absorb(self, other: _Group) -> None:
        self.kind = max(self.kind, other.kind)
        self.members.extend(other.members)
        self.heavy = self.heavy or other.heavy


def _operator(item: GraphExpr) -> Operator | None:
    """The operator of a call that fusion may touch (with one tensor as the result)."""
    if isinstance(item, Call) and isinstance(item.callee, Operator) and isinstance(item.type, TensorType):
        return None if item.callee.host or item.callee.name in DEPENDENT_VIEWS else item.callee
    return None


def _has_more_elements(item: GraphExpr, other: GraphExpr) -> bool:
    """Whether a value may have more elements than another."""
    mine, its = known_sizes(item), known_sizes(other)
    return mine is None or its is None or not at_least(product(its), product(mine))


def is_alternate_columns(item: GraphExpr) -> bool:
    """Whether a value is the even or the odd columns of another one."""
    if not is_call_to(item, "slice"):
        return False
    assert isinstance(item, Call) and isinstance(item.attributes, SliceAttributes)
    whole, part = item.args[0].tensor_type.shape, item.tensor_type.shape
    if not whole or not part or whole[:-1] != part[:-1]:
        return False
    first, strides = item.attributes.begin, item.attributes.strides
    return strides[-1] == 2 and set(strides[:-1]) <= {1} and first[-1] in (0, 1) and set(first[:-1]) <= {0}


def _contractions(group: _Group) -> list[GraphExpr]:
    """The contractions of a group."""
    return [item for item in group.members if getattr(_operator(item), "kind", None) is FusionKind.OUT_FUSABLE]


class _Fuser:
    """One run over a function."""

    def __init__(self, function: Function, names: dict[str, int], target: Target | None, choices: GraphChoices) -> None:
        self.function = function
        self.target = target
        self.choices = choices
        self.names = names
        self.order = post_order(function)
        self.position = {id(item): place for place, item in enumerate(self.order)}
        self.users = users(self.order)
        self.scopes: ScopeMap = find_scopes(self.order)
        self.dominator = self._post_dominators()
        self.group: dict[int, _Group] = {}

    def run(self) -> Function:
        if is_primitive(self.function):
            return self.function
        done = {id(inner) for item in self.order if is_primitive(item) for inner in post_order(item)}
        for item in self.order:
            operator = _operator(item)
            if operator is not None and id(item) not in done:
                assert isinstance(item, Call)
                heavy = operator.name not in _LIGHT
                self.group[id(item)] = _Group(operator.kind, [item], heavy)
        for item in self.order:
            if id(item) in self.group and self.group[id(item)].kind is FusionKind.OUT_FUSABLE:
                self._fuse_epilogue(item)
            elif id(item) in self.group and self.group[id(item)].kind is FusionKind.REDUCTION:
                self._fuse_ending(item)
        for item in self.order:
            if id(item) in self.group and self.group[id(item)].kind is FusionKind.INJECTIVE:
                self._fuse_injective(item)
        for item in self.order:
            if id(item) in self.group:
                self._fuse_layout(item)
                self._fuse_convolutions(item)
                self._fuse_operand(item)
                self._fuse_branch(item)
        return self._rebuild()

    def _post_dominators(self) -> dict[int, GraphExpr | None]:
        """The immediate post-dominator of each node: where all ways from it to the result meet first."""
        dominator: dict[int, GraphExpr | None] = {}
        depth: dict[int, int] = {}
        for item in reversed(self.order):
            meet: GraphExpr | None = None
            for index, user in enumerate(self.users[id(item)]):
                meet = user if index == 0 else self._meet(meet, user, dominator, depth)
            dominator[id(item)] = meet
            depth[id(item)] = 0 if meet is None else depth[id(meet)] + 1
        return dominator

    @staticmethod
    def _meet(
        a: GraphExpr | None, b: GraphExpr | None, dominator: dict[int, GraphExpr | None], depth: dict[int, int]
    ) -> GraphExpr | None:
        while a is not b:
            if a is None or b is None:
                return None
            if depth[id(a)] >= depth[id(b)]:
                a = dominator[id(a)]
            else:
                b = dominator[id(b)]
        return a

    def _between(self, start: GraphExpr, end: GraphExpr) -> list[GraphExpr] | None:
        """The nodes on the ways from one to its post-dominator, both left out; None if they are too many."""
        seen: dict[int, GraphExpr] = {}
        stack = list(self.users[id(start)])
        while stack:
            item = stack.pop()
            if item is end or id(item) in seen:
                continue
            if len(seen) >= MAX_GROUP:
                return None
            seen[id(item)] = item
            stack.extend(self.users[id(item)])
        return sorted(seen.values(), key=lambda item: self.position[id(item)])

    def _same_scope(self, a: GraphExpr, b: GraphExpr) -> bool:
        return self.scopes.scope(a) is self.scopes.scope(b)

    def _merge(self, items: Sequence[GraphExpr]) -> None:
        groups = {id(self.group[id(item)]): self.group[id(item)] for item in items}
        first, *rest = groups.values()
        for other in rest:
            first.absorb(other)
            for member in other.members:
                self.group[id(member)] = first

    def _size(self, items: Sequence[GraphExpr]) -> int:
        groups = {id(self.group[id(item)]): self.group[id(item)] for item in items}
        return sum(len(group.members) for group in groups.values())

    def _fuse_epilogue(self, anchor: GraphExpr) -> None:
        """Rule 1: elementwise operators after an out-fusable one."""
        shape = anchor.tensor_type.shape
        current: GraphExpr = anchor
        while True:
            end = self.dominator[id(current)]
            if end is None or self._ends_in_bytes(current, end):
                return
            between = self._between(current, end)
            if between is None:
                return
            if between and self._may_pair(anchor) and all(map(is_alternate_columns, self.users[id(current)])):
                # Parts of the product meet: what follows has the shape of a part.
                shape = between[0].tensor_type.shape
            for item in (*between, end):
                operator = _operator(item)
                if (
                    operator is None
                    or not (operator.elementwise or (self._may_pair(anchor) and is_alternate_columns(item)))
                    or item.tensor_type.shape != shape
                    or self.group[id(item)].kind is not FusionKind.INJECTIVE
                    or not self._same_scope(item, anchor)
                ):
                    return
            items = (current, *between, end)
            if self._size(items) > MAX_GROUP:
                return
            self._merge(items)
            current = end

    def _may_pair(self, anchor: GraphExpr) -> bool:
        """Whether even and odd columns of an operator's result may meet in its kernel: of products, on GPUs."""
        return self.target is not None and not self.target.is_cpu and is_call_to(anchor, "matmul")

    def _ends_in_bytes(self, current: GraphExpr, after: GraphExpr) -> bool:
        """Whether a group ends because what follows makes its bytes wider: where memory is short, readers do that."""
        if self.target is None or not self.target.capabilities.little_memory or not is_call_to(after, "cast"):
            return False
        return current.tensor_type.dtype in (INT8, UINT8) and after.tensor_type.dtype.bits > INT8.bits

    def _fuse_ending(self, reduction: GraphExpr) -> None:
        """Rule 3: what a reduction takes after it."""
        readers = self.users[id(reduction)]
        operators = [_operator(reader) for reader in readers]
        ends = all(operator is not None and operator.name in _ENDINGS for operator in operators)
        if len(readers) == 1 and ends and self._same_scope(reduction, readers[0]):
            self._merge((reduction, readers[0]))

    def _fuse_injective(self, start: GraphExpr) -> None:
        """Rule 2: injective operators into what post-dominates them."""
        end = self.dominator[id(start)]
        if end is None or id(end) not in self.group or not self._same_scope(start, end):
            return
        if self.group[id(end)] is self.group[id(start)]:
            return
        if self.group[id(end)].kind not in (FusionKind.INJECTIVE, FusionKind.REDUCTION):
            return
        between = self._between(start, end)
        if between is None:
            return
        for item in between:
            if id(item) not in self.group or self.group[id(item)].kind is not FusionKind.INJECTIVE:
                return
            if not self._same_scope(item, start):
                return
        items = (start, *between, end)
        if self._size(items) <= MAX_GROUP and self._is_worth(start, between, end):
            self._merge(items)

    def _fuse_layout(self, start: GraphExpr) -> None:
        """Rule 4: the change to channels last of an image of few channels into the convolution that reads it.

        A convolution reads single elements, of few channels as well from planes as from pixels.
        """
        readers = self.users[id(start)]
        if not is_call_to(start, "transpose") or len(readers) != 1 or not is_call_to(readers[0], "nn.conv2d"):
            return
        (reader,) = readers
        assert isinstance(start, Call) and isinstance(reader, Call)
        layout, conv, shape = start.attributes, reader.attributes, known_sizes(start)
        assert isinstance(layout, TransposeAttributes) and isinstance(conv, Conv2dAttributes)
        if shape is None or reader.args[0] is not start or not self._same_scope(start, reader):
            return
        planar = tuple(layout.axes) == (0, 2, 3, 1) and conv.data_layout == "NHWC" and conv.groups == 1
        few = isinstance(shape[-1], int) and shape[-1] <= _FEW_CHANNELS and self.group[id(start)].members == [start]
        if planar and few and self._chosen((start, reader), "together"):
            self._merge((reader, start))

    def _fuse_convolutions(self, anchor: GraphExpr) -> None:
        """Rule 5: a depthwise convolution and a 1 x 1 convolution, one of which reads what follows the other.

        Schedules of GPUs have no such kernels.
        """
        wanted = may_join(anchor)
        if self.target is None or not self.target.is_cpu or wanted is None:
            return
        last = max(self.group[id(anchor)].members, key=lambda item: self.position[id(item)])
        readers = self.users[id(last)]
        if len(readers) != 1 or not wanted(readers[0]) or not self._same_scope(anchor, readers[0]):
            return
        (reader,) = readers
        assert isinstance(anchor, Call) and isinstance(reader, Call)
        if reader.args[0] is not last or any(len(_contractions(self.group[id(n)])) != 1 for n in (anchor, reader)):
            return
        pays = joining_pays(anchor, last, reader, self.target)
        if pays is not None and self._chosen((anchor, reader), "together" if pays else "apart"):
            self._merge((reader, last))

    def _fuse_operand(self, last: GraphExpr) -> None:
        """Rule 6: what an epilogue reads bytes as, selects by or, on CPUs, adds a multiple of: no kernel for it."""
        group, readers = self.group[id(last)], self.users[id(last)]
        if group.kind is not FusionKind.INJECTIVE or len(readers) != 1 or not self._same_scope(last, readers[0]):
            return
        reader, operator = readers[0], _operator(readers[0])
        if operator is None or not operator.elementwise or self.group[id(reader)].kind is not FusionKind.OUT_FUSABLE:
            return
        names = {getattr(member.callee, "name", "") for member in group.members}
        inputs = [arg for arg in _inputs(group.members) if not isinstance(arg, Constant)]
        if len(inputs) != 1 or len({arg.tensor_type.shape for arg in (*inputs, *group.members, reader)}) != 1:
            return
        is_bytes = inputs[0].tensor_type.dtype in (INT8, UINT8) and names <= _DEQUANTIZING
        is_mask = last.tensor_type.dtype is BOOL and names <= _LIGHT
        on_cpu = self.target is not None and self.target.is_cpu
        is_multiple = on_cpu and names == {"multiply"} and len(group.members) == 1
        if (is_bytes or is_mask or is_multiple) and self._size((last, reader)) <= MAX_GROUP:
            self._merge((reader, last))

    def _fuse_branch(self, last: GraphExpr) -> None:
        """Rule 7: two products of bytes whose results are added, one of them in float32."""
        readers = self.users[id(last)]
        if self.target is None or not self.target.has_warp_group_products or len(readers) != 1:
            return
        groups = self.group[id(last)], self.group.get(id(readers[0]))
        if groups[1] is None or groups[0] is groups[1] or not self._same_scope(last, readers[0]):
            return
        each = [_contractions(group) for group in groups if group is not None]
        is_small = self._size((last, readers[0])) <= MAX_GROUP and all(len(part) == 1 for part in each)
        if is_small and may_share_registers([part[0] for part in each], last, self.target):
            self._merge((readers[0], last))

    def _chosen(self, calls: Sequence[Call], estimated: str) -> bool:
        """Whether calls that may be one kernel or two become one."""
        if self.target is None or not self.target.is_cpu:
            return estimated == "together"
        return self.choices.choose(calls, ("apart", "together"), estimated) == "together"

    def _is_worth(self, start: GraphExpr, between: Sequence[GraphExpr], end: GraphExpr) -> bool:
        """Whether merging computes no expensive operator more than once for an element."""
        producers = [start, *between]
        if self._reads_piecewise(producers, (*between, end)):
            return False
        if not any(self.group[id(item)].heavy for item in producers):
            return True
        final = _operator(end)
        assert final is not None
        if final.kind is FusionKind.REDUCTION and final.name not in _SINGLE_PASS:
            return False
        inside = {id(item) for item in producers}
        several = len({id(user) for user in self.users[id(start)]}) > 1
        for item in (*between, end):
            operator = _operator(item)
            assert operator is not None
            if several and not operator.elementwise:
                return False
            if operator.kind is not FusionKind.INJECTIVE:
                continue
            given = [arg for arg in children(item) if id(arg) in inside]
            if operator.name not in ("concatenate", "pad") and any(_has_more_elements(item, arg) for arg in given):
                return False
        return True

    def _reads_piecewise(self, producers: Sequence[GraphExpr], readers: Sequence[GraphExpr]) -> bool:
        """Whether overlapping parts (the frames of a signal) would be taken of what is put together of pieces.

        For each element that is taken, the piece it comes from would be looked for: the pieces are put together once.
        A table of fixed size, of which an open number of rows is taken, is not: most of its rows may not be asked for.
        """
        inside = {id(item) for item in producers}
        for item in readers:
            if not is_call_to(item, "take") or id(children(item)[0]) not in inside:
                continue
            data = children(item)[0]
            is_open = static_shape(data) is None or static_shape(item) is not None
            members = {id(member): member for part in producers for member in self.group[id(part)].members}
            pieces = any(is_call_to(member, name) for member in members.values() for name in _PIECEWISE)
            if is_open and pieces and _has_more_elements(item, data):
                return True
        return False

    def _rebuild(self) -> Function:
        """Make each group a call to a primitive function."""
        groups = {id(group): group for group in self.group.values()}
        sinks: dict[int, list[Call]] = {}
        for group in groups.values():
            members = self._without_views(sorted(group.members, key=lambda item: self.position[id(item)]))
            if members:
                sinks[id(members[-1])] = members
        externals: dict[int, list[GraphExpr]] = {key: _inputs(members) for key, members in sinks.items()}
        memo: dict[int, GraphExpr] = {}
        for item in self._group_order(sinks, externals):
            memo[id(item)] = self._leave(item, sinks, externals, memo)
        result = memo[id(self.function)]
        assert isinstance(result, Function)
        return _with_own_results(result, self)

    def _group_order(self, sinks: dict[int, list[Call]], externals: dict[int, list[GraphExpr]]) -> list[GraphExpr]:
        """Post-order over the graph of groups: members other than a sink are not entered."""

        def below(item: GraphExpr) -> Sequence[GraphExpr]:
            if id(item) in sinks:
                return externals[id(item)]
            return () if is_primitive(item) else children(item)

        return children_first([self.function], below)

    def _leave(
        self,
        item: GraphExpr,
        sinks: dict[int, list[Call]],
        externals: dict[int, list[GraphExpr]],
        memo: dict[int, GraphExpr],
    ) -> GraphExpr:
        if id(item) in sinks:
            inputs = externals[id(item)]
            function = self.primitive(sinks[id(item)], inputs)
            result = Call(function, tuple(memo[id(arg)] for arg in inputs))
            result.span, result.type = item.span, item.type
            return result
        if is_primitive(item):
            return item
        if isinstance(item, Call) and isinstance(item.callee, Operator) and not is_view(item) and not item.callee.host:
            # An operator with a tuple as its result: alone in its group.
            inputs = _inputs([item])
            result = Call(self.primitive([item], inputs), tuple(memo[id(arg)] for arg in inputs))
            result.span, result.type = item.span, item.type
            return result
        rebuilt = with_children(item, [memo[id(child)] for child in children(item)])
        if rebuilt is not item and rebuilt.type is None:
            rebuilt.type = item.type
        return rebuilt

    def _without_views(self, members: list[Call]) -> list[Call]:
        """A group in order without reshapes at its borders."""
        while members and is_call_to(members[-1], "reshape"):
            members = members[:-1]
        if len(members) == 1 and is_view(members[0]):
            return []
        while True:
            inside = {id(member) for member in members}
            leading = [m for m in members[:-1] if is_call_to(m, "reshape") and id(m.args[0]) not in inside]
            if not leading:
                return members
            dropped = {id(member) for member in leading}
            members = [member for member in members if id(member) not in dropped]

    def primitive(self, members: Sequence[Call], inputs: Sequence[GraphExpr]) -> Function:
        """The function of a group: its inputs as parameters, its members as the body."""
        mapping: dict[int, GraphExpr] = {}
        params: list[Var] = []
        for index, arg in enumerate(inputs):
            param = Var(f"p{index}", arg.type)
            params.append(param)
            mapping[id(arg)] = param
        for member in members:
            new = Call(member.callee, tuple(mapping.get(id(arg), arg) for arg in member.args), member.attributes)
            new.span, new.type = member.span, member.type
            mapping[id(member)] = new
        nodes = tuple(dict.fromkeys(str(member.span) for member in members if member.span is not None))
        notes: dict[str, object] = {"primitive": True, "name": self._name(members), "nodes": nodes}
        result = Function("", tuple(params), mapping[id(members[-1])], members[-1].type, (), notes)
        result.span = members[-1].span
        fill_type(result)
        return result

    def _name(self, members: Sequence[Call]) -> str:
        parts = [member.callee.name.replace(".", "_") for member in members if isinstance(member.callee, Operator)]
        text = "_".join(parts) if len(parts) == 1 else "fused_" + "_".join(parts)
        text = text[:_NAME_LENGTH].rstrip("_")
        count = self.names.get(text, 0)
        self.names[text] = count + 1
        return text if count == 0 else f"{text}_{count}"


def _inputs(members: Sequence[Call]) -> list[GraphExpr]:
    """What a group reads from outside, each once.

    Single numbers stay inside as constants of the kernel, but for that of the last operator where all are injective:
    kernels that differ in nothing else are one.
    """
    inside = {id(member) for member in members}
    kinds = {member.callee.kind for member in members if isinstance(member.callee, Operator)}
    takes_number = kinds == {FusionKind.INJECTIVE} and any(is_call_to(members[-1], name) for name in WITH_ANY_NUMBER)
    found: dict[int, GraphExpr] = {}
    for member in members:
        assert isinstance(member.callee, Operator)
        for arg in member.args:
            if id(arg) in inside:
                continue
            is_number = isinstance(arg, Constant) and arg.data.size == 1 and arg.dtype is not BFLOAT16
            is_inside = is_number and (member.callee.kind is FusionKind.INJECTIVE or member.callee.name in _BORDERED)
            if not is_inside or (takes_number and member is members[-1]):
                found.setdefault(id(arg), arg)
    return list(found.values())


def _with_own_results(function: Function, fuser: _Fuser) -> Function:
    """Copy results that are no fresh values: inputs, constants, views of these, and repeated results."""
    body = function.body
    results = body.items if isinstance(body, Tuple) else (body,)
    used: set[int] = set()
    new: list[GraphExpr] = []
    for item in results:
        base = item
        whole = True
        while is_view(base) and isinstance(base, Call):
            whole = whole and is_whole_view(base)
            base = base.args[0]
        fresh = whole and not isinstance(base, (Var, Constant))
        if isinstance(item.type, TensorType) and (not fresh or id(base) in used):
            new.append(_copy(item, fuser))
        else:
            new.append(item)
            used.add(id(base))
    if all(a is b for a, b in zip(results, new, strict=True)):
        return function
    if isinstance(body, Tuple):
        new_body: GraphExpr = Tuple(tuple(new))
        new_body.span, new_body.type = body.span, body.type
    else:
        new_body = new[0]
    result = function.replace(body=new_body)
    result.type = function.type
    return result


def _copy(item: GraphExpr, fuser: _Fuser) -> GraphExpr:
    """A primitive that copies: a reshape to the same shape that is not a view. Texts, never written to, stay."""
    shape = known_sizes(item)
    if shape is None or item.tensor_type.dtype.is_string:
        return item
    member = make("reshape", item, shape=shape, span=item.span)
    inputs: list[GraphExpr] = [item]
    result = Call(fuser.primitive([member], inputs), (item,))
    result.span, result.type = item.span, item.type
    return result
