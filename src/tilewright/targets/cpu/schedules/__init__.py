"""Default schedules of the CPU: one sketch per kind of kernel, numbers from the machine."""
