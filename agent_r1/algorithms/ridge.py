"""A value head in closed form: ridge regression of returns on hidden states, from decaying sums.

A linear head by gradient steps is limited by its conditioning: hidden states have a few large directions and many small
ones, and the information is in the small ones. The normal equations are not affected. What is kept between batches is
`n`, `sum phi`, `sum G`, `sum phi phi^T` and `sum phi G`, each multiplied by `decay` per batch, because the policy that
the hidden states come from changes.

**Cross-fitting.** A state is never valued by a head that was fitted to its own return. States belong to units, and
units are split into folds; the states of one fold are valued by a head fitted to the earlier batches and to the *other*
folds of this batch. With episodes as units a value uses the other rollouts of the same task, as a group
baseline does, and does not depend on the episode's own actions: as a baseline it leaves the policy gradient unbiased.
Single states cannot be units, because the states of an episode share their return.

**The ridge** is the candidate with the lowest squared error so far, always on returns that its heads were not fitted
to. This batch's returns choose the ridge of the next batch.

Left out: the noise of the targets is taken to be the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from agent_r1.algorithms.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


NUM_FOLDS = 8
"""Folds per batch. With groups of up to eight members, and episodes as units, no two members share a fold."""

RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, float("inf"))
"""Candidates, in units of the mean variance of a feature; the last one predicts the mean return."""

FIRST_RIDGE = RIDGES.index(0.1)
"""The ridge of the first batch, when no candidate has been tried yet."""


ROUNDING = 1e-8
"""A variance of features, relative to their mean square, up to which they are the same: hidden states are float32, and
rounding grows over the layers. Then the mean return is predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Sums over states: all that a linear fit needs. They add up over batches and over processes."""

    count: Tensor
    """The number of states, decayed."""
    feature_sum: Tensor
    """[D]"""
    target_sum: Tensor
    """The sum of the returns."""
    products: Tensor
    """[D, D] Sum of `phi phi^T`."""
    cross: Tensor
    """[D] Sum of `phi G`."""

    @classmethod
    def zeros(cls, width: int, device: torch.device) -> Moments:
        """The sums over no states."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            count=zeros(),
            feature_sum=zeros(width),
            target_sum=zeros(),
            products=zeros(width, width),
            cross=zeros(width),
        )

    @classmethod
    def of(cls, features_M: Tensor, targets_M: Tensor) -> Moments:
        """Of some states. Features (1, 2) and returns (0, 1) have the cross sum 2."""
        features_M, targets_M = features_M.double(), targets_M.double()
        return cls(
            count=torch.tensor(float(len(targets_M)), dtype=torch.float64, device=features_M.device),
            feature_sum=features_M.sum(0),
            target_sum=targets_M.sum(),
            products=features_M.T @ features_M,
            cross=features_M.T @ targets_M,
        )

    def plus(self, other: Moments, weight: float = 1.0) -> Moments:
        """The sums of both, the other's times a weight; a weight of -1 takes them out again."""
        return Moments(
            count=self.count + weight * other.count,
            feature_sum=self.feature_sum + weight * other.feature_sum,
            target_sum=self.target_sum + weight * other.target_sum,
            products=self.products + weight * other.products,
            cross=self.cross + weight * other.cross,
        )

    def times(self, decay: float) -> Moments:
        """These sums times `decay`."""
        return self.plus(self, decay - 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearHead:
    """`value = bias + weights . features`."""

    weights: Tensor
    """[D]"""
    bias: Tensor
    """The value where all features are 0."""

    def __call__(self, features_M: Tensor) -> Tensor:
        """The values of some states."""
        return features_M.double() @ self.weights + self.bias


def solve(moments: Moments, ridges: tuple[float, ...] = RIDGES) -> list[LinearHead]:
    """The ridge regression for each candidate; the mean return is not shrunk.

    Features (-1, 1) and returns (0, 1): a ridge of 0 gives the weight 0.5 and the bias 0.5, a ridge of 1 (the variance
    of the feature) the weight 0.25.
    """
    count = moments.count.clamp(min=1e-12)
    mean, mean_target = moments.feature_sum / count, moments.target_sum / count
    covariance = moments.products / count - torch.outer(mean, mean)
    cross = moments.cross / count - mean * mean_target
    # Where features vary by rounding errors only, these must not be taken for what explains the returns: a head fitted
    # to them is so large that its values of any other state are far off.
    squares, variance = (moments.products.diagonal() / count).mean(), covariance.diagonal().mean()
    cross = torch.where(variance > ROUNDING * squares, cross, torch.zeros_like(cross))
    scale = torch.maximum(variance, ROUNDING * squares).clamp(min=1e-12)
    identity = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    heads = []
    for ridge in ridges:
        if ridge == float("inf"):
            weights = torch.zeros_like(mean)
        else:
            # The jitter keeps the matrix positive definite when features are collinear and the ridge is 0.
            factor = torch.linalg.cholesky(covariance + (ridge + 1e-9) * scale * identity)
            weights = torch.cholesky_solve(cross[:, None], factor).squeeze(1)
        heads.append(LinearHead(weights=weights, bias=mean_target - mean @ weights))
    return heads


class RidgeValues:
    """Values by cross-fitted ridge regression, batch after batch."""

    def __init__(self, width: int, *, decay: float, device: torch.device) -> None:
        self.decay = decay
        self.moments = Moments.zeros(width, device)
        self.errors = torch.zeros(len(RIDGES), dtype=torch.float64, device=device)
        """By ridge: squared errors on returns that were not fitted yet, decayed like the sums."""
        self.bounds = torch.tensor([float("inf"), float("-inf")], dtype=torch.float64, device=device)
        """The lowest and the highest return so far."""

    @property
    def is_fitted(self) -> bool:
        """Some return has been seen."""
        return bool(self.moments.count > 0)

    @property
    def best(self) -> int:
        """The index of the ridge with the lowest error."""
        return int(self.errors.argmin()) if bool(self.errors.any()) else FIRST_RIDGE

    def head(self) -> LinearHead:
        """The head fitted to all that has been seen."""
        return solve(self.moments, (RIDGES[self.best],))[0]

    def predict(self, features_M: Tensor) -> Tensor:
        """The values of states by `head`; 0 before anything was fitted."""
        if not self.is_fitted:
            return torch.zeros(len(features_M), dtype=torch.float64, device=features_M.device)
        return self.head()(features_M).clamp(*self.bounds)

    def fit(self, features_M: Tensor, targets_M: Tensor, unit_M: Tensor) -> Tensor:
        """Fit to a batch. Returns the values of its states, none fitted to the returns of its own unit.

        The values of a single unit come from earlier batches alone. States whose return is not finite are valued and
        not fitted to.
        """
        fold_M, finite_M = _folds(unit_M), targets_M.isfinite()
        folds = [fold_M == fold for fold in range(int(fold_M.max()) + 1 if len(fold_M) else 0)]
        parts = [Moments.of(features_M[in_fold & finite_M], targets_M[in_fold & finite_M]) for in_fold in folds]
        bounds = [_bounds(targets_M[in_fold & finite_M]) for in_fold in folds]
        earlier = self.moments.times(self.decay)
        total = reduce(Moments.plus, parts, earlier)
        values_M, best = torch.zeros_like(targets_M, dtype=torch.float64), self.best
        errors = torch.zeros_like(self.errors)
        for fold, in_fold in enumerate(folds):
            others = _widest([self.bounds, *bounds[:fold], *bounds[fold + 1 :]])
            rest = total.plus(parts[fold], -1.0)
            if not _can_be_fitted(rest):  # values of 0, which say nothing about any ridge
                continue
            guesses = _values_by_ridge(features_M[in_fold], rest, others)
            values_M[in_fold] = guesses[best]
            missed = (guesses - targets_M[in_fold].double()).masked_fill(~finite_M[in_fold], 0.0)
            errors += missed.square().sum(1)
        self.moments, self.errors = total, self.decay * self.errors + errors
        self.bounds = _widest([self.bounds, *bounds])
        return values_M

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        sums = {name: getattr(self.moments, name) for name in Moments.__slots__}
        return {**sums, "errors": self.errors, "bounds": self.bounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        device = self.errors.device
        self.moments = replace(self.moments, **{name: state[name].to(device) for name in Moments.__slots__})
        self.errors, self.bounds = state["errors"].to(device), state["bounds"].to(device)


def _can_be_fitted(moments: Moments) -> bool:
    """Some state is left once a fold is taken out, up to rounding."""
    return bool(moments.count > 0.5)


def _values_by_ridge(features_M: Tensor, moments: Moments, bounds: Tensor) -> Tensor:
    """[ridges, M] The values of states by the head of each ridge."""
    features_M = features_M.double()
    # A linear head is unbounded, returns are not.
    return torch.stack([head(features_M).clamp(*bounds) for head in solve(moments)])


def _bounds(targets_M: Tensor) -> Tensor:
    """The lowest and the highest of some returns; (inf, -inf) of none."""
    if not len(targets_M):
        return torch.tensor([float("inf"), float("-inf")], dtype=torch.float64, device=targets_M.device)
    return torch.stack([targets_M.min(), targets_M.max()]).double()


def _widest(bounds: Sequence[Tensor]) -> Tensor:
    """The lowest of the lowest and the highest of the highest."""
    lowest, highest = torch.stack(list(bounds)).unbind(1)
    return torch.stack([lowest.min(), highest.max()])


def _folds(unit_M: Tensor) -> Tensor:
    """The fold of each state: units are assigned in turn, in their order. Units (4, 4, 7) give (0, 0, 1)."""
    index_M: Tensor = torch.unique(unit_M, return_inverse=True)[1]
    return index_M % NUM_FOLDS
