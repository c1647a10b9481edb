"""A comparison's page while it runs: `page_versions` makes it again when runs were written, `server` serves it."""
