"""Files, PDF pages, clips and arrays to pixels: one policy for every route."""
