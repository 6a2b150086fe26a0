"""A run in the forms that leave the terminal: page, issue, prompt for a coding agent, trace.

`page_facts` reads what a page needs, `rendering` fills the template with the blocks that `history`,
`wait_graph` and `blocks` make; `copied_text` writes the same as Markdown.
"""
