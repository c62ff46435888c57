"""Node machinery: constructors, interning, traversal, rebuilding."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
from typing import ClassVar

import pytest

from tilewright.ir.expr import IntImm, Range
from tilewright.ir.node import Node, map_value, node
from tilewright.support.errors import CompilerBug


@node(interned=True)
class Leaf(Node):
    """A test leaf."""

    value: int


@node()
class Branch(Node):
    """A test node with all shapes of fields."""

    left: Node
    many: tuple[Node, ...] = ()
    named: dict[str, object] = {}  # noqa: RUF012
    text: str = "t"
    shared: ClassVar[int] = 7


@node()
class Fields(Node):
    """Annotated as nodes, but promising nothing."""

    one: Range
    several: tuple[Range, ...]


@node()
class Promised(Fields):
    """The same, with the promise that walks rely on."""

    holds_nodes: ClassVar[bool] = True


@node(interned=True)
class Checked(Node):
    """A node that checks its fields and derives a slot."""

    value: int
    _slots: ClassVar[tuple[str, ...]] = ("double",)

    def _post_init(self) -> None:
        if self.value < 0:
            raise CompilerBug("negative")
        self.double = 2 * self.value


class Marked(Node):
    """A base with side data."""

    __slots__ = ("mark",)
    side_data: ClassVar[tuple[str, ...]] = ("mark",)
    mark: str

    def copy_side_data(self, other: Node) -> None:
        other.mark = self.mark


@node()
class MarkedLeaf(Marked):
    """A node with side data."""

    child: Node


def test_constructor_fields_and_defaults():
    branch = Branch(Leaf(1))
    assert Branch.fields == ("left", "many", "named", "text")
    assert branch.text == "t" and branch.many == () and branch.shared == 7
    assert branch.field_values() == (Leaf(1), (), {}, "t")
    assert Branch(Leaf(1), text="u").text == "u"
    assert "Branch(left=Leaf(value=1)" in repr(branch)
    with pytest.raises(AttributeError):
        branch.other = 1


def test_interned_nodes_are_one_object():
    assert Leaf(3) is Leaf(3)
    assert Leaf(3) is not Leaf(4)
    assert Branch(Leaf(1)) is not Branch(Leaf(1))
    assert copy.copy(Leaf(3)) is Leaf(3)
    assert copy.deepcopy(Leaf(3)) is Leaf(3)


def test_interned_nodes_die():
    from tilewright.ir import node as machinery

    def living() -> int:
        # Other tests leave nodes behind that any collection may take: only this test's own are counted.
        machinery._sweep()
        return sum(1 for key in list(machinery._TABLE) if key[0] is Leaf and key[1] >= 1000)

    gc.collect()
    assert living() == 0
    keep = [Leaf(1000 + k) for k in range(50)]
    assert living() == 50
    del keep
    gc.collect()
    assert living() == 0
    assert Leaf(1000).value == 1000


def test_keys_of_dead_nodes_are_swept_by_those_who_make_new_ones():
    """Deep trees go in one sweep: the key of a node holds its operands alive."""
    from tilewright.ir import node as machinery
    from tilewright.ir.expr import Var

    machinery._sweep()
    # What others hold alive stays: the table may be twice as tall as that.
    ceiling = max(4 * machinery._SMALL_TABLE, 3 * len(machinery._TABLE))
    tallest = 0
    for _ in range(200):
        tree = Var("i") * 2
        for k in range(1000):
            tree = (tree + k) * 3
        tallest = max(tallest, len(machinery._TABLE))
    assert max(tallest, machinery._most_entries) <= ceiling
    del tree
    machinery._sweep()
    before = len(machinery._TABLE)
    machinery._sweep()
    assert len(machinery._TABLE) == before


def test_interning_from_many_threads():
    found: list[list[Leaf]] = [[] for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(mine: list[Leaf]) -> None:
        barrier.wait()
        mine.extend(Leaf(5000 + k) for k in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for nodes in zip(*found, strict=True):
        assert len({id(item) for item in nodes}) == 1


def test_nodes_that_outlive_the_module_at_exit_are_silent():
    program = "import builtins\nfrom tilewright.ir.expr import Var\nbuiltins.kept = [Var('i') * k for k in range(99)]"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_post_init_runs_before_interning():
    assert Checked(4).double == 8
    with pytest.raises(CompilerBug, match="negative"):
        Checked(-1)
    with pytest.raises(CompilerBug, match="negative"):
        Checked(-1)


def test_children_look_into_tuples_and_dictionaries():
    branch = Branch(Leaf(1), (Leaf(2), Leaf(3)), {"a": Leaf(4), "b": 5, "c": (Leaf(6),)})
    assert [child.value for child in branch.children()] == [1, 2, 3, 4, 6]


def test_rebuild():
    branch = Branch(Leaf(1), (Leaf(2),), {"a": Leaf(4), "b": 5})
    assert branch.rebuild(lambda child: child) is branch
    changed = branch.rebuild(lambda child: Leaf(child.value + 1))
    assert [child.value for child in changed.children()] == [2, 3, 5]
    assert changed.named["b"] == 5
    assert map_value(3, lambda child: child) == 3


def test_replace():
    branch = Branch(Leaf(1))
    assert branch.replace(text="u").text == "u"
    with pytest.raises(CompilerBug, match="Branch has no field colour"):
        branch.replace(colour=1)


def test_side_data_is_kept_but_is_no_field():
    item = MarkedLeaf(Leaf(1))
    item.mark = "here"
    assert MarkedLeaf.fields == ("child",)
    assert item.rebuild(lambda child: Leaf(2)).mark == "here"
    assert item.replace(child=Leaf(5)).mark == "here"


def test_fields_hold_nodes_alone_where_a_class_promises_it() -> None:
    first, second, other = (Range(IntImm(0), IntImm(size)) for size in (1, 2, 3))
    for cls in (Fields, Promised):
        made = cls(first, (second, first))
        assert made.children() == (first, second, first)
        assert made.rebuild(lambda item: item) is made
        changed = made.rebuild(lambda item: other if item is second else item)
        assert (changed.one, changed.several) == (first, (other, first))
    loose = Fields(1, (first, 2))  # type: ignore[arg-type]
    assert loose.children() == (first,) and loose.rebuild(lambda item: other).several == (other, 2)
