"""Plans of 2, 3, 4 and 8 ranks and of two stages for every family. The rows that each rank reads
must follow the rules of docs/parallel.md, computed by numpy (tests/golden/rank_plans.py), and
equal the files of tests/golden/ranks."""

import pytest

from golden_run import weights  # noqa: F401 (the path of tests/golden)
import rank_plans


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", rank_plans.cases())
def test_plans_of_ranks(name, tmp_path):
    model = rank_plans.model(name, str(tmp_path))
    one = rank_plans.plans(model)[0]
    for way in rank_plans.WAYS:
        ranks = rank_plans.plans(model, way)
        rank_plans.check(one, ranks, way)
        stored = rank_plans.read(way).get(name)
        assert stored in (None, rank_plans.paragraph(name, one, ranks)), (
            f"python3 tests/golden/rank_plans.py writes {rank_plans.path_of(way)} again"
        )


def test_most_models_can_be_dealt():
    for way, least in {"tp2": 80, "tp3": 55, "tp4": 45, "tp8": 20, "pp2": 85}.items():
        shares = [name for name, text in rank_plans.read(way).items() if "parallel." not in text]
        assert len(shares) >= least, (way, shares)
