"""One process makes an artefact while others wait; a lock of a dead process is broken."""

import errno
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from diffmask.core import lock
from diffmask.core.lock import locked
from diffmask.core.store import Artefact, Store
from diffmask.errors import StoreError


def test_a_second_waits_until_the_first_is_done(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with locked(tmp_path / "x"):
            order.append("second")

    other = threading.Thread(target=second)
    with locked(tmp_path / "x"):
        other.start()
        other.join(timeout=0.3)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert not list(tmp_path.iterdir())


def test_locks_of_two_artefacts_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with locked(tmp_path / "x"), locked(tmp_path / "y"):
        assert len(list(tmp_path.iterdir())) == 2


def dead_process() -> int:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.pid
    return process.pid


def test_a_lock_of_a_dead_process_on_this_machine_is_broken(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(f"{socket.gethostname()} {dead_process()} token")
    with locked(tmp_path / "x"):
        assert str(os.getpid()) in (tmp_path / "x").read_text()


@pytest.mark.parametrize("content", ["another-machine 1 token", ""])
def test_a_lock_without_a_heartbeat_is_broken(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with locked(tmp_path / "x", timeout=0.05):
        assert str(os.getpid()) in (tmp_path / "x").read_text()


def test_a_lock_with_a_heartbeat_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    file.write_text("another-machine 1 token")

    class Clock:
        """A clock that sleeping advances; the other machine updates its lock for a thousand seconds."""

        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            os.utime(file, (self.now, self.now))
            if self.now > 1000:
                file.unlink()

    clock = Clock()
    monkeypatch.setattr(lock, "time", clock)
    with locked(file, timeout=5.0):
        assert clock.now > 1000


def test_the_holder_updates_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    with locked(tmp_path / "x"):
        os.utime(tmp_path / "x", (0, 0))
        deadline = time.monotonic() + 60
        while (tmp_path / "x").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / "x").stat().st_mtime > 0


def test_a_holder_that_lost_its_lock_does_not_remove_the_next_one(tmp_path: Path) -> None:
    with locked(tmp_path / "x"):
        (tmp_path / "x").write_text("another-machine 1 token")
    assert (tmp_path / "x").exists()


def test_one_of_many_concurrent_requests_makes_the_artefact(tmp_path: Path) -> None:
    store, makers, values = Store(tmp_path), [], []

    def make() -> Artefact:
        makers.append(threading.get_ident())
        time.sleep(0.1)
        return Artefact({}, {"value": 7})

    def ask() -> None:
        values.append(store.get_or_make("fit", "abc", make).values["value"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [7] * 8 and len(makers) == 1


def test_a_full_disk_leaves_no_lock_that_nobody_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with (
        pytest.raises(StoreError, match=r"x cannot be written: No space left.*; free some space"),
        locked(tmp_path / "x"),
    ):
        pass
    assert not (tmp_path / "x").exists()


class SlowClock:
    """A clock that every sleep advances by one second."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1.0
        self.pauses.append(seconds)


def test_pauses_double_up_to_a_second_and_a_silent_lock_is_broken_after_the_timeout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text("another-machine 1 token")
    clock = SlowClock()
    monkeypatch.setattr(lock, "time", clock)
    with locked(tmp_path / "x", timeout=9.0):
        assert clock.now == 10.0
    assert clock.pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def test_a_lock_is_made_in_a_new_folder_or_an_old_one_and_others_may_read_it(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        for _ in range(2):
            with locked(tmp_path / "a" / "b" / "x"):
                assert (tmp_path / "a" / "b" / "x").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


def test_a_lock_of_another_user_s_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text(f"{socket.gethostname()} 1 token")
    clock = SlowClock()

    def refuse(process: int, number: int) -> None:
        assert (process, number) == (1, 0)
        raise PermissionError

    monkeypatch.setattr(lock, "time", clock)
    monkeypatch.setattr("os.kill", refuse)
    with locked(tmp_path / "x", timeout=5.0):
        assert clock.now == 6.0


def test_a_lock_of_a_living_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text(f"{socket.gethostname()} {os.getpid()} token")
    clock = SlowClock()
    monkeypatch.setattr(lock, "time", clock)
    with locked(tmp_path / "x", timeout=2.0):
        assert clock.now == 3.0


def test_a_lock_that_vanishes_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.001)
    before = set(threading.enumerate())
    with locked(tmp_path / "x"):
        (heartbeat,) = set(threading.enumerate()) - before
        assert heartbeat.daemon  # it does not keep a process alive that ends in the block
        (tmp_path / "x").unlink()
        time.sleep(0.02)
    assert not (tmp_path / "x").exists()


def test_locks_are_kept_alive_and_broken_at_the_documented_intervals() -> None:
    assert (lock.HEARTBEAT_SECONDS, lock.TIMEOUT_SECONDS) == (10.0, 120.0)
