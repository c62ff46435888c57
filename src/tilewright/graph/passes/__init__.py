"""Graph passes, one file each: functions from a typed module to a typed module of the same meaning."""
