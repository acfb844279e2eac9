"""What a journal gives back is what was put in, or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cg_rag.index.journal import VectorJournal, discard_old_journals, journal_path
from cg_rag.index.store import remove_leftovers
from tests.open_files import open_below

DIM = 4
EMBEDDING = {"model": "toy", "fingerprint": "f" * 16, "dim": DIM, "kernel_class": "vnni"}


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def row(number: int) -> tuple[np.ndarray[Any, np.dtype[np.int16]], np.float32]:
    return np.arange(DIM, dtype=np.int16) - 3 * number, np.float32(number + 0.5)


def fill(folder: Path, count: int, **changes: Any) -> Path:
    journal = VectorJournal(folder, EMBEDDING | changes)
    for number in range(count):
        journal.append(digest(number), *row(number))
    journal.close()
    return journal_path(folder, (EMBEDDING | changes)["fingerprint"])


def contents(folder: Path, **changes: Any) -> dict[int, tuple[list[int], float]]:
    journal = VectorJournal(folder, EMBEDDING | changes)
    places = np.array(list(journal.places.values()), np.int64)
    full, scales = journal.read(places)
    journal.close()
    numbers = [int.from_bytes(key, "little") for key in journal.places]
    return {
        number: (one.tolist(), float(scale)) for number, one, scale in zip(numbers, full, scales, strict=True)
    }


def expected(numbers: range) -> dict[int, tuple[list[int], float]]:
    return {number: (row(number)[0].tolist(), float(row(number)[1])) for number in numbers}


def test_what_was_appended_is_there_when_opened_again(tmp_path: Path) -> None:
    fill(tmp_path, 3000)
    assert contents(tmp_path) == expected(range(3000))


def test_what_was_appended_has_left_the_process_before_anything_is_closed(tmp_path: Path) -> None:
    journal = VectorJournal(tmp_path, EMBEDDING)
    for number in range(5):
        journal.append(digest(number), *row(number))
        assert contents(tmp_path) == expected(range(number + 1))
    journal.close()


def test_a_journal_cut_at_any_byte_gives_its_whole_records_and_goes_on_behind_them(tmp_path: Path) -> None:
    raw = fill(tmp_path, 3).read_bytes()
    size = 16 + 4 + 2 * DIM + 4
    header = len(raw) - 3 * size
    for length in range(len(raw)):
        path = journal_path(tmp_path, EMBEDDING["fingerprint"])
        path.write_bytes(raw[:length])
        whole = max(0, length - header) // size
        assert contents(tmp_path) == expected(range(whole)), length
        fill_more = VectorJournal(tmp_path, EMBEDDING)
        for number in range(whole, 3):
            fill_more.append(digest(number), *row(number))
        fill_more.close()
        assert path.read_bytes() == raw, length


def test_a_changed_byte_anywhere_costs_a_vector_and_never_gives_a_wrong_one(tmp_path: Path) -> None:
    path = fill(tmp_path, 3)
    raw = path.read_bytes()
    whole = expected(range(3))
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x40]) + raw[position + 1 :])
        found = contents(tmp_path)
        assert found.items() <= whole.items(), position
        assert len(found) in (0, 2), position


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_bytes_of_anybody_behind_the_records_are_no_records(tmp_path: Path, tail: bytes) -> None:
    path = fill(tmp_path, 2)
    path.write_bytes(path.read_bytes() + tail)
    assert contents(tmp_path) == expected(range(2))
    path.unlink()


@pytest.mark.parametrize(
    "change", [{"dim": 2 * DIM}, {"kernel_class": "avx2"}, {"fingerprint": "0" * 16}, {"fingerprint": "../x"}]
)
def test_vectors_of_another_kind_are_never_given_back(tmp_path: Path, change: dict[str, Any]) -> None:
    fill(tmp_path, 3)
    assert contents(tmp_path, **change) == {}
    assert all(path.parent == tmp_path and path.suffix == ".journal" for path in tmp_path.rglob("*"))


def test_another_fingerprint_has_a_journal_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    fill(tmp_path, 1, fingerprint="0" * 16)
    assert contents(tmp_path) == expected(range(3))


def test_vectors_that_nobody_wants_are_dropped_when_they_outnumber_the_others(tmp_path: Path) -> None:
    path = fill(tmp_path, 100)
    wanted = {digest(number) for number in range(90, 150)}
    before = path.stat().st_size
    journal = VectorJournal(tmp_path, EMBEDDING)
    journal.compact({digest(number) for number in range(40, 100)})
    assert path.stat().st_size == before  # 40 unwanted beside 60
    journal.compact(wanted)
    journal.append(digest(100), *row(100))
    journal.close()
    assert path.stat().st_size < before / 5
    assert contents(tmp_path) == expected(range(90, 101))
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


def test_journals_of_models_in_use_stay_and_those_that_nobody_came_back_to_go(tmp_path: Path) -> None:
    own, fresh, old = (fill(tmp_path, 1, fingerprint=letter * 16) for letter in "abc")
    for path in (own, old):
        os.utime(path, (1, 1))
    discard_old_journals(tmp_path, "a" * 16)
    assert sorted(tmp_path.iterdir()) == sorted([own, fresh])


def test_a_journal_is_no_leftover(tmp_path: Path) -> None:
    path = fill(tmp_path, 1)
    assert remove_leftovers(tmp_path) == []
    assert path.exists()


def test_a_journal_gives_its_descriptors_back(tmp_path: Path) -> None:
    journal = VectorJournal(tmp_path, EMBEDDING)
    path = journal_path(tmp_path, EMBEDDING["fingerprint"])
    assert set(open_below(tmp_path)) == {str(path.resolve())}
    journal.close()
    del journal
    assert open_below(tmp_path) == []
    journal_path(tmp_path, "p").mkdir()
    with pytest.raises(OSError, match="directory"):
        VectorJournal(tmp_path, EMBEDDING | {"fingerprint": "p"})
    assert open_below(tmp_path) == []
