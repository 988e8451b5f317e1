"""Importing `torch.export` programs, one ATen operator at a time.

One file per family of operators, each a table of rules that register themselves (`rules.py`). A
rule expresses an operator in ONNX operators, which the graph has. Operators without a rule are
decomposed by PyTorch into operators that have one (`importer.py`).
"""
