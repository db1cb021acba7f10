"""synthcity: tables sampled from PrivBayes. Its plugin's own file, without the package: that wants torch below 2.3."""

import sys
import types
from importlib.metadata import files
from importlib.util import module_from_spec, spec_from_file_location

import pandas as pd

from dpaudit import Claim
from experiments.libraries.promise import Promise, seed_globals

LIBRARY = "synthcity"
PRIVBAYES = "https://arxiv.org/abs/2602.17454"
REST = {
    "plugins.core.dataloader": "DataLoader", "plugins.core.distribution": "Distribution",
    "plugins.core.plugin": "Plugin", "plugins.core.schema": "Schema",
    "plugins.core.serializable": "Serializable", "utils.reproducibility": "enable_reproducible_results",
}  # fmt: skip


def privbayes():
    """The module of the plugin, whose mechanism uses nothing of the package but its logger."""
    quiet = types.ModuleType("synthcity.logger")
    quiet.debug = quiet.info = lambda *_: None
    package = types.ModuleType("synthcity")
    package.logger = quiet
    sys.modules |= {"synthcity": package, "synthcity.logger": quiet}
    for name, wanted in REST.items():
        module = sys.modules[f"synthcity.{name}"] = types.ModuleType(name)
        setattr(module, wanted, type(wanted, (), {}))
    (file,) = (file for file in files(LIBRARY) or [] if str(file).endswith("plugin_privbayes.py"))
    spec = spec_from_file_location("plugin_privbayes", str(file.locate()))
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


PrivBayes = privbayes().PrivBayes


def table(rng, x):
    """Two hundred synthetic rows for a table of two columns of x and 10 - x rows of a kind."""
    seed_globals(rng)
    rows = pd.DataFrame([("a", "u")] * x + [("b", "v")] * (10 - x), columns=["one", "two"])
    return PrivBayes(epsilon=1.0, K=1).fit(rows).sample(200)


def promises():
    yield Promise("PrivBayes", Claim(1.0), table, 2, 3, trials=2_000, issue=PRIVBAYES)
