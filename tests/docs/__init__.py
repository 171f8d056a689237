"""The documentation, held against the code: links, commands, names of messages, and the tutorial as a whole."""
