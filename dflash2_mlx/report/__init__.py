"""Tables and plots as data, and what is made of them: a page, a terminal, Markdown."""
