"""The parts of the page, laid out in numbers and words: no file is read, no HTML written."""

__all__ = [
    "collective_grid",
    "differences",
    "graph_layout",
    "identities",
    "kernel_facts",
    "stack_tree",
    "step_table",
    "timeline",
    "wait_graph",
]
