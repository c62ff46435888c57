"""The accelerator's hardware, in Amaranth: one file for each unit, generated for a configuration."""
