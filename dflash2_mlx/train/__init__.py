"""Training a drafter for any target: its own text, the tapped rows, the loss, the loop and the export.

`recipe` says what is asked for; `data` prepares token shards, `rows` the target's hidden rows. `start` is what a
drafter begins as, `learning` one step, `loop` all of them. `check` looks before weights are loaded, `run` leads from
the command to a checkpoint in the published layout, and `reporting` tells of it.
"""
