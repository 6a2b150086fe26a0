"""Generating with a model of transformers, each step timed and counted, a beat for each token.

`generating` and `pipelines` are what users call; both put `generation_watch` around the model's own
``generate`` and return what `generated` describes. `token_limits` keeps a debug run finite.
"""
