"""Models from Hugging Face folders: config.json and safetensors become a Graph.

families: tables of the differences between architectures. decoder: reads a config. graph: builds
its Graph.
"""
