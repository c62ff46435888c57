"""Default schedules for devices with blocks of threads."""
