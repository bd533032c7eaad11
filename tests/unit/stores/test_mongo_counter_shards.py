"""The counters that the transactions of one process on MongoDB add to."""

from __future__ import annotations

from homing.stores.mongo.transaction import SHARDS, CounterShards


def test_transactions_at_the_same_time_use_different_counters_while_there_are_enough() -> None:
    shards = CounterShards()
    assert sorted(shards.take() for _ in range(SHARDS)) == list(range(SHARDS))
    assert shards.take() in range(SHARDS)


def test_a_process_goes_on_with_counters_that_no_other_has_used() -> None:
    shards = CounterShards()
    one, other = shards.take(), shards.take()
    shards.give_back(one, met_another=False)
    shards.give_back(other, met_another=False)
    assert {shards.take(), shards.take()} == {one, other}


def test_counters_that_another_process_uses_are_taken_last() -> None:
    shards = CounterShards()
    met = shards.take()
    shards.give_back(met, met_another=True)
    assert [shards.take() for _ in range(SHARDS)][-1] == met


def test_counters_that_two_transactions_share_are_free_once() -> None:
    shards = CounterShards()
    taken = [shards.take() for _ in range(SHARDS + 1)]
    for shard in taken:
        shards.give_back(shard, met_another=False)
    assert sorted(shards.take() for _ in range(SHARDS)) == list(range(SHARDS))
