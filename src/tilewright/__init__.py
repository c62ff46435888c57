"""Tilewright: an end-to-end optimizing compiler for deep learning."""
