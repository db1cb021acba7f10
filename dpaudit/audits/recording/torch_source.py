"""Records torch's draws, if torch is imported, and follows their noise on the CPU by the rules for NumPy.

A noisy tensor carries an array of :mod:`noisy`, on which sums, products with constants, comparisons and reshaping are
computed too. Noise is not followed through any other operation, nor through autograd.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dpaudit.audits.recording import noisy
from dpaudit.audits.recording.numpy_sources import followed, fresh_seed
from dpaudit.audits.recording.trace import Seed, Stage, caller

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "subtract": np.subtract,
    "mul": np.multiply,
    "multiply": np.multiply,
    "div": np.true_divide,
    "true_divide": np.true_divide,
    "neg": np.negative,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "log": np.log,
    "exp": np.exp,
    "sign": np.sign,
    "log1p": np.log1p,
    "clamp": np.clip,
    "clip": np.clip,
}
SHAPES: dict[str, Callable[..., Any]] = {
    "reshape": lambda one, *shape: one.reshape(*_sizes(shape)),
    "view": lambda one, *shape: one.reshape(*_sizes(shape)),
    "flatten": lambda one: one.ravel(),
    "squeeze": lambda one: one.squeeze(),
    "clone": lambda one: one.copy(),
    "detach": lambda one: one,
    "cpu": lambda one: one,
    "float": lambda one: one.astype(np.float32),
    "double": lambda one: one.astype(np.float64),
    "__getitem__": lambda one, index: one[index],
    "item": lambda one: one.reshape(-1)[0],
}
DRAWN = "bernoulli multinomial randint randperm poisson"
DRAWN_IN_PLACE = "bernoulli_ random_ cauchy_ log_normal_ geometric_"


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(shape[0]) if shape and not isinstance(shape[0], int) else tuple(shape)


@cache
def _tensor_class() -> Any:
    torch: Any = sys.modules["torch"]

    class NoisyTensor(torch.Tensor):
        """A tensor with noise in it."""

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():  # torch passes attribute access here, too
                return _applied(torch, function, args, kwargs or {})

    return NoisyTensor


def _applied(torch: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Applies a torch function by the rules for NumPy, if it is one through which noise is followed."""
    name = getattr(function, "__name__", "")
    bare, reverse, in_place = _operation(name)
    grad = any(getattr(one, "requires_grad", False) for one in args)
    if grad or set(kwargs) - {"alpha"} or (bare not in FUNCTIONS and name not in SHAPES):
        return function(*_plain(args), **{key: _plain(one) for key, one in kwargs.items()})
    if name in SHAPES:
        made = SHAPES[name](*map(_array, args))
        return _back(made, args[0]) if name == "item" else _with(made, function(*_plain(args)))  # a view stays a view
    values = [_array(one) for one in (args[::-1] if reverse else args)]
    if "alpha" in kwargs:
        values[1] = values[1] * kwargs["alpha"]
    made = _back(FUNCTIONS[bare](*values), next(one for one in args if isinstance(one, torch.Tensor)))
    if not in_place:
        return made
    with torch.no_grad():
        _plain(args[0]).copy_(_plain(made))
    if not hasattr(args[0], "_noisy"):
        return made
    args[0]._noisy = getattr(made, "_noisy", None)  # None where the noise is not followed
    return args[0]


def _operation(name: str) -> tuple[str, bool, bool]:
    """Returns the operation behind a name of torch's, ``add`` for ``add_``, ``__radd__`` and ``__iadd__``; whether its
    arguments are reversed, and whether it writes into the first."""
    if not name.startswith("__"):
        return name.rstrip("_"), False, name.endswith("_")
    bare = name.strip("_")
    if bare not in FUNCTIONS and bare[1:] in FUNCTIONS:
        return bare[1:], bare.startswith("r"), bare.startswith("i")
    return bare, False, False


def _plain(value: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    with torch._C.DisableTorchFunctionSubclass():
        is_tensor = isinstance(value, torch.Tensor)
        return value.as_subclass(torch.Tensor) if is_tensor else noisy.plain(value)


def _array(value: Any) -> Any:
    """Returns a tensor as a NumPy array, with its noise if it has any and was not written to by other means than the
    operations above, or through another tensor."""
    held = getattr(value, "_noisy", None)
    if held is None and not hasattr(value, "detach"):
        return value
    plain = _plain(value).detach().cpu()
    if held is None or _holds(plain, held):
        return plain.numpy() if held is None else held
    noisy.lost(held._tag)
    return plain.numpy()


def _holds(tensor: Any, held: Any) -> bool:
    """Tells whether a tensor has the value that its noise was recorded for."""
    torch: Any = sys.modules["torch"]
    kept = torch.from_numpy(np.array(noisy.plain(held))).to(tensor.dtype)
    return kept.shape == tensor.shape and bool(((kept == tensor) | ((kept != kept) & (tensor != tensor))).all())


def _back(value: Any, like: Any) -> Any:
    """Returns an array as a tensor, of the type of ``like`` if the array has no dimensions."""
    torch: Any = sys.modules["torch"]
    made = torch.from_numpy(np.array(noisy.plain(value)))
    return _with(value, made if made.ndim or like is None else made.to(like.dtype))


def _with(value: Any, tensor: Any) -> Any:
    """Returns the tensor, with the noise of the array if that has any."""
    if isinstance(value, noisy.NoisyArray | noisy.NoisyFloat):
        tensor = tensor.as_subclass(_tensor_class())
        tensor._noisy = value
    return tensor


def noisy_array_of(value: Any) -> Any:
    """Returns the array of a noisy tensor, any other tensor as an array, and other values unchanged."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    return _array(value)


def put(stage: Stage, put: Callable[..., None]) -> None:
    """Replaces torch's sources, if torch is imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "normal"):
        return
    own = torch.Generator()
    stage.at_begin.append(lambda trace: own.manual_seed(fresh_seed(trace)))
    real_normal, real_rand = torch.normal, torch.rand
    kept = {name: getattr(torch, name) for name in DRAWN.split()}
    kept_in_place = {name: getattr(torch.Tensor, name) for name in DRAWN_IN_PLACE.split()}

    def draws(
        name: str, law: str, location: Any, scale: Any, shape: Any, dtype: Any, make: Any, generator: Any
    ) -> Any:
        dtype = dtype or torch.get_default_dtype()

        def drawn(size: Any) -> np.ndarray:
            return make(size, torch.float64, generator or own).numpy()

        value = followed(stage.trace, f"torch.{name}", law, _array(location), _array(scale), shape, drawn)
        return _back(value.astype(torch.empty(0, dtype=dtype).numpy().dtype), None)

    def gaussian(size: Any, dtype: Any, generator: Any) -> Any:
        return real_normal(0.0, 1.0, size=tuple(size), dtype=dtype, generator=generator)

    def uniform(size: Any, dtype: Any, generator: Any) -> Any:
        return real_rand(tuple(size), dtype=dtype, generator=generator)

    def laplace(size: Any, dtype: Any, generator: Any) -> Any:
        u = uniform(size, dtype, generator) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs())

    def normal(
        mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None, **_: Any
    ) -> Any:
        shape = np.broadcast_shapes(np.shape(_array(mean)), np.shape(_array(std))) if size is None else tuple(size)
        given = next((one.dtype for one in (mean, std) if isinstance(one, torch.Tensor)), dtype)
        return draws("normal", "gaussian", mean, std, shape, given, gaussian, generator)

    def sized(name: str, law: str, make: Any) -> Callable[..., Any]:
        def function(*size: Any, generator: Any = None, dtype: Any = None, **_: Any) -> Any:
            return draws(name, law, 0.0, 1.0, _sizes(size), dtype, make, generator)

        return function

    def like(name: str, law: str, make: Any) -> Callable[..., Any]:
        def function(other: Any, *, dtype: Any = None, **_: Any) -> Any:
            return draws(name, law, 0.0, 1.0, tuple(other.shape), dtype or other.dtype, make, None)

        return function

    def filling(name: str, law: str, make: Any, settings: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
            location, scale = settings(*args, **kwargs)
            made = draws(name, law, location, scale, tuple(self.shape), self.dtype, make, generator)
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                self.copy_(_plain(made))
            return made

        return method

    def recorded(name: str, real: Any) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            settings = {"generator": own} | kwargs
            given = {str(place): _array(one) for place, one in enumerate(args)}
            return stage.trace.draw(
                f"torch.{name}", name, None, lambda: real(*_plain(args), **settings), given, followed=False
            )

        return function

    def manual_seed(seed: int) -> Any:
        stage.trace.seeds.append(Seed("torch.manual_seed", repr(seed), caller()))
        own.manual_seed(seed)
        return own

    put(torch, "normal", normal)
    put(torch, "randn", sized("randn", "gaussian", gaussian))
    put(torch, "rand", sized("rand", "uniform", uniform))
    put(torch, "randn_like", like("randn_like", "gaussian", gaussian))
    put(torch, "rand_like", like("rand_like", "uniform", uniform))
    put(torch, "manual_seed", manual_seed)
    for name, real in kept.items():
        put(torch, name, recorded(name, real))
    for name, real in kept_in_place.items():
        put(torch.Tensor, name, recorded(f"Tensor.{name}", real))
    put(
        torch.Tensor, "normal_", filling("Tensor.normal_", "gaussian", gaussian, lambda mean=0.0, std=1.0: (mean, std))
    )
    spread = lambda low=0.0, high=1.0, **_: (_.get("from", low), _.get("to", high) - _.get("from", low))  # noqa: E731
    put(torch.Tensor, "uniform_", filling("Tensor.uniform_", "uniform", uniform, spread))
    distributions = sys.modules.get("torch.distributions")
    if distributions is not None:

        def sampled(name: str, law: str, make: Any) -> Callable[..., Any]:
            def rsample(self: Any, sample_shape: Any = ()) -> Any:
                shape = tuple(self._extended_shape(torch.Size(sample_shape)))
                return draws(name, law, self.loc, self.scale, shape, self.loc.dtype, make, None)

            return rsample

        for name, law, make in (("Laplace", "laplace", laplace), ("Normal", "gaussian", gaussian)):
            for method in ("rsample", "sample"):
                made = sampled(f"distributions.{name}.{method}", law, make)
                put(getattr(distributions, name), method, made)
