"""A comparison's page while it runs: `editions` makes the page again when runs were written, `server` serves it."""
