"""Downloads from the Hub."""
