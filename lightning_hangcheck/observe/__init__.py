"""What can be seen of a job on this node from outside, shared by `watch`, `launch` and `attach`.

Its processes and which of them are ranks (`process_tree`, `discovery`) or only start them
(`launchers`), their pages (`pages`), a look at all of them (`looking`), the patience that settings
ask for (`patience`), what run.json says of a rank (`run_record`), how a verdict is saved with its
evidence (`saving`), and what a sidecar notes for `attach` (`watch_notes`).
"""
