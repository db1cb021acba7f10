"""Faults of what reports say."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/report/words",
        "report/test_page report/test_table",
        ("return math.floor(100 * share + 0.5)", "return math.floor(100 * share)"),
        ("return 2 * sum(1 - row", "return sum(1 - row"),
        ("/ (1 + math.exp(-epsilon))", "/ (1 + math.exp(-2 * epsilon))"),
    ),
    *of(
        "dpaudit/report/figures",
        "report/test_figures",
        ("return max(middle - low, 0.0), max(high - middle, 0.0)", "return middle - low, high - middle"),
        ("max(places[index], last + gap)", "places[index]"),
    ),
    *of(
        "dpaudit/report/rows",
        "report/test_rows",
        ("allow_nan=False", "allow_nan=True"),
        ("if occupied and not force", "if occupied and force"),
    ),
    *of(
        "dpaudit/report/page_telling",
        "report/test_page",
        ("own = (2 * row[", "own = (row["),
    ),
    *of(
        "dpaudit/report/table",
        "report/test_table",
        ("end_section=row is group[-1]", "end_section=True"),
        ("(FPR {result.fpr:.4f}, FNR {result.fnr:.4f})", "(FPR {result.fnr:.4f}, FNR {result.fpr:.4f})"),
    ),
    *of(
        "dpaudit/report/boundary_figure",
        "report/test_boundary_figure",
        ("if event.count == 1 else", "if event.count >= 1 else"),
    ),
]
