"""report.html: one self-contained file that is read at night on a phone, and by a colleague.

`page_facts` reads what a page needs, `rendering` fills the template with the blocks that `history`,
`wait_graph`, `stacks` and `tables` make; `copied_text` writes the same as Markdown. `forms` is what
others call.
"""
