"""Training a drafter for any target: its own text, the tapped rows, the loss, the loop and the export.

`data` prepares token shards, `rows` the target's hidden rows, `packed` the drafter's forward over many anchors at once,
`loss` what is learnt, `loop` how; `export` writes a checkpoint in the published layout.
"""
