"""The embedded pair `demo`: a small target made from an installed package, and the drafter in `drafter/`.

`paths` gives the two folders; `convert` and `tokenizer` make the target's files, `store` keeps them.
"""
