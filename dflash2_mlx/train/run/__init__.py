"""One training from the command to the exported drafter, in a folder that it goes on in after a stop."""
