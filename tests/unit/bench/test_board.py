"""lightrail.bench.board: counters of slow workers are in the sum, and not in that of the fast ones."""

from lightrail.bench.board import RECEIVED, SENT, Board


def test_the_last_workers_are_the_slow_ones() -> None:
    board = Board(4, slow=2)
    for worker, count in enumerate((1, 10, 100, 1_000)):
        board.words[board.index(worker, SENT)] = count
    assert (board.sum(SENT), board.fast(SENT)) == (1_111, 11)
    assert (board.sum(RECEIVED), board.latest(SENT)) == (0, 1_000)


def test_without_slow_workers_all_are_fast() -> None:
    board = Board(2)
    board.words[board.index(1, SENT)] = 7
    assert board.sum(SENT) == board.fast(SENT) == 7
