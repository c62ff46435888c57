"""Attention on GPUs in one kernel, whose scores never leave the chip. See `templates.py` for the table."""
