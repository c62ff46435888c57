"""Schedules for the open tensor processor."""
