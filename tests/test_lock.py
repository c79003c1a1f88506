"""Of several who ask for an artefact one makes it; one that died holds nobody up."""

import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from diffmask.core import lock as claim
from diffmask.core.lock import claimed
from diffmask.core.store import Artefact, Store


def test_a_second_waits_until_the_first_is_done(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with claimed(tmp_path / "x"):
            order.append("second")

    other = threading.Thread(target=second)
    with claimed(tmp_path / "x"):
        other.start()
        other.join(timeout=0.3)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert not list(tmp_path.iterdir())


def test_claims_of_two_artefacts_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with claimed(tmp_path / "x"), claimed(tmp_path / "y"):
        assert len(list(tmp_path.iterdir())) == 2


def dead_process() -> int:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.pid
    return process.pid


def test_a_claim_of_a_process_that_died_on_this_machine_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(f"{socket.gethostname()} {dead_process()} token")
    with claimed(tmp_path / "x"):
        assert str(os.getpid()) in (tmp_path / "x").read_text()


@pytest.mark.parametrize("content", ["another-machine 1 token", ""])
def test_a_claim_without_a_sign_of_life_is_taken_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with claimed(tmp_path / "x", patience=0.05):
        assert str(os.getpid()) in (tmp_path / "x").read_text()


def test_a_claim_that_shows_signs_of_life_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    file.write_text("another-machine 1 token")

    class Clock:
        """Time passes by sleeping; meanwhile the other machine shows that it lives, for a thousand seconds."""

        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            os.utime(file, (self.now, self.now))
            if self.now > 1000:
                file.unlink()

    clock = Clock()
    monkeypatch.setattr(claim, "time", clock)
    with claimed(file, patience=5.0):
        assert clock.now > 1000


def test_the_holder_shows_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "BEAT", 0.01)
    with claimed(tmp_path / "x"):
        os.utime(tmp_path / "x", (0, 0))
        deadline = time.monotonic() + 60
        while (tmp_path / "x").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / "x").stat().st_mtime > 0


def test_whoever_lost_its_claim_leaves_the_next_ones_alone(tmp_path: Path) -> None:
    with claimed(tmp_path / "x"):
        (tmp_path / "x").write_text("another-machine 1 token")
    assert (tmp_path / "x").exists()


def test_of_many_who_ask_at_once_one_makes_it(tmp_path: Path) -> None:
    store, makers, found = Store(tmp_path), [], []

    def make() -> Artefact:
        makers.append(threading.get_ident())
        time.sleep(0.1)
        return Artefact({}, {"value": 7})

    def ask() -> None:
        found.append(store.get_or_make("fit", "abc", make).values["value"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 8 and len(makers) == 1
