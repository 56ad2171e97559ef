"""Inside real models: where attention goes, and what hidden states know of a token's place."""
