"""Text and tokens: the tokenizer, and a stream of whole characters that knows stop strings."""
