"""Every checkpoint that a user has on disk, as canonical tensors; and our own files."""
