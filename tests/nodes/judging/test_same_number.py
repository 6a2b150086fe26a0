"""Whether another node has this one's number, by what stands where this one alone tells."""

from __future__ import annotations

from lightning_hangcheck.nodes.judging.same_number import LASTS_S, PAUSE_S, SameNumber


def among(others: dict[int, bytes], seconds: int) -> SameNumber:
    """A node that tells each second; what others left in its place by when it looks."""
    one, stands = SameNumber(), others.get(-1)
    for second in range(seconds):
        stands = others.get(second, stands)
        one.look(stands, float(second))
        stands = b"ours %d" % second
        one.told(stands)
    return one


def test_two_nodes_of_one_number_are_found_in_some_seconds() -> None:
    words = {second: b"theirs %d" % second for second in range(100) if second % 3}
    assert among(words, int(LASTS_S) + 5).found in words.values()


def test_what_stood_there_before_or_comes_for_a_moment_is_nobody() -> None:
    before = {-1: b"an earlier job's"}
    anew = {second: b"node 0 until now %d" % second for second in range(20, 24)}
    now_and_then = {200 + 20 * n: b"late %d" % n for n in range(10)}
    assert PAUSE_S < 20
    assert among(before | anew | now_and_then, 500).found is None


def test_older_words_of_ours_that_slow_storage_shows_are_ours() -> None:
    older = {second: b"ours %d" % (second - 3) for second in range(3, 100)}
    assert among(older, 100).found is None
