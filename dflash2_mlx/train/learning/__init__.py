"""One step: the blocks that it draws, the drafter's forward over them, the loss and its gradient."""
