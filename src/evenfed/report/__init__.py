"""Results for people: terminal tables and pictures, from what a comparison wrote to disk."""
