"""Attention through any encoding, softmax and linear, with masks and caches; and the block of our own models."""

from mrope.attention.blocks import Attention, Block, Table
from mrope.attention.caches import Cache, Held, KVCache, PagedKVCache, PagedRows
from mrope.attention.linear import LinearAttention, LinearOutput, LinearState, linear_attend
from mrope.attention.masks import Mask, Rule, Tokens, picture_numbers, read_tokens
from mrope.attention.softmax import Backend, EncodedAttention, attend

__all__ = [
    "Attention",
    "Backend",
    "Block",
    "Cache",
    "EncodedAttention",
    "Held",
    "KVCache",
    "LinearAttention",
    "LinearOutput",
    "LinearState",
    "Mask",
    "PagedKVCache",
    "PagedRows",
    "Rule",
    "Table",
    "Tokens",
    "attend",
    "linear_attend",
    "picture_numbers",
    "read_tokens",
]
