"""What a model's config.json says: its kind (`config`), its weights counted, and their forms."""
