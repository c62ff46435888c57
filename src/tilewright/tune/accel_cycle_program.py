"""The control of the accelerator's hardware as a loop program: one iteration is one cycle, or all up to the next event.

The hardware (`accel/hardware`) without its data: queues, tokens, the memory port's arbiter, walkers of LOAD and STORE,
and the pipelines of compute and EPI, as counters. The program first makes a table of all instructions
(`accel_table.py`), then it goes through the cycles. `accel_cycles.py` compiles it and says what it is given.
"""

from __future__ import annotations

from typing import Final

from tilewright.accel.config import Memory
from tilewright.tune.accel_table import FIELD_COUNT, FIELD_PARTS, OPCODES, table_constants, table_text, with_blocks

NUMBERS: Final = (
    # What the program is given.
    "depth", "under_way", "room", "half", "per_instruction", "per_word", "latency", "most_still", "most_cycles",
    "leaps", "acc_shift", "acc_mask", "inp_shift", "inp_mask", "uop_elements", "micro_ops",
    # What it says.
    "outcome", "total", "busy0", "busy1", "busy2",
)  # fmt: skip
"""The first numbers beside the instructions. Then: words of the bus in what a copy counts, by memory; where fields lie;
answers of the next cycles, a ring; the micro-op memory and one more, which is zero; micro-ops that LOADs read."""
WORDS_AT: Final = len(NUMBERS)
FIELDS_AT: Final = WORDS_AT + len(Memory)
RING_AT: Final = FIELDS_AT + OPCODES * FIELD_COUNT * FIELD_PARTS
FINISHED, WAITS, TOO_LONG = 1, 2, 3
"""How it ended."""
STATE: Final = (
    # The memory port: reads on their way, whose turn it is, where the next answer lies, the last that was asked for and
    # how often the same was asked for. How many cycles, how it ended, how long nothing has happened or all is even.
    "outstanding", "fetch_turn", "slot", "newest", "same", "cycles", "finished", "still", "calm", "run", "ahead",
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
    "x_item", "x_busy", "x_pads", "x_words", "x_rows", "c_moves", "v_moves",
    # GEMM and ALU: steps left, the step in its pattern, the bank of its accumulators; what a step reads, and of which
    # bank; the pipeline (bit n: stage n); micro-ops that LOADs took; the least and the greatest accumulator.
    "g_item", "g_busy", "g_left", "g_step", "g_bank", "step", "step_reads", "step_upper",
    "p_valid", "p_prev", "p_next", "p_reads", "p_upper", "micro_ops_read", "least", "most",
    # EPI: tensors left, the inner step, indices; its pipeline, and the results that its stages will write.
    "e_item", "e_busy", "e_left", "e_inner", "e_row", "e_index", "e_out_row", "e_out",
    "y_valid", "y_works", "y_prev", "y_out1", "y_out2", "y_out3", "y_out4",
    # STORE: words left, words of the element left, whether it reads, copies or sends; the index that it reads.
    "s_item", "s_busy", "s_left", "s_lane", "s_needs", "s_copies", "s_streams", "s_index",
    # Cycles in which units have been busy, as their counters say.
    "busy_load", "busy_compute", "busy_store",
)  # fmt: skip

_UPPER_OF_STEP: Final = """
phases = table[S[g_item], phases_]
count = table[S[g_item], uop_count_]
inner = table[S[g_item], inner_]
turn = S[step] // phases // count
micro_op = numbers[memory + min(table[S[g_item], uop_begin_] + S[step] // phases % count, micro_ops)]
acc = (micro_op >> acc_shift & acc_mask) + turn // inner * table[S[g_item], acc_outer_]
source = (micro_op >> inp_shift & inp_mask) + turn // inner * table[S[g_item], src_outer_]
in_acc = acc + turn % inner * table[S[g_item], acc_inner_]
in_source = source + turn % inner * table[S[g_item], src_inner_]
S[step_upper] = int64(1) if (in_source if phases == 2 and S[step] % 2 == 0 else in_acc) >= half else int64(0)
"""
"""Whether the accumulator that a step reads is in the upper bank: ALU reads a source, then the destination."""

_CYCLES: Final = """
    S = allocate((SIZE,), "int64", "local")
    ZEROS
    S[f_left] = n * per_instruction if per_word == 1 else (n + per_word - 1) // per_word
    while S[finished] == 0:
        # The port: what is asked for, who is served, what comes back.
        answer = numbers[ring + S[slot]]
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
        head0 = table[S[q_taken0], ORDER + 0]
        head1 = table[S[q_taken1], ORDER + 1]
        head2 = table[S[q_taken2], ORDER + 2]
        # Fetch: an instruction goes to its queue.
        complete = (S[f_have] == per_instruction - 1) or (per_word > 1)
        unit = table[S[f_next], unit_]
        has_room = (S[q_inner0] if unit == 0 else (S[q_inner1] if unit == 1 else S[q_inner2])) < room
        given = int64(1) if (S[f_ready] != 0 and complete and has_room and S[f_next] < n) else int64(0)
        last_lane = per_word == 1 or S[f_have] == per_word - 1
        reads_word = (given if last_lane else int64(0)) if complete else S[f_ready]
        # Compute: the pipeline's read of an accumulator.
        compute_reads = S[p_reads] >> 3 & 1
        compute_upper = S[p_upper] >> 3 & 1
        # Store: EPI reads an accumulator where compute does not use its bank.
        e_empty = S[e_left] == 0
        e_upper = int64(1) if S[e_index] >= half else int64(0)
        # A residual that a tensor before it still has to write is waited for.
        pending1 = S[y_works] & 2 != 0 and S[y_out1] == S[e_out]
        pending2 = S[y_works] & 4 != 0 and S[y_out2] == S[e_out]
        pending3 = S[y_works] & 8 != 0 and S[y_out3] == S[e_out]
        pending4 = S[y_works] & 16 != 0 and S[y_out4] == S[e_out]
        e_blocked = table[S[e_item], residual_] != 0 and (pending1 or pending2 or pending3 or pending4)
        e_shares = compute_reads != 0 and compute_upper == e_upper
        e_granted = S[e_busy] != 0 and not e_empty and not e_blocked and not e_shares
        e_steps = int64(1) if (S[e_busy] != 0 and (e_empty or e_granted)) else int64(0)
        e_last = e_empty or S[e_left] == 1
        e_ready = S[e_busy] == 0 or (e_steps != 0 and e_last)
        e_writes = S[y_works] >> 4
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
        l_ready_now = (S[l_left] == 0 or l_ends) and S[u_inner] < under_way - 1
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
        ready1 = (S[c_left] == 0 or c_ends) and S[v_inner] < under_way - 1
        turn_load = S[g_busy] == 0 and S[p_valid] == 0 and ready1
        turn_steps = not reader_busy and (S[g_busy] == 0 or g_last)
        has1 = (table[head1, pop_prev_] == 0 or S[t_lc] != 0) and (table[head1, pop_next_] == 0 or S[t_sc] != 0)
        take1 = int64(1) if (S[q_ready1] != 0 and (turn_load if is_load1 else turn_steps) and has1) else int64(0)
        take_load1 = take1 if is_load1 else int64(0)
        take_steps = int64(0) if is_load1 else take1
        # Tokens that are given in this cycle.
        gives_prev = (S[p_prev] >> 4) + (table[S[x_item], push_prev_] if x_ends else int64(0))
        gives_next = (S[p_next] >> 4) + (table[S[x_item], push_next_] if x_ends else int64(0))
        gives_load = table[S[w_item], push_next_] if w_ends else int64(0)
        gives_end = (table[S[s_item], push_prev_] if s_ends else (table[head2, push_prev_] if finishes else int64(0)))
        gives_store = (S[y_prev] >> 4) + gives_end
        # What a step reads: the first `skip` of each `period` steps read no accumulator.
        period = table[S[g_item], period_]
        skip = table[S[g_item], skip_]
        S[step_reads] = int64(0)
        if S[g_busy] != 0 and S[g_left] != 0 and skip < period:
            S[step_reads] = int64(1) if skip == 0 or S[g_step] % period >= skip else int64(0)
        S[step_upper] = S[g_bank] & 1
        if S[g_bank] == BOTH and S[step_reads] != 0:
            S[step] = S[g_step]
            UPPER_OF_STEP
        # ---- the next state
        question = asked_compute + 2 * asked_load + 3 * asked_fetch
        numbers[ring + S[slot]] = question
        S[same] = S[same] + 1 if question == S[newest] else int64(1)
        S[newest] = question
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
        S[busy_load] = S[busy_load] + (int64(1) if w_valid else int64(0))
        S[busy_compute] = S[busy_compute] + (int64(1) if (S[g_busy] + S[p_valid] != 0 or x_valid) else int64(0))
        S[busy_store] = S[busy_store] + (int64(1) if S[e_busy] + S[y_valid] + sent != 0 else int64(0))
        # Pipelines move by a stage.
        g_pushes = S[g_busy] != 0 and g_last
        S[p_valid] = (S[p_valid] << 1 & 30) + S[g_busy] * 2
        S[p_prev] = (S[p_prev] << 1 & 30) + (table[S[g_item], push_prev_] * 2 if g_pushes else int64(0))
        S[p_next] = (S[p_next] << 1 & 30) + (table[S[g_item], push_next_] * 2 if g_pushes else int64(0))
        S[p_reads] = (S[p_reads] << 1 & 30) + S[step_reads] * 2
        S[p_upper] = (S[p_upper] << 1 & 30) + S[step_upper] * 2
        S[y_valid] = (S[y_valid] << 1 & 30) + e_steps * 2
        S[y_works] = (S[y_works] << 1 & 30) + (int64(0) if e_empty else e_steps * 2)
        e_pushes = e_steps != 0 and e_last
        S[y_prev] = (S[y_prev] << 1 & 30) + (table[S[e_item], push_prev_] * 2 if e_pushes else int64(0))
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
        S[c_moves] = int64(0)
        S[v_moves] = int64(0)
        # The compute unit's reader.
        if S[x_busy] + S[c_left] + S[v_inner] + S[v_ready] + S[c_reserved] + take_load1 != 0:
            c_reads = int64(1) if (x_valid and x_data) else int64(0)
            S[c_reserved] = S[c_reserved] + asked_compute - c_reads
            S[c_moves] = int64(1) if (S[c_inner] != 0 and (S[c_ready] == 0 or c_reads != 0)) else int64(0)
            S[c_inner] = S[c_inner] + for_compute - S[c_moves]
            S[c_ready] = int64(1) if S[c_moves] != 0 else (int64(0) if c_reads != 0 else S[c_ready])
            S[c_left] = table[head1, words_] if take_load1 != 0 else S[c_left] - asked_compute
            S[v_moves] = int64(1) if (S[v_inner] != 0 and (S[v_ready] == 0 or v_takes)) else int64(0)
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
            S[v_inner] = S[v_inner] + take_load1 - S[v_moves]
            S[v_ready] = int64(1) if S[v_moves] != 0 else (int64(0) if v_takes else S[v_ready])
        for i in range(table[head1, micro_ops_] if take_load1 != 0 else int64(0)):
            if table[head1, sram_] + i < micro_ops:
                numbers[memory + table[head1, sram_] + i] = numbers[memory + micro_ops + 1 + S[micro_ops_read] + i]
        S[micro_ops_read] = S[micro_ops_read] + (table[head1, micro_ops_] if take_load1 != 0 else int64(0))
        # Steps of GEMM and ALU.
        if take_steps != 0:
            S[g_item] = head1
            S[g_busy] = int64(1)
            S[g_left] = table[head1, steps_]
            S[g_step] = int64(0)
            S[g_bank] = int64(0)
            if table[head1, skip_] < table[head1, period_]:
                S[least] = FAR
                S[most] = int64(0)
                for u in range(table[head1, uop_count_]):
                    micro_op = numbers[memory + min(table[head1, uop_begin_] + u, micro_ops)]
                    acc = micro_op >> acc_shift & acc_mask
                    S[least] = min(S[least], acc)
                    S[most] = max(S[most], acc + table[head1, acc_last_])
                    if table[head1, phases_] == 2:
                        source = micro_op >> inp_shift & inp_mask
                        S[least] = min(S[least], source)
                        S[most] = max(S[most], source + table[head1, src_last_])
                S[g_bank] = int64(1) if S[least] >= half else (int64(0) if S[most] < half else BOTH)
        elif S[g_busy] != 0:
            if g_last:
                S[g_busy] = int64(0)
            S[g_left] = S[g_left] - 1
            S[g_step] = S[g_step] + 1
        # EPI.
        if S[e_busy] + S[y_works] != 0:
            S[y_out4] = S[y_out3]
            S[y_out3] = S[y_out2]
            S[y_out2] = S[y_out1]
            S[y_out1] = S[e_out]
            if e_steps != 0:
                S[e_left] = S[e_left] - 1
                if S[e_inner] == 1:
                    S[e_inner] = table[S[e_item], inner_]
                    S[e_row] = S[e_row] + table[S[e_item], acc_outer_]
                    S[e_index] = S[e_row]
                    S[e_out_row] = S[e_out_row] + table[S[e_item], out_outer_]
                    S[e_out] = S[e_out_row]
                else:
                    S[e_inner] = S[e_inner] - 1
                    S[e_index] = S[e_index] + table[S[e_item], acc_inner_]
                    S[e_out] = S[e_out] + table[S[e_item], out_inner_]
                if e_last:
                    S[e_busy] = int64(0)
        if take2 != 0 and is_epi:
            S[e_item] = head2
            S[e_busy] = int64(1)
            S[e_left] = table[head2, steps_]
            S[e_inner] = table[head2, inner_]
            S[e_row] = table[head2, acc_]
            S[e_index] = table[head2, acc_]
            S[e_out_row] = table[head2, out_]
            S[e_out] = table[head2, out_]
        # STORE.
        if S[s_busy] != 0:
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
            S[s_index] = table[head2, sram_]
            S[s_needs] = int64(1) if table[head2, words_] != 0 else int64(0)
        S[cycles] = S[cycles] + 1
        if finishes:
            S[finished] = int64(FINISHED)
        # Where all that goes on are steps of one GEMM, tensors of one EPI and words of one client, cycles are counted
        # in one go, up to a few before the next event. Pipelines must be full or empty, and carry no token; nothing may
        # have begun or ended in this cycle or the one before it, which says that nothing can in the next.
        gives = gives_prev + gives_next + gives_load + gives_store
        moves = moves0 + moves1 + moves2 + f_moves + f_reads + u_moves + S[v_moves] + (int64(1) if x_ends else int64(0))
        steady = (S[p_valid] == 0 or S[p_valid] == 30) and (S[y_valid] == 0 or S[y_valid] == 30)
        even = S[p_prev] + S[p_next] + S[y_prev] + take0 + take1 + take2 + given + gives + moves == 0
        S[calm] = S[calm] + 1 if even and steady else int64(0)
        if S[calm] > 1 and leaps != 0:
            steps_left = S[g_left] - 2 if S[p_valid] == 30 else (FAR if S[p_valid] + S[g_busy] == 0 else int64(0))
            # EPI goes on where compute reads the other bank, or none, and no residual can be one that is still written.
            bank = table[S[e_item], bank_]
            silent = (S[g_busy] == 0 or skip >= period) and S[p_reads] == 0
            in_lower = S[g_bank] == 0 and S[p_upper] == 0
            in_upper = S[g_bank] == 1 and S[p_upper] == 30
            apart = silent or (in_lower and bank == 1) or (in_upper and bank == 0)
            begun = table[S[e_item], steps_] - S[e_left]
            done = table[S[e_item], residual_] == 0 or (table[S[e_item], rises_] != 0 and begun > 4)
            tensors = S[e_left] - 2 if (S[y_valid] == 30 and apart and done) else int64(0)
            tensors_left = FAR if S[y_valid] + S[e_busy] == 0 else tensors
            # Words of a LOAD are asked for, or those of a STORE sent, or neither; those that come are written.
            asks = asked_load != 0 and not wants_fetch and S[s_busy] == 0
            sends = sent != 0 and s_acc == 0
            rests = asked + sent + S[s_busy] == 0
            loads_out = S[e_busy] != 0 and table[S[w_item], is_out_] != 0
            reads = for_load + l_moves + l_reads == 3 and S[w_pads] == 0 and not loads_out
            silent_reads = answered + l_moves == 0 and not w_valid
            # A port that waits for room has some when words are written.
            stays = not reads or asks or sends or (S[l_left] == 0 and not wants_fetch)
            calm_compute = S[c_left] + S[c_moves] == 0 and not x_valid
            calm_port = (asks or sends or rests) and (reads or silent_reads) and calm_compute and stays
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
            if S[same] >= m and S[newest] == answers:
                S[run] = min(left, m)
            while S[run] < min(left, m) and numbers[ring + S[ahead]] == answers:
                S[run] = S[run] + 1
                S[ahead] = S[ahead] + 1 if S[ahead] + 1 < m else int64(0)
            goes_on = answers == questions and (asks or S[g_busy] + S[e_busy] + S[s_busy] != 0)
            near = int64(0) if answers == questions else S[run]
            element = table[S[s_item], element_words_] if sends else int64(1)
            jump = (S[run] if S[run] < m else (left if goes_on else near)) // element * element
            if jump > 4:
                if answers != questions:
                    for i in range(jump):
                        numbers[ring + (S[slot] + i) % m] = questions
                    S[same] = jump
                    S[newest] = questions
                if S[g_busy] != 0:
                    S[g_left] = S[g_left] - jump
                    S[g_step] = S[g_step] + jump
                    S[busy_compute] = S[busy_compute] + jump
                    if S[g_bank] == BOTH or (skip > 0 and skip < period):
                        S[p_reads] = int64(0)
                        S[p_upper] = int64(0)
                        for stage in range(4):
                            S[step] = S[g_step] - 1 - stage
                            S[step_reads] = int64(1) if S[step] % period >= skip else int64(0)
                            S[step_upper] = S[g_bank] & 1
                            if S[g_bank] == BOTH and S[step_reads] != 0:
                                UPPER_OF_STEP
                            S[p_reads] = S[p_reads] + (S[step_reads] << (stage + 1))
                            S[p_upper] = S[p_upper] + (S[step_upper] << (stage + 1))
                if S[e_busy] != 0:
                    S[e_left] = S[e_left] - jump
                    inner = table[S[e_item], inner_]
                    now = begun + jump
                    S[e_row] = table[S[e_item], acc_] + now // inner * table[S[e_item], acc_outer_]
                    S[e_inner] = inner - now % inner
                    S[e_index] = S[e_row] + now % inner * table[S[e_item], acc_inner_]
                    out_outer = table[S[e_item], out_outer_]
                    out_inner = table[S[e_item], out_inner_]
                    S[e_out_row] = table[S[e_item], out_] + now // inner * out_outer
                    S[e_out] = S[e_out_row] + now % inner * out_inner
                    S[y_out1] = table[S[e_item], out_] + (now - 1) // inner * out_outer + (now - 1) % inner * out_inner
                    S[y_out2] = table[S[e_item], out_] + (now - 2) // inner * out_outer + (now - 2) % inner * out_inner
                    S[y_out3] = table[S[e_item], out_] + (now - 3) // inner * out_outer + (now - 3) % inner * out_inner
                    S[y_out4] = table[S[e_item], out_] + (now - 4) // inner * out_outer + (now - 4) % inner * out_inner
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
            S[finished] = int64(WAITS)
        if S[cycles] > most_cycles:
            S[finished] = int64(TOO_LONG)
    numbers[OUTCOME] = S[finished]
    numbers[TOTAL] = S[cycles]
    numbers[BUSY0] = S[busy_load]
    numbers[BUSY1] = S[busy_compute]
    numbers[BUSY2] = S[busy_store]
"""

_BEGIN: Final = """
@script.function
def cycles_of(
    code: Buffer[(n, 2), "int64"], numbers: Buffer[(p,), "int64"],
):
    ring = int64(RING_AT)
    memory = ring + numbers[LATENCY]
    m = numbers[LATENCY]
"""


def program_text() -> str:
    """The whole program."""
    given = NUMBERS[: NUMBERS.index("outcome")]
    sizes = "".join(f"    {name} = numbers[{name.upper()}]\n" for name in given)
    zeros = "\n".join(f"S[{name}] = int64(0)" for name in STATE)
    return _BEGIN + sizes + table_text() + with_blocks(_CYCLES, {"UPPER_OF_STEP": _UPPER_OF_STEP, "ZEROS": zeros})


def program_constants() -> dict[str, int]:
    """What the names in it stand for that are not its own."""
    return {
        **table_constants(),
        **{name: at for at, name in enumerate(STATE)},
        **{name.upper(): at for at, name in enumerate(NUMBERS)},
        "SIZE": len(STATE),
        "WORDS_AT": WORDS_AT,
        "FIELDS_AT": FIELDS_AT,
        "RING_AT": RING_AT,
        "FINISHED": FINISHED,
        "WAITS": WAITS,
        "TOO_LONG": TOO_LONG,
        "FAR": 1 << 40,
    }
