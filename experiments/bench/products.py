"""Computes the matrix products of a clipped sum of CNN32 and nothing else: a bound for any arrangement of the rest.

A convolution is patches times weights, and the products are those of as many examples at a time as the clipped sum
itself takes. Patches, pools, activations, squares, and the additions of sums are left out; operands lie ready.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

ALONE = "matrix products alone"
EXAMPLES = 8  # differentiated at a time, as many as the clipped sum takes on two cores


class Product(NamedTuple):
    """[each, m, k] @ [each, k, n], or [m, k] @ [k, n] of one."""

    each: int
    m: int
    k: int
    n: int

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns those of the operands and of the product."""
        batch = (self.each,) if self.each > 1 else ()
        return (*batch, self.m, self.k), (*batch, self.k, self.n), (*batch, self.m, self.n)


def of_cnn32(examples: int) -> list[Product]:
    """Returns the products for so many examples."""
    first, second = (784, 75, 64), (100, 1_600, 64)  # positions, numbers of a patch, features
    dense, last = (1_600, 512), (512, 10)
    forward = [Product(1, examples * t, k, n) for t, k, n in (first, second, (1, *dense), (1, *last))]
    backward = [Product(1, examples * t, n, k) for t, k, n in (second, (1, *dense), (1, *last))]  # images need none
    written = [Product(examples, n, t, k) for t, k, n in (first, second)]  # one gradient an example
    weighted = [Product(1, 1, examples, k * n) for _, k, n in (first, second)]
    return [*forward, *backward, *written, *weighted]


def operations(batch: int) -> float:
    """Returns the floating-point operations of the products of a batch."""
    return sum(2 * p.each * p.m * p.k * p.n for p in of_cnn32(EXAMPLES)) * batch / EXAMPLES


def alone(key: jax.Array, batch: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a compiled function of the products of a batch, part by part in one loop, and its arguments."""
    products = of_cnn32(EXAMPLES)
    keys = jax.random.split(key, (len(products), 2))
    left, right = (
        [jax.random.normal(own[at], p.shapes()[at]) for p, own in zip(products, keys, strict=True)] for at in (0, 1)
    )

    def part(i: Any, state: tuple[list[jax.Array], list[jax.Array]]) -> tuple[list[jax.Array], list[jax.Array]]:
        # One number differs from part to part, or XLA would multiply once for all of them.
        left = [x.at[(0,) * x.ndim].set(i.astype(x.dtype)) for x in state[0]]
        return left, [x @ y for x, y in zip(left, right, strict=True)]

    def run(left: list[jax.Array]) -> list[jax.Array]:
        nothing = [jnp.zeros(p.shapes()[2]) for p in products]
        return lax.fori_loop(0, batch // EXAMPLES, part, (left, nothing))[1]

    return jax.jit(run), (left,)
