"""draftproof: lossless speculative decoding, with proof."""
