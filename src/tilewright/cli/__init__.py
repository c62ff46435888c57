"""Floor 13: the command line `tilewright`, and the measuring tools it shares with the benchmarks."""
