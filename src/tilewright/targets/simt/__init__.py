"""What the targets that are GPUs share: the machine as schedules see it, schedules, checks."""
