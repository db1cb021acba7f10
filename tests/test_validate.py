"""One style of refusal: every message is one line with the name, what was expected, and what was given."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import InputError, _validate

MASKED = np.ma.masked_greater([1.0, 2.0, 99.0], 9)
POSITIVE = "a finite number > 0"
WHOLE = "a whole number >= 1"
CLOSED = "a number in [0, 1]"
HALF_OPEN = "a number in [0, 1)"
OPEN = "a number in (0, 1)"
REAL = "real numbers (a complex one as its real and its imaginary part)"


def test_input_error_is_a_value_error_and_public():
    assert issubclass(_validate.InputError, ValueError)
    assert InputError is _validate.InputError


NUMBERS = [
    lambda **named: _validate.positive(**named),
    lambda **named: _validate.non_negative(**named),
    lambda **named: _validate.real(**named),
    lambda **named: _validate.open_unit(**named),
    lambda **named: _validate.probability(**named),
    lambda **named: _validate.delta(2, "people", **named),
]


@pytest.mark.parametrize("value", [1, 0.5, 1e-300, 10**20])
def test_a_number_of_python_is_returned_as_it_was_given(value):
    for accepted in NUMBERS[: 6 if value in (0.5, 1e-300) else 3]:
        assert accepted(epsilon=value) is value


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.array, jnp.float16, jnp.array])
def test_a_number_of_numpy_or_jax_is_returned_as_a_python_float(kind):
    for accepted in NUMBERS:
        assert type(accepted(it=kind(0.5))) is float
        assert accepted(it=kind(0.5)) == 0.5


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, jnp.int8, jnp.uint8])
def test_products_of_a_narrow_whole_number_do_not_wrap_around(kind):
    for accepted in NUMBERS[:3]:
        assert 2 * accepted(it=kind(100)) == 200.0
        assert float(jax.jit(lambda x, accepted=accepted: 1_000 * accepted(it=x))(kind(100))) == 100_000.0


def test_a_traced_number_is_at_least_float32_and_else_as_it_was():
    assert jax.eval_shape(lambda x: _validate.positive(x=x), jnp.float16(1)).dtype == jnp.float32
    for plain in (jnp.float32(1), 1.0):
        assert not jax.make_jaxpr(lambda x: _validate.positive(x=x))(plain).eqns


def test_a_delta_for_many_people_is_compared_in_full():
    """In float16, 70,000 people are infinitely many."""
    delta = np.float16(1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _validate.delta(70_000, "people", delta=delta) == float(delta)
    with pytest.warns(_validate.InputWarning, match=r"delta: expected at most 1/300000, .* got np.float16\(1e-05\)"):
        _validate.delta(300_000, "people", delta=delta)


@pytest.mark.parametrize(
    "call, wanted, shown",
    [
        *[
            (lambda value=value: _validate.positive(it=value), POSITIVE, shown)
            for value, shown in [
                (0, "0"), (-1.5, "-1.5"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (None, "None"),
                (True, "True"), (np.True_, "np.True_"), ("4", "'4'"), ([1.0], "[1.0]"), (np.ones(1), "array([1.])"),
                (1j, "1j"),
            ]
        ],
        *[
            (lambda value=value: _validate.at_least(1, it=value), WHOLE, shown)
            for value, shown in [
                (0, "0"), (-3, "-3"), (2.5, "2.5"), (math.nan, "nan"), (math.inf, "inf"), (True, "True"), ("5", "'5'"),
            ]
        ],
        *[
            (lambda value=value: _validate.non_negative(it=value), "a finite number >= 0", shown)
            for value, shown in [(-1e-300, "-1e-300"), (math.nan, "nan"), (math.inf, "inf"), ("0", "'0'")]
        ],
        (lambda: _validate.probability(it=1), HALF_OPEN, "1"),
        (lambda: _validate.probability(it=-1e-9), HALF_OPEN, "-1e-09"),
        (lambda: _validate.probability(it=math.nan), HALF_OPEN, "nan"),
        (lambda: _validate.probability(it=1.1, one_allowed=True), CLOSED, "1.1"),
        (lambda: _validate.probability(it="0.5"), HALF_OPEN, "'0.5'"),
        (lambda: _validate.real(it="1"), "a finite number", "'1'"),
        (lambda: _validate.open_unit(it="0.5"), OPEN, "'0.5'"),
        (lambda: _validate.finite(it="one"), "numbers", "'one'"),
        (lambda: _validate.finite(it={"a": MASKED}), "arrays without masked values", "1 masked of 3"),
        (lambda: _validate.finite(it=[10**30]), "numbers of at most 64 bits", str(10**30)),
        (lambda: _validate.finite(it=10**400), "numbers of at most 64 bits", "1" + 76 * "0" + "..."),
        (lambda: _validate.finite(it=np.array([10**400])), "numbers", "array([1" + 69 * "0" + "..."),
        (lambda: _validate.finite(it={"a": np.array([1j])}), REAL, "complex128 [1]"),
        (lambda: _validate.finite(it=jnp.array([complex(0, math.nan)])), REAL, "complex64 [1]"),
        (lambda: _validate.open_unit(it=0), OPEN, "0"),
        (lambda: _validate.open_unit(it=1.0), OPEN, "1.0"),
        (lambda: _validate.open_unit(it=math.nan), OPEN, "nan"),
        (lambda: _validate.one_of(("benign", "dummy"), it="Dummy"), "one of benign, dummy", "Dummy"),
        (lambda: _validate.one_of(("benign", "dummy"), it=7), "one of benign, dummy", "7"),
        (lambda: _validate.vector(it=jnp.ones((2, 3))), "an array of shape [d] with d >= 1", "shape [2, 3]"),
        (lambda: _validate.vector(it=jnp.ones(0)), "an array of shape [d] with d >= 1", "shape [0]"),
        (lambda: _validate.vector(it=4.0), "an array of shape [d] with d >= 1", "4.0"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_with_name_expectation_and_value(call, wanted, shown):
    with pytest.raises(_validate.InputError) as caught:
        call()
    assert str(caught.value) == f"it: expected {wanted}, got {shown}"


def test_bounds_that_belong_are_accepted():
    assert _validate.probability(delta=0) == 0
    assert _validate.probability(one_allowed=True, delta=1) == 1
    assert _validate.open_unit(confidence=0.5) == 0.5
    assert _validate.one_of(("a", "b"), name="b") == "b"
    assert _validate.vector(x=np.ones(1)).shape == (1,)


def test_at_least_gives_an_int_whatever_number_type_came_in():
    for value in (3, 3.0, np.int64(3), np.float32(3), jnp.array(3)):
        number = _validate.at_least(3, trials=value)
        assert number == 3
        assert type(number) is int


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, np.float64])
def test_finite_finds_one_bad_number_in_a_tree(bad, dtype):
    good = {"w": np.zeros((2, 3), dtype), "n": np.arange(3), "s": 1.5}
    assert _validate.finite(x=good) is good
    array = np.zeros(4, dtype)
    array[2] = bad
    with pytest.raises(_validate.InputError, match=r"^x: expected finite numbers, got 1 NaN or infinite of 4$"):
        _validate.finite(x=good | {"b": jnp.asarray(array)})


def test_a_large_number_of_a_narrow_type_is_finite():
    _validate.finite(x=jnp.full(3, 3e38, jnp.bfloat16))
    with pytest.raises(_validate.InputError, match="1 NaN or infinite of 1"):
        _validate.finite(x=math.inf)


@pytest.mark.parametrize("used", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_key_of_the_old_kind_is_given_the_type_that_it_was_made_with(used):
    two = jax.random.PRNGKey(3, impl="threefry2x32")
    with jax.default_prng_impl(used):
        assert _validate.key(key=two) == jax.random.key(3, impl="threefry2x32")
        assert _validate.key(key=jax.random.PRNGKey(3)) == jax.random.key(3)
    with pytest.raises(_validate.InputError, match=r"^key: expected a key, as made by jax\.random\.key, got Array\("):
        _validate.key(key=jax.random.PRNGKey(3, impl="rbg"))  # or of unsafe_rbg


def test_traced_values_pass_unchecked():
    @jax.jit
    def through(x):
        _validate.positive(x=x)
        _validate.open_unit(x=x)
        _validate.probability(x=x)
        _validate.finite(x=x)
        return x

    assert float(through(-2.0)) == -2.0


def test_long_values_are_shortened_to_one_line():
    message = str(_validate.expected("x", "a name", "line one\nline two " + "y" * 500))
    assert message.startswith("x: expected a name, got line one line two yyy")
    assert message.endswith("...")
    assert "\n" not in message
    assert len(message) < 120


@pytest.mark.parametrize(
    "accepted",
    [lambda x: _validate.positive(x=x), lambda x: _validate.non_negative(x=x), lambda x: _validate.open_unit(x=x)],
)
def test_a_known_number_is_checked_inside_a_program_that_is_being_traced(accepted):
    known, wrong = jnp.float32(0.5), jnp.float32(-0.5)
    assert jax.jit(lambda y: accepted(known) * y)(2.0) == 1.0
    with pytest.raises(_validate.InputError, match="x: expected a"):
        jax.jit(lambda y: accepted(wrong) * y)(2.0)


def test_masked_values_are_refused():
    """NumPy drops the mask, and what it hides would count."""
    masked = np.ma.masked_less(np.random.default_rng(0).normal(size=400), -2)
    plain = np.random.default_rng(1).normal(size=400)
    for call in (
        lambda: dpaudit.from_scores(plain, masked),
        lambda: dpaudit.from_samples(plain, masked),
        lambda: dpaudit.from_samples({"a": plain}, {"a": masked}),
        lambda: dpaudit.audit(lambda key, x: x, plain, masked, key=jax.random.key(0), trials=1000),
    ):
        with pytest.raises(InputError, match=r"^(scores|samples|x)1: expected arrays without masked values, got "):
            call()
    assert dpaudit.from_scores(plain, np.ma.array(plain[::-1])).trials == 800  # nothing is hidden


@pytest.mark.parametrize(
    "value, shown", [(0.12341, "0.1235"), (0.1234, "0.1234"), (1.0, "1"), (9.9999, "10"), (math.inf, "inf")]
)
def test_a_bound_is_never_shown_below_itself(value, shown):
    assert _validate.no_less(value) == shown
    assert float(shown) >= value
