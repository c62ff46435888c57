"""Default schedules of the operator library, one package a target family."""
