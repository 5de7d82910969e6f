"""Spill files on disk (S5 sections 2.9 and 14.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrale.sim.spill_store import FileSpillStore


def test_round_trip_and_ledger(tmp_path: Path) -> None:
    """create, write, record, open, read, remove: usage 256, then 0."""
    store = FileSpillStore(tmp_path / "spill", 512)
    file_id, writer = store.create()
    writer.write(b"x" * 200)
    writer.write(b"y" * 56)
    writer.close()
    writer.close()
    store.record_usage(file_id)
    assert (file_id, store.used) == (0, 256)
    with store.open(file_id) as reader:
        assert reader.read() == b"x" * 200 + b"y" * 56
    store.remove(file_id)
    assert store.used == 0
    assert list(store.directory.iterdir()) == []


def test_budget_query(tmp_path: Path) -> None:
    """512 fits, 513 not; after 256 used: 256 fits, 257 not. The query alone never refuses a write."""
    store = FileSpillStore(tmp_path / "spill", 512)
    assert (store.fits(512), store.fits(513)) == (True, False)
    file_id, writer = store.create()
    writer.write(b"x" * 256)
    writer.close()
    store.record_usage(file_id)
    store.record_usage(file_id)
    assert (store.fits(256), store.fits(257)) == (True, False)
    other, writer = store.create()
    writer.write(b"x" * 10_000)
    writer.close()
    store.record_usage(other)
    assert store.used == 10_256


def test_ids_count_up_and_are_never_reused(tmp_path: Path) -> None:
    store = FileSpillStore(tmp_path / "spill", 1)
    ids = []
    for _ in range(3):
        file_id, writer = store.create()
        writer.close()
        ids.append(file_id)
        store.remove(file_id)
    assert ids == [0, 1, 2]
    assert store.path(7).name == "swap_7.bin"


def test_stale_files_go_at_the_start_and_own_files_at_the_end(tmp_path: Path) -> None:
    """swap_* of an earlier run; then our own and the directory."""
    directory = tmp_path / "spill"
    directory.mkdir()
    (directory / "swap_99.bin").write_bytes(b"old")
    store = FileSpillStore(directory, 1)
    assert list(directory.iterdir()) == []
    _, writer = store.create()
    writer.write(b"x")
    writer.close()
    store.close()
    assert not directory.exists()
    store.close()


def test_a_foreign_file_and_its_directory_survive(tmp_path: Path) -> None:
    directory = tmp_path / "spill"
    store = FileSpillStore(directory, 1)
    (directory / "notes.txt").write_text("mine")
    store.create()[1].close()
    store.close()
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


def test_unknown_ids_are_os_errors(tmp_path: Path) -> None:
    store = FileSpillStore(tmp_path / "spill", 1)
    for call in (store.open, store.remove, store.record_usage):
        with pytest.raises(OSError, match="swap_5"):
            call(5)


def test_an_enforced_capacity_refuses_the_write_that_breaks_it(tmp_path: Path) -> None:
    """Nothing of that write lands; what other files use counts once it is recorded."""
    store = FileSpillStore(tmp_path / "spill", 10, enforce=True)
    first, writer = store.create()
    assert writer.write(b"12345678") == 8
    with pytest.raises(OSError, match="full"):
        writer.write(b"123")
    assert writer.write(b"12") == 2
    writer.close()
    store.record_usage(first)
    assert (store.used, store.path(first).read_bytes()) == (10, b"1234567812")
    _, second = store.create()
    with pytest.raises(OSError, match="full"):
        second.write(b"1")
    second.close()
