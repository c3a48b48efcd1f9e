"""The value head in closed form, against plain least squares on all rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_r1.algorithms.ridge import FIRST_RIDGE, NUM_FOLDS, RIDGES, Moments, RidgeValues, solve
from tests.helpers.fuzzing import cases

CPU = torch.device("cpu")


def slow_head(rows: list[tuple[Tensor, float, float]], ridge: float) -> tuple[Tensor, float]:
    """Weights and bias of the weighted ridge regression on (features, return, weight), written out."""
    features = torch.stack([row[0] for row in rows]).double()
    returns = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    weight = torch.tensor([row[2] for row in rows], dtype=torch.float64) / sum(row[2] for row in rows)
    mean, mean_return = (weight[:, None] * features).sum(0), float((weight * returns).sum())
    centred = features - mean
    covariance = centred.T @ (weight[:, None] * centred)
    if math.isinf(ridge):
        return torch.zeros(features.shape[1], dtype=torch.float64), mean_return
    scale = covariance.diagonal().mean()
    identity = torch.eye(len(covariance), dtype=torch.float64)
    right = centred.T @ (weight * (returns - mean_return))
    weights = torch.linalg.solve(covariance + (ridge + 1e-9) * scale * identity, right)
    return weights, mean_return - float(mean @ weights)


def batch_of(seed: int, units: int = 11, width: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Some states a unit, whose returns follow from the first feature, with noise."""
    generator = torch.Generator().manual_seed(seed)
    unit_M = torch.repeat_interleave(torch.arange(units), torch.randint(1, 4, (units,), generator=generator))
    features_M = torch.randn(len(unit_M), width, generator=generator)
    noise_M = 0.3 * torch.randn(len(unit_M), generator=generator)
    return features_M, (0.5 * features_M[:, 0] + noise_M).double(), unit_M


def test_ridge_regression_by_hand() -> None:
    moments = Moments.of(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.0, 1.0]))
    plain, shrunk, mean = solve(moments, (0.0, 1.0, math.inf))
    assert (plain.weights.item(), plain.bias.item()) == pytest.approx((0.5, 0.5))
    assert (shrunk.weights.item(), shrunk.bias.item()) == pytest.approx((0.25, 0.5))
    assert (mean.weights.item(), mean.bias.item()) == pytest.approx((0.0, 0.5))


def test_features_that_repeat_each_other_can_be_solved() -> None:
    features = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    for head in solve(Moments.of(features, features[:, 0])):
        assert head.weights.isfinite().all()


@pytest.mark.parametrize("error", [0.0, 1e-7, 1e-6, 1e-5])
def test_rounding_errors_of_equal_states_explain_no_return(error: float) -> None:
    """The members of a group stand in the same state, computed in different micro-batches: the head is their mean
    return, also for other states."""
    generator = torch.Generator().manual_seed(0)
    state, others = torch.randn(64, generator=generator), torch.randn(5, 64, generator=generator)
    features = state * (1 + error * torch.randn(8, 64, generator=generator))
    returns = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    for head in solve(Moments.of(features, returns)):
        assert head(others).tolist() == pytest.approx([0.5] * 5, abs=1e-6)


@pytest.mark.parametrize("decay", [0.7, 1.0])
def test_values_are_those_of_least_squares_on_earlier_batches_and_the_other_folds(decay: float) -> None:
    ridge = RidgeValues(3, decay=decay, device=CPU)
    rows: list[list[tuple[Tensor, float]]] = []
    errors = [0.0] * len(RIDGES)
    for number in range(3):
        features_M, returns_M, unit_M = batch_of(number)
        found_M = ridge.fit(features_M, returns_M, unit_M)
        chosen = min(range(len(RIDGES)), key=errors.__getitem__) if number else FIRST_RIDGE
        earlier = [(x, y, decay ** (number - age)) for age, batch in enumerate(rows) for x, y in batch]
        new_errors = [0.0] * len(RIDGES)
        for place, unit in enumerate(unit_M.tolist()):
            others = [
                (features_M[m], float(returns_M[m]), 1.0)
                for m in range(len(unit_M))
                if int(unit_M[m]) % NUM_FOLDS != unit % NUM_FOLDS
            ]
            known = [y for _, y, _ in earlier + others]
            for index, candidate in enumerate(RIDGES):
                weights, bias = slow_head(earlier + others, candidate)
                value = float(features_M[place].double() @ weights) + bias
                value = min(max(value, min(known)), max(known))
                new_errors[index] += (value - float(returns_M[place])) ** 2
                if index == chosen:
                    assert float(found_M[place]) == pytest.approx(value, abs=1e-6)
        errors = [decay * old + new for old, new in zip(errors, new_errors, strict=True)]
        rows.append(list(zip(features_M, returns_M.tolist(), strict=True)))
        assert ridge.errors.tolist() == pytest.approx(errors, rel=1e-6)


@pytest.mark.whole
@settings(max_examples=cases(25), deadline=None)
@given(seed=st.integers(0, 10_000), unit=st.integers(0, 10), change=st.floats(-5, 5))
def test_no_value_is_touched_by_a_return_of_its_own_unit(seed: int, unit: int, change: float) -> None:
    """Not through the fit, nor through the choice of the ridge, nor through the bounds."""
    found = []
    for added in (0.0, change):
        ridge = RidgeValues(3, decay=0.7, device=CPU)
        ridge.fit(*batch_of(seed + 1))
        features_M, returns_M, unit_M = batch_of(seed)
        found.append(ridge.fit(features_M, returns_M + added * (unit_M == unit), unit_M)[unit_M == unit])
    assert torch.allclose(found[0], found[1], atol=1e-9)


def test_a_batch_of_one_unit_is_valued_by_earlier_batches_alone() -> None:
    ridge = RidgeValues(3, decay=1.0, device=CPU)
    features_M, returns_M, _ = batch_of(0, units=1)
    one = torch.zeros(len(returns_M), dtype=torch.long)
    assert ridge.fit(features_M, returns_M, one).tolist() == [0.0] * len(returns_M)
    ridge = RidgeValues(3, decay=1.0, device=CPU)
    ridge.fit(*batch_of(1))
    expected = ridge.predict(features_M)
    assert torch.allclose(ridge.fit(features_M, returns_M, one), expected, atol=1e-9)


def test_a_batch_of_one_unit_chooses_no_ridge_when_there_is_no_earlier_one() -> None:
    """No candidate could be tried on returns that it was not fitted to."""
    ridge = RidgeValues(3, decay=1.0, device=CPU)
    features_M, returns_M, _ = batch_of(0, units=1)
    ridge.fit(features_M, returns_M, torch.zeros(len(returns_M), dtype=torch.long))
    assert ridge.is_fitted
    assert ridge.best == FIRST_RIDGE


def test_what_the_features_tell_is_explained_and_noise_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    told, noise = RidgeValues(20, decay=0.7, device=CPU), RidgeValues(20, decay=0.7, device=CPU)
    explained: dict[str, list[float]] = {"told": [], "noise": []}
    for _ in range(6):
        features_M = torch.randn(64, 20, generator=generator)
        unit_M = torch.arange(64)
        for name, ridge, returns_M in (
            ("told", told, features_M[:, 0] + 0.5 * torch.randn(64, generator=generator)),
            ("noise", noise, torch.randn(64, generator=generator)),
        ):
            values_M = ridge.fit(features_M, returns_M.double(), unit_M)
            explained[name].append(1 - float((returns_M - values_M).var() / returns_M.var()))
    assert min(explained["told"][1:]) > 0.6  # 0.8 is all there is
    assert min(explained["noise"][1:]) > -0.1


def test_values_stay_within_what_was_earned() -> None:
    ridge = RidgeValues(1, decay=1.0, device=CPU)
    ridge.fit(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0.0, 0.5, 1.0]), torch.arange(3))
    assert ridge.predict(torch.tensor([[50.0], [-50.0]])).tolist() == [1.0, 0.0]


def test_a_return_that_is_no_number_is_not_fitted_to() -> None:
    ridge = RidgeValues(3, decay=1.0, device=CPU)
    features_M, returns_M, unit_M = batch_of(0)
    broken_M = returns_M.clone()
    broken_M[3] = math.nan
    values_M = ridge.fit(features_M, broken_M, unit_M)
    assert values_M.isfinite().all()
    assert ridge.errors.isfinite().all()
    assert float(ridge.moments.count) == len(returns_M) - 1
    nothing = RidgeValues(3, decay=1.0, device=CPU)
    nothing.fit(features_M, torch.full_like(returns_M, math.inf), unit_M)
    assert not nothing.is_fitted


def test_a_restored_state_goes_on_as_if_nothing_had_happened() -> None:
    first, second = RidgeValues(3, decay=0.7, device=CPU), RidgeValues(3, decay=0.7, device=CPU)
    first.fit(*batch_of(0))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.fit(*batch_of(1)), second.fit(*batch_of(1)))
