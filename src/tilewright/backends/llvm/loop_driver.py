"""The native function that takes the turns of a loop of the virtual machine (`runtime/vm/loops.py`).

    void @<model>_loop(ptr table)

The table begins with sixteen words: the code of the condition (0: there is none) and of the turn, where the addresses
of the condition's inputs, of the flag, and of the turn's inputs and outputs are, the workspace, the constants, the
symbols of both (0: none), the moves and steps after a turn with their numbers, the most turns to take, and how many
were taken. A move copies an address from one place to another; a step adds to an address and flips bits of it. A
condition or a turn that fails ends the loop before that turn: whoever called takes it again, and has the error.
"""

from __future__ import annotations

_WORDS = (
    "condition body condition_inputs flag inputs outputs workspace constants condition_symbols symbols moves move_count"
    " steps step_count turns taken"
).split()
_NUMBERS = ("move_count", "step_count", "turns")


def emit_loop_driver(name: str) -> str:
    """The function for the model of a name."""
    loads: list[str] = []
    for place, word in enumerate(_WORDS):
        loads.append(f"  %{word}_at = getelementptr i64, ptr %table, i64 {place}")
        if word != "taken":
            loads.append(f"  %{word} = load {'i64' if word in _NUMBERS else 'ptr'}, ptr %{word}_at, align 8")
    condition = _call("condition", "condition_inputs", "flag", "condition_symbols", "look")
    body = _call("body", "inputs", "outputs", "symbols", "moving")
    return _DRIVER.format(name=name, loads="\n".join(loads), condition=condition, body=body)


def _call(code: str, inputs: str, outputs: str, symbols: str, then: str) -> str:
    """Native code with or without symbols; goes on where it succeeds, and stops where it fails."""
    arguments = f"ptr %{inputs}, ptr %{outputs}, ptr %workspace, ptr %constants"
    return f"""  %{code}_fixed = icmp eq ptr %{symbols}, null
  br i1 %{code}_fixed, label %{code}_plain, label %{code}_sized
{code}_plain:
  %{code}_first = call i32 %{code}({arguments})
  br label %{code}_done
{code}_sized:
  %{code}_second = call i32 %{code}({arguments}, ptr %{symbols})
  br label %{code}_done
{code}_done:
  %{code}_returned = phi i32 [ %{code}_first, %{code}_plain ], [ %{code}_second, %{code}_sized ]
  %{code}_failed = icmp ne i32 %{code}_returned, 0
  br i1 %{code}_failed, label %stop, label %{then}"""


_DRIVER = """define void @{name}_loop(ptr %table) nounwind {{
entry:
{loads}
  br label %turn
turn:
  %count = phi i64 [ 0, %entry ], [ %next, %stepped ]
  %full = icmp sge i64 %count, %turns
  br i1 %full, label %stop, label %ask
ask:
  %tests = icmp ne ptr %condition, null
  br i1 %tests, label %test, label %look
test:
{condition}
look:
  %flag_address = load ptr, ptr %flag, align 8
  %flag_byte = load i8, ptr %flag_address, align 1
  %goes = icmp ne i8 %flag_byte, 0
  br i1 %goes, label %run, label %stop
run:
{body}
moving:
  %move = phi i64 [ 0, %body_done ], [ %move_next, %moved ]
  %moved_all = icmp sge i64 %move, %move_count
  br i1 %moved_all, label %stepping, label %moved
moved:
  %pair = mul i64 %move, 2
  %from_at = getelementptr ptr, ptr %moves, i64 %pair
  %to_at = getelementptr ptr, ptr %from_at, i64 1
  %from = load ptr, ptr %from_at, align 8
  %to = load ptr, ptr %to_at, align 8
  %address = load i64, ptr %from, align 8
  store i64 %address, ptr %to, align 8
  %move_next = add i64 %move, 1
  br label %moving
stepping:
  %step = phi i64 [ 0, %moving ], [ %step_next, %step_done ]
  %stepped_all = icmp sge i64 %step, %step_count
  br i1 %stepped_all, label %stepped, label %step_done
step_done:
  %triple = mul i64 %step, 3
  %cell_at = getelementptr ptr, ptr %steps, i64 %triple
  %stride_at = getelementptr i64, ptr %cell_at, i64 1
  %mask_at = getelementptr i64, ptr %cell_at, i64 2
  %cell = load ptr, ptr %cell_at, align 8
  %stride = load i64, ptr %stride_at, align 8
  %mask = load i64, ptr %mask_at, align 8
  %old = load i64, ptr %cell, align 8
  %further = add i64 %old, %stride
  %new = xor i64 %further, %mask
  store i64 %new, ptr %cell, align 8
  %step_next = add i64 %step, 1
  br label %stepping
stepped:
  %next = add i64 %count, 1
  br label %turn
stop:
  store i64 %count, ptr %taken_at, align 8
  ret void
}}"""
