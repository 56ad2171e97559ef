"""Words that stand in pictures and around them: common, of four to seven letters, and none a part of another."""

from __future__ import annotations

import numpy as np

_LIST = """
acorn amber anchor apron autumn bacon badge bamboo banjo barley barrel basket beaver bench berry blanket bottle bramble
branch bread breeze bridge bronze brush bucket button cabin cactus camel candle canoe canvas carpet castle cedar cellar
chalk cherry chimney cider clover cobalt coffee comet copper coral cotton cradle crayon cricket crystal curtain daisy
dancer desert diamond dinner dragon drawer eagle engine falcon feather fender fiddle field filter finger flame flute
forest fossil frost garden garlic ginger glacier glove goblet granite grape gravel guitar hammer harbor harvest hazel
helmet heron honey hunter island ivory jacket jasmine jersey jungle kernel kettle kitchen ladder lagoon lantern laurel
lemon letter lizard lobster locket magnet mallet mango maple marble market meadow melon mirror mitten monkey morning
mosaic muffin mustard napkin nectar needle nickel nutmeg oasis ocean olive onion orange orchard otter oyster paddle
palace panther paper parrot pebble pencil pepper piano picnic pigeon pillow pilot pirate planet plaster pocket pollen
poplar potato prairie pumpkin puzzle quarry quilt rabbit radish ranger raven ribbon river rocket saddle saffron sailor
salmon sandal satin saucer scarf shovel silver sparrow spider spinach sponge spruce squash stable statue summit sunset
tablet teapot temple thicket thistle ticket tiger timber tomato trumpet tulip tunnel turnip turtle umber valley vanilla
velvet village violin walnut water weaver whistle willow window winter wizard wolf yarn yogurt zebra zipper
"""
WORDS = tuple(_LIST.split())


def some_words(rng: np.random.Generator, count: int) -> list[str]:
    """`count` different words in random order; beyond the length of the list they come again."""
    decks = [rng.permutation(len(WORDS)) for _ in range(-(-count // len(WORDS)))]
    return [WORDS[index] for deck in decks for index in deck.tolist()][:count]
