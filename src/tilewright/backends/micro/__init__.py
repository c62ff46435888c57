"""Microcontrollers: C sources without heap, threads or operating system."""
