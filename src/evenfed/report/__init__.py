"""Results for people: tables and figures, from what a comparison wrote to disk."""
