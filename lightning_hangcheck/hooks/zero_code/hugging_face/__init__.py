"""What is watched of transformers: how models are loaded, asked to generate, and used in pipelines.

`zero_code.imports` asks for each when its module is imported, never before.
"""
