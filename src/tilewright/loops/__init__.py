"""The loop IR: kernels, their verifier, their interpreter, their bounds and dependences."""
