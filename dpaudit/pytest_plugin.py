"""Audits privacy in tests: a pytest plugin with the fixture ``audit_privacy`` and the marker ``dpaudit``.

    @pytest.mark.dpaudit(seconds=5, confidence=0.999)
    def test_sum_is_private(audit_privacy):
        audit_privacy(noisy_sum, x0, x1, dpaudit.Claim(1.0))

Nothing but pytest is imported before a test asks for the fixture.
"""

import math
import re
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from dpaudit.auditing.bounds.sequential import Until
    from dpaudit.auditing.result import AuditResult
    from dpaudit.mechanisms.claim import Claim

MARKER = (
    "dpaudit(seconds=5, confidence=0.999, trials=None): how audit_privacy plays: as many trials as fit into the "
    "seconds, stopping once a violation is certain; or exactly so many trials"
)
SECONDS, CONFIDENCE, MOST = 5.0, 0.999, 10_000_000
OPTIONS = ("seconds", "confidence", "trials")
LENGTH = {"seconds", "trials"}  # set by one marker together
FOLDER = "dpaudit-pages"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that names the folder of pages."""
    parser.getgroup("dpaudit").addoption(
        "--dpaudit-pages",
        metavar="DIR",
        help=f"folder for the pages of audits that found a violation (default: {FOLDER} in the root directory)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def audit_privacy(request: pytest.FixtureRequest) -> "Callable[..., AuditResult]":
    """Returns a function that audits a mechanism, and fails the test if its claim is violated.

    ``audit_privacy(mechanism, x0, x1, claim=None, **more) -> AuditResult`` takes the arguments of
    :func:`dpaudit.audit`. Its seed is derived from the test's node id, so every test has its own trials, the same ones
    in each run. With ``seconds`` of the marker, 5 by default and without compilation, the bound holds whenever time
    runs out; a slower machine runs fewer trials, and ``until`` may end them earlier. With ``trials``, exactly that
    many are run, and the result is the same on all machines of a kind. An underpowered audit is a warning.
    """
    calls = 0

    def audit(mechanism: Any, x0: Any, x1: Any, claim: "Claim | None" = None, **more: Any) -> "AuditResult":
        __tracebackhide__ = True
        import jax

        nonlocal calls
        key = jax.random.fold_in(jax.random.key(zlib.crc32(request.node.nodeid.encode())), calls)
        calls += 1
        return _audited(request, key, (mechanism, x0, x1), claim, more, calls)

    return audit


def _audited(
    request: pytest.FixtureRequest, key: Any, what: tuple[Any, Any, Any], claim: Any, more: dict[str, Any], number: int
) -> "AuditResult":
    __tracebackhide__ = True
    import dpaudit
    from dpaudit import _validate
    from dpaudit.auditing.bounds import sequential
    from dpaudit.auditing.shown import beside

    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("dpaudit"):  # the nearest first
        unknown = [*marker.args, *(name for name in marker.kwargs if name not in OPTIONS)]
        if unknown:
            raise _validate.expected("mark.dpaudit", f"{', '.join(OPTIONS)} by name", unknown)
        settled = LENGTH if LENGTH & settings.keys() else ()
        settings = {name: value for name, value in marker.kwargs.items() if name not in settled} | settings
    if "key" in more:
        raise _validate.expected("key", "none, which comes from the test's name", more["key"])
    claim = getattr(what[0], "claim", None) if claim is None else claim
    if claim is None:
        raise _validate.expected("claim", "the promise that the test is about", claim)
    options: dict[str, Any] = {"claim": claim, "confidence": settings.get("confidence", CONFIDENCE)}
    trials, seconds = settings.get("trials"), settings.get("seconds")
    options["trials"] = MOST if trials is None else trials
    if trials is None or seconds is not None:
        rule: Any = more.pop("until", None) or sequential.violation()
        if not callable(rule):
            raise _validate.expected("until", "a rule such as sequential.violation(), or None", rule)
        own: Any = more.pop("progress", None)
        seconds = _validate.positive(seconds=SECONDS if seconds is None else seconds)
        clock = _Clock(seconds, cast("Until", rule), own)
        options |= {"until": clock.over, "progress": clock.played}
    began = time.perf_counter()
    result = dpaudit.audit(*what, key=key, **options | more)
    if result.verdict == "violation":
        try:
            page = f"page: {_write_page(request, result, number, time.perf_counter() - began)}"
        except Exception as error:  # whatever happens to the page must not hide the violation
            page = f"page not written: {_validate.one_line(f'{type(error).__name__}: {error}')}"
        promised = f"the curve {claim!r}" if claim.is_curve else f"{claim.epsilon:g}"
        lower = beside(result.epsilon_lower, None if claim.is_curve else claim.epsilon)
        shown = f"epsilon is at least {lower} with confidence"
        if result.p_value is not None:
            shown = f"p = {result.p_value:.2g} (of the promise being kept), at confidence"
        pytest.fail(
            f"privacy violation: {shown} {result.confidence:g}, promised was {promised} "
            f"(delta {result.delta:g}, {result.trials:,} trials, {result.method})\n{page}"
        )
    if result.verdict == "underpowered":
        line = f"{request.node.nodeid}: the audit could have shown no violation: {result.reason}"
        warnings.warn(line, _validate.InputWarning, stacklevel=3)
    if request.config.getoption("--dpaudit-pages") is not None:
        try:
            _folder(request)
        except OSError as error:
            line = f"--dpaudit-pages: expected a folder that can be written, got {error}"
            warnings.warn(line, _validate.InputWarning, stacklevel=3)
    return result


class _Clock:
    """Stops an audit once a violation is certain (or the test's own rule says so) or its time is over. The clock
    starts with the second call to the devices, because the first one includes compilation."""

    def __init__(self, seconds: float, certain: "Until", progress: Callable[[int], None] | None) -> None:
        self._seconds, self._certain, self._progress = seconds, certain, progress
        self._end, self._chosen = math.inf, False

    def over(self, watch: Any, counts: Any) -> Any:
        """Tells after which of the latest pairs to stop: a rule for :func:`dpaudit.audit`."""
        self._chosen = True
        stop = self._certain(watch, counts)
        if len(stop) and time.monotonic() > self._end:
            stop[-1] = True
        return stop

    def played(self, done: int) -> None:
        """Starts the clock, and ends an audit that has no time left before an attack is chosen."""
        from dpaudit import _validate

        if self._progress is not None:
            self._progress(done)
        if self._end == math.inf and done:
            self._end = time.monotonic() + self._seconds
        elif time.monotonic() > self._end and not self._chosen:
            wanted = "enough for the trials that choose an attack (mark.dpaudit(trials=...) plays so many)"
            raise _validate.expected("seconds", wanted, f"{self._seconds:g}, in which {done:,} were played")


def _write_page(request: pytest.FixtureRequest, result: "AuditResult", number: int, seconds: float) -> Path:
    """Writes the page of a violation and returns its path."""
    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_audit_page

    node = request.node.nodeid
    folder = _folder(request)
    slug = re.sub(r"[^\w.-]+", "-", node).strip("-")[-80:]
    page = folder / f"{slug}-{zlib.crc32(node.encode()):08x}-{number}.html"
    more = {"target": node, "seed": zlib.crc32(node.encode()), "seconds": seconds, "versions": versions()}
    write_audit_page(result.to_row() | more, page)
    return page


def _folder(request: pytest.FixtureRequest) -> Path:
    """Returns the folder of pages, made if need be."""
    folder = request.config.rootpath / (request.config.getoption("--dpaudit-pages") or FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
