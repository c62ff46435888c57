"""How many cycles the accelerator takes for a program: its control, cycle by cycle, without any data.

The hardware (`accel/hardware`) as a loop program, which Tilewright compiles: queues, tokens, the memory port's
arbiter, walkers of LOAD and STORE, and the pipelines of compute and EPI, as counters. One iteration is one cycle, or
all cycles up to the next event where each is like the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import INSTRUCTION_BYTES, encode
from tilewright.accel.instructions import Instruction, Unit
from tilewright.compiler import build
from tilewright.support.errors import UserError
from tilewright.tir.script import parse_script
from tilewright.tune.accel_table import COLUMNS, EPI, FINISH, LOAD, STORE, Array, instruction_table

STATE: Final = (
    # The memory port: reads on their way, whose turn it is, where the next answer lies.
    "outstanding", "fetch_turn", "slot", "cycles", "finished", "still", "calm", "run", "ahead",
    # Fetch: words to ask for, words that have room, its buffer, words (or lanes) of an instruction, instructions left.
    "f_left", "f_reserved", "f_inner", "f_ready", "f_have", "f_next",
    # Command queues: entries inside and at the exit, instructions taken.
    "q_inner0", "q_ready0", "q_taken0", "q_inner1", "q_ready1", "q_taken1", "q_inner2", "q_ready2", "q_taken2",
    # Tokens: load -> compute, compute -> load, compute -> store, store -> compute.
    "t_lc", "t_cl", "t_cs", "t_sc",
    # The reader of the load unit: words to ask for; words there; LOADs under way; the one that is written.
    "l_left", "l_reserved", "l_inner", "l_ready", "u_inner", "u_ready", "u_next",
    "w_item", "w_busy", "w_pads", "w_words", "w_rows",
    # That of the compute unit.
    "c_left", "c_reserved", "c_inner", "c_ready", "v_inner", "v_ready", "v_next",
    "x_item", "x_busy", "x_pads", "x_words", "x_rows",
    # GEMM and ALU: steps left, the step in its pattern, and the pipeline (bit n: stage n).
    "g_item", "g_busy", "g_left", "g_step", "step_reads", "p_valid", "p_prev", "p_next", "p_reads", "p_upper",
    # EPI: tensors left, the inner step, indices; its pipeline.
    "e_item", "e_busy", "e_left", "e_inner", "e_row", "e_index", "y_valid", "y_works", "y_prev",
    # STORE: words left, words of the element left, whether it reads, copies or sends; the index that it reads.
    "s_item", "s_busy", "s_left", "s_lane", "s_needs", "s_copies", "s_streams", "s_index",
    # Cycles that units have been busy.
    "busy_load", "busy_compute", "busy_store",
)  # fmt: skip

_TEXT = """
@script.function
def cycles_of(
    table: Buffer[(n, K), "int64"], numbers: Buffer[(p,), "int64"],
):
    # Behind the numbers: what comes back in the next cycles, a ring.
    m = p - RING
    S = allocate((SIZE,), "int64", "local")
    for i in range(SIZE):
        S[i] = int64(0)
    # Columns from `order` on: the instructions of each unit, then the LOADs of load and of compute.
    for i in range(n):
        table[S[table[i, unit_]], ORDER + table[i, unit_]] = i
        S[table[i, unit_]] = S[table[i, unit_]] + 1
        if table[i, kind_] == LOAD:
            table[S[3 + table[i, unit_]], ORDER + 3 + table[i, unit_]] = i
            S[3 + table[i, unit_]] = S[3 + table[i, unit_]] + 1
    for i in range(5):
        S[i] = int64(0)
    depth = numbers[0]
    room = numbers[1]
    half = numbers[2]
    per_instruction = numbers[3]
    per_word = numbers[4]
    most_still = numbers[5]
    most_cycles = numbers[6]
    leaps = numbers[8]
    S[f_left] = numbers[7]
    while S[finished] == 0:
        # The port: what is asked for, who is served, what comes back.
        answer = numbers[RING + S[slot]]
        may_read = S[outstanding] < depth
        wants_store = S[s_streams] != 0
        wants_compute = S[c_left] != 0 and S[c_reserved] < depth
        wants_load = S[l_left] != 0 and S[l_reserved] < depth
        wants_fetch = S[f_left] != 0 and S[f_reserved] < depth
        fetch_first = wants_fetch and (S[fetch_turn] != 0 or not wants_load)
        below = may_read and not wants_store and not wants_compute
        sent = int64(1) if wants_store else int64(0)
        asked_compute = int64(1) if (wants_compute and may_read and not wants_store) else int64(0)
        asked_fetch = int64(1) if (fetch_first and below) else int64(0)
        asked_load = int64(1) if (wants_load and below and not fetch_first) else int64(0)
        asked = asked_compute + asked_fetch + asked_load
        for_compute = int64(1) if answer == 1 else int64(0)
        for_load = int64(1) if answer == 2 else int64(0)
        for_fetch = int64(1) if answer == 3 else int64(0)
        answered = for_compute + for_load + for_fetch
        # The heads of the three queues.
        head0 = table[min(S[q_taken0], n - 1), ORDER + 0]
        head1 = table[min(S[q_taken1], n - 1), ORDER + 1]
        head2 = table[min(S[q_taken2], n - 1), ORDER + 2]
        # Fetch: an instruction goes to its queue.
        complete = (S[f_have] == per_instruction - 1) or (per_word > 1)
        here = min(S[f_next], n - 1)
        unit = table[here, unit_]
        has_room = (S[q_inner0] if unit == 0 else (S[q_inner1] if unit == 1 else S[q_inner2])) < room
        given = int64(1) if (S[f_ready] != 0 and complete and has_room and S[f_next] < n) else int64(0)
        last_lane = per_word == 1 or S[f_have] == per_word - 1
        reads_word = (given if last_lane else int64(0)) if complete else S[f_ready]
        # Compute: the pipeline's read of an accumulator.
        compute_reads = S[p_reads] // 8 % 2
        compute_upper = S[p_upper] // 8 % 2
        # Store: EPI reads an accumulator where compute does not use its bank.
        e_empty = S[e_left] == 0
        e_upper = int64(1) if S[e_index] >= half else int64(0)
        e_granted = S[e_busy] != 0 and not e_empty and not (compute_reads != 0 and compute_upper == e_upper)
        e_steps = int64(1) if (S[e_busy] != 0 and (e_empty or e_granted)) else int64(0)
        e_last = e_empty or S[e_left] == 1
        e_ready = S[e_busy] == 0 or (e_steps != 0 and e_last)
        e_writes = S[y_works] // 16 % 2
        # STORE: words of an element, then the next element.
        element_ends = sent != 0 and S[s_lane] == 1
        s_ends = S[s_busy] != 0 and (S[s_left] == 0 or (sent != 0 and S[s_left] == 1))
        following = element_ends and not s_ends
        s_acc = table[S[s_item], is_acc_]
        s_upper = int64(1) if S[s_index] >= half else int64(0)
        s_free = not (compute_reads != 0 and compute_upper == s_upper)
        has_read = (S[s_needs] != 0 or following) if s_acc == 0 else (S[s_needs] != 0 and s_free)
        # The store unit's next instruction.
        kind2 = table[head2, kind_]
        is_epi = kind2 == EPI
        idle_epi = S[e_busy] == 0 and S[y_valid] == 0
        turn2 = S[s_busy] == 0 and (e_ready if is_epi else idle_epi)
        has2 = table[head2, pop_prev_] == 0 or S[t_cs] != 0
        take2 = int64(1) if (S[q_ready2] != 0 and turn2 and has2) else int64(0)
        finishes = take2 != 0 and kind2 == FINISH
        # The load unit's reader: asks for words, and writes those that have come.
        l_ends = asked_load != 0 and S[l_left] == 1
        l_ready_now = (S[l_left] == 0 or l_ends) and S[u_inner] < 7
        has0 = table[head0, pop_next_] == 0 or S[t_cl] != 0
        take0 = int64(1) if (S[q_ready0] != 0 and l_ready_now and has0) else int64(0)
        w_data = S[w_pads] == 0 and S[w_words] != 0
        w_empty = S[w_pads] == 0 and S[w_words] == 0
        w_blocked = e_writes != 0 and table[S[w_item], is_out_] != 0
        w_valid = S[w_busy] != 0 and not w_empty and (not w_data or S[l_ready] != 0) and not w_blocked
        w_row_ends = w_valid and w_data and S[w_words] == 1
        w_gap = table[S[w_item], gap_] if S[w_rows] > 1 else table[S[w_item], tail_]
        w_pad_ends = w_valid and not w_data and S[w_pads] == 1 and S[w_rows] == 0
        w_last = w_pad_ends or (w_row_ends and S[w_rows] == 1 and w_gap == 0)
        w_ends = S[w_busy] != 0 and (w_empty or w_last)
        u_takes = S[w_busy] == 0 or w_ends
        # That of the compute unit.
        c_ends = asked_compute != 0 and S[c_left] == 1
        x_data = S[x_pads] == 0 and S[x_words] != 0
        x_empty = S[x_pads] == 0 and S[x_words] == 0
        x_valid = S[x_busy] != 0 and not x_empty and (not x_data or S[c_ready] != 0)
        x_row_ends = x_valid and x_data and S[x_words] == 1
        x_gap = table[S[x_item], gap_] if S[x_rows] > 1 else table[S[x_item], tail_]
        x_pad_ends = x_valid and not x_data and S[x_pads] == 1 and S[x_rows] == 0
        x_last = x_pad_ends or (x_row_ends and S[x_rows] == 1 and x_gap == 0)
        x_ends = S[x_busy] != 0 and (x_empty or x_last)
        v_takes = S[x_busy] == 0 or x_ends
        reader_busy = S[x_busy] != 0 or S[v_inner] + S[v_ready] != 0
        # Compute's next instruction.
        g_last = S[g_left] <= 1
        is_load1 = table[head1, kind_] == LOAD
        ready1 = (S[c_left] == 0 or c_ends) and S[v_inner] < 7
        turn_load = S[g_busy] == 0 and S[p_valid] == 0 and ready1
        turn_steps = not reader_busy and (S[g_busy] == 0 or g_last)
        has1 = (table[head1, pop_prev_] == 0 or S[t_lc] != 0) and (table[head1, pop_next_] == 0 or S[t_sc] != 0)
        take1 = int64(1) if (S[q_ready1] != 0 and (turn_load if is_load1 else turn_steps) and has1) else int64(0)
        take_load1 = take1 if is_load1 else int64(0)
        take_steps = int64(0) if is_load1 else take1
        # Tokens that are given in this cycle.
        gives_prev = S[p_prev] // 16 % 2 + (table[S[x_item], push_prev_] if x_ends else int64(0))
        gives_next = S[p_next] // 16 % 2 + (table[S[x_item], push_next_] if x_ends else int64(0))
        gives_load = table[S[w_item], push_next_] if w_ends else int64(0)
        gives_end = (table[S[s_item], push_prev_] if s_ends else (table[head2, push_prev_] if finishes else int64(0)))
        gives_store = S[y_prev] // 16 % 2 + gives_end
        # What a step reads: the first `skip` of each `period` steps read no accumulator.
        period = table[S[g_item], period_]
        skip = table[S[g_item], skip_]
        S[step_reads] = int64(0)
        if S[g_busy] != 0 and S[g_left] != 0 and skip < period:
            S[step_reads] = int64(1) if skip == 0 or S[g_step] % period >= skip else int64(0)
        step_upper = int64(1) if S[g_step] >= table[S[g_item], lower_] else int64(0)
        # ---- the next state
        numbers[RING + S[slot]] = asked_compute + 2 * asked_load + 3 * asked_fetch
        events = asked + sent + answered + take0 + take1 + take2 + given + S[outstanding] + S[w_busy] + S[x_busy]
        S[slot] = S[slot] + 1 if S[slot] + 1 < m else int64(0)
        S[outstanding] = S[outstanding] + asked - answered
        if asked_fetch != 0:
            S[fetch_turn] = int64(0)
        elif asked_load != 0:
            S[fetch_turn] = int64(1)
        S[f_left] = S[f_left] - asked_fetch
        f_reads = reads_word if S[f_ready] != 0 else int64(0)
        S[f_reserved] = S[f_reserved] + asked_fetch - f_reads
        if per_word > 1:
            if given != 0:
                S[f_have] = int64(0) if S[f_have] == per_word - 1 else S[f_have] + 1
        elif f_reads != 0:
            S[f_have] = int64(0) if complete else S[f_have] + 1
        f_moves = int64(1) if (S[f_inner] != 0 and (S[f_ready] == 0 or reads_word != 0)) else int64(0)
        S[f_inner] = S[f_inner] + for_fetch - f_moves
        S[f_ready] = int64(1) if f_moves != 0 else (int64(0) if reads_word != 0 else S[f_ready])
        S[f_next] = S[f_next] + given
        moves0 = int64(1) if (S[q_inner0] != 0 and (S[q_ready0] == 0 or take0 != 0)) else int64(0)
        S[q_inner0] = S[q_inner0] + (given if unit == 0 else int64(0)) - moves0
        S[q_ready0] = int64(1) if moves0 != 0 else (int64(0) if take0 != 0 else S[q_ready0])
        moves1 = int64(1) if (S[q_inner1] != 0 and (S[q_ready1] == 0 or take1 != 0)) else int64(0)
        S[q_inner1] = S[q_inner1] + (given if unit == 1 else int64(0)) - moves1
        S[q_ready1] = int64(1) if moves1 != 0 else (int64(0) if take1 != 0 else S[q_ready1])
        moves2 = int64(1) if (S[q_inner2] != 0 and (S[q_ready2] == 0 or take2 != 0)) else int64(0)
        S[q_inner2] = S[q_inner2] + (given if unit == 2 else int64(0)) - moves2
        S[q_ready2] = int64(1) if moves2 != 0 else (int64(0) if take2 != 0 else S[q_ready2])
        S[q_taken0] = S[q_taken0] + take0
        S[q_taken1] = S[q_taken1] + take1
        S[q_taken2] = S[q_taken2] + take2
        S[t_lc] = S[t_lc] + gives_load - (table[head1, pop_prev_] if take1 != 0 else int64(0))
        S[t_sc] = S[t_sc] + gives_store - (table[head1, pop_next_] if take1 != 0 else int64(0))
        S[t_cl] = S[t_cl] + gives_prev - (table[head0, pop_next_] if take0 != 0 else int64(0))
        S[t_cs] = S[t_cs] + gives_next - (table[head2, pop_prev_] if take2 != 0 else int64(0))
        # Pipelines move by a stage.
        g_pushes = S[g_busy] != 0 and g_last
        S[p_valid] = S[p_valid] * 2 % 32 + S[g_busy] * 2
        S[p_prev] = S[p_prev] * 2 % 32 + (table[S[g_item], push_prev_] * 2 if g_pushes else int64(0))
        S[p_next] = S[p_next] * 2 % 32 + (table[S[g_item], push_next_] * 2 if g_pushes else int64(0))
        S[p_reads] = S[p_reads] * 2 % 32 + S[step_reads] * 2
        S[p_upper] = S[p_upper] * 2 % 32 + step_upper * 2
        S[y_valid] = S[y_valid] * 2 % 32 + e_steps * 2
        S[y_works] = S[y_works] * 2 % 32 + (int64(0) if e_empty else e_steps * 2)
        S[y_prev] = S[y_prev] * 2 % 32 + (table[S[e_item], push_prev_] * 2 if (e_steps != 0 and e_last) else int64(0))
        S[busy_compute] = S[busy_compute] + S[g_busy]
        S[busy_load] = S[busy_load] + (int64(1) if w_valid else int64(0))
        S[busy_store] = S[busy_store] + (int64(1) if (e_steps != 0 or sent != 0) else int64(0))
        # The load unit's reader.
        l_reads = int64(1) if (w_valid and w_data) else int64(0)
        S[l_reserved] = S[l_reserved] + asked_load - l_reads
        l_moves = int64(1) if (S[l_inner] != 0 and (S[l_ready] == 0 or l_reads != 0)) else int64(0)
        S[l_inner] = S[l_inner] + for_load - l_moves
        S[l_ready] = int64(1) if l_moves != 0 else (int64(0) if l_reads != 0 else S[l_ready])
        S[l_left] = table[head0, words_] if take0 != 0 else S[l_left] - asked_load
        u_moves = int64(1) if (S[u_inner] != 0 and (S[u_ready] == 0 or u_takes)) else int64(0)
        if w_valid:
            if w_data:
                S[w_words] = S[w_words] - 1
                if w_row_ends:
                    S[w_pads] = w_gap
                    S[w_words] = table[S[w_item], row_words_] if S[w_rows] > 1 else int64(0)
                    S[w_rows] = S[w_rows] - 1
            else:
                S[w_pads] = S[w_pads] - 1
        if u_takes:
            S[w_busy] = S[u_ready]
            if S[u_ready] != 0:
                S[w_item] = table[S[u_next], ORDER + 3]
                S[u_next] = S[u_next] + 1
                S[w_pads] = table[S[w_item], lead_]
                S[w_words] = table[S[w_item], row_words_]
                S[w_rows] = table[S[w_item], rows_]
        S[u_inner] = S[u_inner] + take0 - u_moves
        S[u_ready] = int64(1) if u_moves != 0 else (int64(0) if u_takes else S[u_ready])
        # The compute unit's reader.
        c_reads = int64(1) if (x_valid and x_data) else int64(0)
        S[c_reserved] = S[c_reserved] + asked_compute - c_reads
        c_moves = int64(1) if (S[c_inner] != 0 and (S[c_ready] == 0 or c_reads != 0)) else int64(0)
        S[c_inner] = S[c_inner] + for_compute - c_moves
        S[c_ready] = int64(1) if c_moves != 0 else (int64(0) if c_reads != 0 else S[c_ready])
        S[c_left] = table[head1, words_] if take_load1 != 0 else S[c_left] - asked_compute
        v_moves = int64(1) if (S[v_inner] != 0 and (S[v_ready] == 0 or v_takes)) else int64(0)
        if x_valid:
            if x_data:
                S[x_words] = S[x_words] - 1
                if x_row_ends:
                    S[x_pads] = x_gap
                    S[x_words] = table[S[x_item], row_words_] if S[x_rows] > 1 else int64(0)
                    S[x_rows] = S[x_rows] - 1
            else:
                S[x_pads] = S[x_pads] - 1
        if v_takes:
            S[x_busy] = S[v_ready]
            if S[v_ready] != 0:
                S[x_item] = table[S[v_next], ORDER + 4]
                S[v_next] = S[v_next] + 1
                S[x_pads] = table[S[x_item], lead_]
                S[x_words] = table[S[x_item], row_words_]
                S[x_rows] = table[S[x_item], rows_]
        S[v_inner] = S[v_inner] + take_load1 - v_moves
        S[v_ready] = int64(1) if v_moves != 0 else (int64(0) if v_takes else S[v_ready])
        # Steps of GEMM and ALU.
        if take_steps != 0:
            S[g_item] = head1
            S[g_busy] = int64(1)
            S[g_left] = table[head1, steps_]
            S[g_step] = int64(0)
        elif S[g_busy] != 0:
            if g_last:
                S[g_busy] = int64(0)
            S[g_left] = S[g_left] - 1
            S[g_step] = S[g_step] + 1
        # EPI.
        if e_steps != 0:
            S[e_left] = S[e_left] - 1
            if S[e_inner] == 1:
                S[e_inner] = table[S[e_item], inner_]
                S[e_row] = S[e_row] + table[S[e_item], acc_outer_]
                S[e_index] = S[e_row]
            else:
                S[e_inner] = S[e_inner] - 1
                S[e_index] = S[e_index] + table[S[e_item], acc_inner_]
            if e_last:
                S[e_busy] = int64(0)
        if take2 != 0 and is_epi:
            S[e_item] = head2
            S[e_busy] = int64(1)
            S[e_left] = table[head2, steps_]
            S[e_inner] = table[head2, inner_]
            S[e_row] = table[head2, acc_]
            S[e_index] = table[head2, acc_]
        # STORE.
        S[s_left] = S[s_left] - sent
        S[s_lane] = S[s_lane] - sent
        if S[s_copies] != 0:
            S[s_copies] = int64(0)
            S[s_streams] = int64(1)
        if element_ends:
            S[s_streams] = int64(0)
            S[s_needs] = int64(1) if following else int64(0)
            S[s_lane] = table[S[s_item], element_words_]
        if has_read:
            S[s_needs] = int64(0)
            S[s_index] = S[s_index] + 1
            S[s_streams] = int64(1) if s_acc == 0 else int64(0)
            S[s_copies] = s_acc
        if s_ends:
            S[s_busy] = int64(0)
        if take2 != 0 and kind2 == STORE:
            S[s_item] = head2
            S[s_busy] = int64(1)
            S[s_left] = table[head2, words_]
            S[s_lane] = table[head2, element_words_]
            S[s_index] = table[head2, acc_]
            S[s_needs] = int64(1) if table[head2, words_] != 0 else int64(0)
        S[cycles] = S[cycles] + 1
        if finishes:
            S[finished] = int64(1)
        # Where all that goes on are steps of one GEMM, tensors of one EPI and words of one client, cycles are counted
        # in one go, up to a few before the next event. Pipelines must be full or empty, and carry no token; nothing may
        # have begun or ended in this cycle or the one before it, which says that nothing can in the next.
        gives = gives_prev + gives_next + gives_load + gives_store
        moves = moves0 + moves1 + moves2 + f_moves + f_reads + u_moves + v_moves
        steady = (S[p_valid] == 0 or S[p_valid] == 30) and (S[y_valid] == 0 or S[y_valid] == 30)
        even = S[p_prev] + S[p_next] + S[y_prev] + take0 + take1 + take2 + given + gives + moves == 0
        S[calm] = S[calm] + 1 if even and steady else int64(0)
        if S[calm] > 1 and leaps != 0:
            steps_left = S[g_left] - 6 if S[p_valid] == 30 else (FAR if S[p_valid] + S[g_busy] == 0 else int64(0))
            # EPI goes on where compute reads the other bank, or none.
            bank = table[S[e_item], bank_]
            silent = S[g_busy] == 0 or table[S[g_item], skip_] >= table[S[g_item], period_]
            until_upper = table[S[g_item], lower_] - S[g_step] if bank == 1 else int64(0)
            is_upper = S[g_step] >= table[S[g_item], lower_] and S[p_upper] == 30
            apart = FAR if silent or (is_upper and bank == 0) else until_upper
            epi_left = min(S[e_left], apart) - 6 if S[y_valid] == 30 else int64(0)
            tensors_left = FAR if S[y_valid] + S[e_busy] == 0 else epi_left
            # Words of a LOAD are asked for, or those of a STORE sent, or neither; those that come are written.
            asks = asked_load != 0 and not wants_fetch
            sends = sent != 0 and s_acc == 0
            rests = asked + sent + S[s_busy] == 0
            loads_out = S[e_busy] != 0 and table[S[w_item], is_out_] != 0
            reads = for_load + l_moves + l_reads == 3 and not loads_out
            silent_reads = answered + l_moves + c_moves == 0 and not w_valid and not x_valid
            # A port that waits for room has some when words are written.
            stays = not reads or asks or sends or (S[l_left] == 0 and not wants_fetch)
            calm_port = (asks or sends or rests) and (reads or silent_reads) and S[c_left] == 0 and stays
            free = FAR if reads or not asks else depth - max(S[l_reserved], S[outstanding]) - 2
            asks_left = min(S[l_left] - 2, free) if asks else FAR
            sends_left = S[s_left] - 2 if sends else FAR
            reads_left = S[w_words] - 2 if reads else FAR
            words_left = min(min(asks_left, sends_left), reads_left) if calm_port else int64(0)
            left = min(min(steps_left, tensors_left), words_left)
            # Answers on their way must be of the same kind: the next ones, or all of them where as many are asked for.
            answers = int64(2) if reads else int64(0)
            questions = int64(2) if asks else int64(0)
            S[run] = int64(0)
            S[ahead] = S[slot]
            while S[run] < min(left, m) and numbers[RING + S[ahead]] == answers:
                S[run] = S[run] + 1
                S[ahead] = S[ahead] + 1 if S[ahead] + 1 < m else int64(0)
            goes_on = answers == questions and (asks or S[g_busy] + S[e_busy] + S[s_busy] != 0)
            near = int64(0) if answers == questions else S[run]
            element = table[S[s_item], element_words_] if sends else int64(1)
            jump = (S[run] if S[run] < m else (left if goes_on else near)) // element * element
            if jump > 4:
                if answers != questions:
                    for i in range(jump):
                        numbers[RING + (S[slot] + i) % m] = questions
                if S[g_busy] != 0:
                    S[g_left] = S[g_left] - jump
                    S[g_step] = S[g_step] + jump
                    S[busy_compute] = S[busy_compute] + jump
                if S[e_busy] != 0:
                    S[e_left] = S[e_left] - jump
                    begun = table[S[e_item], steps_] - S[e_left]
                    S[e_row] = table[S[e_item], acc_] + begun // table[S[e_item], inner_] * table[S[e_item], acc_outer_]
                    S[e_inner] = table[S[e_item], inner_] - begun % table[S[e_item], inner_]
                    S[e_index] = S[e_row] + begun % table[S[e_item], inner_] * table[S[e_item], acc_inner_]
                if asks:
                    S[l_left] = S[l_left] - jump
                    S[l_reserved] = S[l_reserved] + jump
                    S[outstanding] = S[outstanding] + jump
                if reads:
                    S[w_words] = S[w_words] - jump
                    S[l_reserved] = S[l_reserved] - jump
                    S[outstanding] = S[outstanding] - jump
                    S[busy_load] = S[busy_load] + jump
                if sends:
                    S[s_left] = S[s_left] - jump
                    S[s_index] = S[s_index] + jump // element
                if sends or S[e_busy] != 0:
                    S[busy_store] = S[busy_store] + jump
                S[slot] = (S[slot] + jump) % m
                S[cycles] = S[cycles] + jump
        S[still] = S[still] + 1 if events + S[g_busy] + S[e_busy] == 0 else int64(0)
        if S[still] > most_still:
            S[finished] = int64(2)
        if S[cycles] > most_cycles:
            S[finished] = int64(3)
    numbers[9] = S[finished]
    numbers[10] = S[cycles]
    numbers[11] = S[busy_load]
    numbers[12] = S[busy_compute]
    numbers[13] = S[busy_store]
"""

_RING: Final = 16
"""Numbers before the ring."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """What a program takes: cycles in all, and those in which each unit moves words or does steps."""

    total: int
    busy: dict[Unit, int]

    @property
    def utilization(self) -> float:
        """The share of cycles in which the array multiplies (or ALU works)."""
        return self.busy[Unit.COMPUTE] / self.total if self.total else 0.0


@cache
def _model() -> Any:
    names = {f"{name}_": at for at, name in enumerate(COLUMNS)} | {name: at for at, name in enumerate(STATE)}
    kinds = {"LOAD": LOAD, "EPI": EPI, "STORE": STORE, "FINISH": FINISH}
    func = parse_script(
        _TEXT,
        constants={
            **names,
            **kinds,
            "SIZE": len(STATE),
            "K": len(COLUMNS),
            "ORDER": COLUMNS.index("order"),
            "RING": _RING,
            "FAR": 1 << 40,
        },
    )
    return build(func, target="native")


def cycles(
    program: Sequence[Instruction],
    config: AccelConfig,
    read_dram: Callable[[int, int], bytes],
    *,
    latency: int | None = None,
    most_cycles: int = 1 << 40,
) -> Cycles:
    """The cycles that the hardware takes for a program; `read_dram` gives the DRAM that holds its micro-ops."""
    return cycles_of_code(encode(program, config), config, read_dram, latency=latency, most_cycles=most_cycles)


def cycles_of_code(
    code: bytes,
    config: AccelConfig,
    read_dram: Callable[[int, int], bytes],
    *,
    latency: int | None = None,
    most_cycles: int = 1 << 40,
    one_by_one: bool = False,
) -> Cycles:
    """The same for a program as DRAM holds it. `one_by_one` goes through all cycles, which changes nothing but time."""
    table = instruction_table(code, config, read_dram)
    delay = config.memory_latency if latency is None else latency
    numbers = _numbers(len(table), config, delay, most_cycles, one_by_one)
    _model()(table, numbers)
    outcome, total, *busy = numbers[9 : 11 + len(Unit)].tolist()
    if outcome != 1:
        raise UserError(
            "accelerator: the program waits for ever"
            if outcome == 2
            else f"accelerator: more than {most_cycles} cycles",
            hint="tilewright accel check names what a program waits for",
        )
    return Cycles(total, dict(zip(Unit, busy, strict=True)))


@lru_cache(maxsize=64)
def _sizes(config: AccelConfig, latency: int) -> tuple[int, ...]:
    depth = 1 << (config.memory_latency + 15).bit_length()
    per_instruction = max(1, INSTRUCTION_BYTES // config.bus_bytes)
    per_word = max(1, config.bus_bytes // INSTRUCTION_BYTES)
    half = config.depth[Memory.ACC] // 2
    return depth, config.command_queue - 1, half, per_instruction, per_word, latency + 64


def _numbers(count: int, config: AccelConfig, latency: int, most_cycles: int, one_by_one: bool) -> Array:
    """What the model has to know beside the program, and room for what it says."""
    sizes = _sizes(config, latency)
    per_instruction, per_word = sizes[3:5]
    words = count * per_instruction if per_word == 1 else -(-count // per_word)
    numbers = np.zeros(_RING + latency, np.int64)
    numbers[: len(sizes) + 3] = (*sizes, most_cycles, words, not one_by_one)
    return numbers
