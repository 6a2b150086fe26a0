"""report.html: one self-contained file that is read at night on a phone, and by a colleague.

`forms` is the way in, `equal_ranks` the groups in which ranks are shown. `page_facts` reads what a
page needs from a run folder, `rendering` makes the page of it, and `copied_text` the same facts as
Markdown, for an issue or for a coding agent.
`blocks` lays out each part of the page as plain data; the templates only write it down.
`rank_history` is what happened to each rank, for the page's lanes and for traces.
"""
