"""One model or many: which they are, where each goes, and the processes that share the work."""
