"""Floor 4: the loop-level IR: buffers, blocks and loops; verifier, interpreter, schedules, lowering passes."""
