"""What of a patched model can be told sound without running it."""
