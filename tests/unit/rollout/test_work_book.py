"""The book-keeping of rollout workers: whatever is lost, every rollout ends once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_r1.rollout.workers.book import WorkBook


def book_with(*workers: int, share: int = 2, max_losses: int = 3) -> WorkBook:
    book = WorkBook(share=share, max_losses=max_losses)
    for worker in workers:
        book.add_worker(worker)
    return book


def test_rollouts_go_to_the_worker_with_the_fewest_and_none_gets_more_than_its_share() -> None:
    book = book_with(0, 1)
    for rollout in range(5):
        book.add(rollout)
    assert book.assign() == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert book.assign() == []
    assert book.finish(1, 1)
    assert book.assign() == [(1, 4)]


def test_the_rollouts_of_a_lost_worker_go_to_others_before_those_that_wait() -> None:
    book = book_with(0, 1)
    for rollout in range(5):
        book.add(rollout)
    book.assign()
    lost = book.lose(0)
    assert (lost.requeued, lost.given_up) == ((0, 2), ())
    assert book.finish(1, 1)
    assert book.assign() == [(1, 0)]


def test_what_a_lost_worker_still_sends_does_not_count() -> None:
    book = book_with(0, 1)
    book.add(7)
    assert book.assign() == [(0, 7)]
    book.lose(0)
    assert book.assign() == [(1, 7)]
    assert not book.finish(0, 7)
    assert book.finish(1, 7)
    assert not book.finish(1, 7)


def test_a_rollout_that_was_lost_often_runs_alone_and_is_then_given_up() -> None:
    book = book_with(0)
    book.add(1)
    book.add(2)
    book.assign()
    book.lose(0)
    book.add_worker(1)
    assert book.assign() == [(1, 1), (1, 2)]
    book.lose(1)
    book.add_worker(2)
    assert book.assign() == [(2, 1)]
    book.add(3)
    assert book.assign() == []
    assert book.lose(2).given_up == (1,)
    book.add_worker(3)
    assert book.assign() == [(3, 2)]
    assert book.finish(3, 2)
    assert book.assign() == [(3, 3)]


@pytest.mark.parametrize("is_given", [False, True])
def test_a_withdrawn_rollout_is_never_given_out_again(is_given: bool) -> None:
    book = book_with(*([0] if is_given else []))
    book.add(1)
    book.assign()
    assert book.withdraw(1) == (0 if is_given else None)
    book.lose(0)
    book.add_worker(1)
    assert book.assign() == []


class Losses(RuleBasedStateMachine):
    """Workers come and go, and send late what they had finished, in any order."""

    @initialize(share=st.integers(1, 4), max_losses=st.integers(1, 4))
    def begin(self, share: int, max_losses: int) -> None:
        self.share, self.max_losses = share, max_losses
        self.book = WorkBook(share=share, max_losses=max_losses)
        self.alive: list[int] = []
        self.num_workers = self.num_added = 0
        self.ended: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()
        self.sent: set[tuple[int, int]] = set()
        """What some worker, lost or not, was ever given."""

    @rule()
    def a_worker_starts(self) -> None:
        self.num_workers += 1
        self.alive.append(self.num_workers)
        self.book.add_worker(self.num_workers)

    @rule(count=st.integers(1, 5))
    def rollouts_are_added(self, count: int) -> None:
        for _ in range(count):
            self.book.add(self.num_added)
            self.num_added += 1

    @rule()
    def work_is_given(self) -> None:
        for worker, rollout in self.book.assign():
            assert worker in self.alive
            assert not self.ended[rollout]
            self.sent.add((worker, rollout))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_result_arrives(self, data: st.DataObject) -> None:
        """Also one that was on its way when its worker was lost, or that arrives twice."""
        worker, rollout = data.draw(st.sampled_from(sorted(self.sent)))
        self.ended[rollout] += self.book.finish(worker, rollout)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.alive))
        self.alive.remove(worker)
        held = self.book.held_by(worker)
        lost = self.book.lose(worker)
        assert {*lost.requeued, *lost.given_up} == held
        self.losses.update(held)
        self.ended.update(lost.given_up)
        assert all(self.losses[rollout] == self.max_losses for rollout in lost.given_up)
        assert all(self.losses[rollout] < self.max_losses for rollout in lost.requeued)

    @precondition(lambda self: any(not self.ended[rollout] for rollout in range(self.num_added)))
    @rule(data=st.data())
    def a_rollout_is_withdrawn(self, data: st.DataObject) -> None:
        rollout = data.draw(st.sampled_from([number for number in range(self.num_added) if not self.ended[number]]))
        self.book.withdraw(rollout)
        self.ended[rollout] += 1

    @invariant()
    def every_rollout_is_in_one_place(self) -> None:
        held = [rollout for worker in self.alive for rollout in self.book.held_by(worker)]
        assert len(held) == len(set(held))
        assert len(held) + self.book.num_waiting + self.ended.total() == self.num_added
        assert not self.ended or max(self.ended.values()) <= 1
        assert all(len(self.book.held_by(worker)) <= self.share for worker in self.alive)

    def teardown(self) -> None:
        """However it stands, one worker that lives can end everything."""
        if not self.num_added:
            return
        self.a_worker_starts()
        for _ in range(2 * self.num_added + 1):
            self.work_is_given()
            for worker in self.alive:
                for rollout in self.book.held_by(worker):
                    self.ended[rollout] += self.book.finish(worker, rollout)
        assert self.ended == Counter(range(self.num_added))


TestLosses = Losses.TestCase


@given(st.lists(st.sampled_from(["lose", "finish"]), max_size=30))
def test_with_one_worker_at_a_time_every_rollout_still_ends(events: list[str]) -> None:
    book, worker, ended = book_with(0, share=3, max_losses=2), 0, Counter[int]()
    for rollout in range(5):
        book.add(rollout)
    for event in [*events, *["finish"] * 10]:
        book.assign()
        if event == "lose":
            ended.update(book.lose(worker).given_up)
            worker += 1
            book.add_worker(worker)
        else:
            for rollout in book.held_by(worker):
                ended[rollout] += book.finish(worker, rollout)
    assert ended == Counter(range(5))
