"""One file per command. Each is a thin coat: it imports what it needs when it runs."""
