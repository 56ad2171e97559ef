"""Studies: small models trained from nothing on one budget, several seeds each, to test a published claim."""

from mrope.probes.studies.catalogue import STUDIES, study
from mrope.probes.studies.results import Results
from mrope.probes.studies.runs import Settings, Step, recipes_of, run_study
from mrope.probes.studies.study import Claim, Study
from mrope.probes.studies.training import STEPS, Recipe, train
from mrope.probes.studies.variants import VARIANTS, Variant, variant

__all__ = [
    "STEPS",
    "STUDIES",
    "VARIANTS",
    "Claim",
    "Recipe",
    "Results",
    "Settings",
    "Step",
    "Study",
    "Variant",
    "recipes_of",
    "run_study",
    "study",
    "train",
    "variant",
]
