"""Models from Hugging Face folders: config.json and safetensors become a Graph.

families: tables of how the architectures differ. decoder: what a config says. graph: what it means.
"""
