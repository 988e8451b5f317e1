"""PyTorch modules in, through torch.export and ONNX in memory."""
