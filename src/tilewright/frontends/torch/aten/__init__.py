"""Importing programs of `torch.export`, operator by operator of ATen.

One file per family of operators, each a table of rules that register themselves (`rules.py`). A
rule says an operator in ONNX's, which the graph has. What has no rule is decomposed by PyTorch
into operators that have one (`importer.py`).
"""
