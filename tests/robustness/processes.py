"""Processes under test: started in a group of their own, watched, and taken down without leftovers."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]

# Compiling little and collecting simply makes a JVM start a third faster; nothing here lives long enough to miss it.
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class Process:
    """A program whose output lines can be waited for."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, inherit: bool = True) -> None:
        """`env` is added to the environment of the tests; without `inherit` it is all that there is."""
        self.lines: list[str] = []
        self._fresh: queue.Queue[str | None] = queue.Queue()
        self.popen = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**(os.environ if inherit else {}), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._family: set[psutil.Process] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def wait_for(self, pattern: str, seconds: float = 90.0) -> str:
        """The next output line that matches."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._fresh.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} within {seconds:.0f} s in:\n{self.tail()}") from None
            if line is None:
                raise AssertionError(f"ended with {self.popen.wait()} before {pattern!r}:\n{self.tail()}")
            if re.search(pattern, line):
                self.family()
                return line

    def family(self) -> set[psutil.Process]:
        """This process and its descendants, as far as they were ever seen."""
        with contextlib.suppress(psutil.Error):
            me = psutil.Process(self.pid)
            self._family |= {me, *me.children(recursive=True)}
        return self._family

    def kill(self, *, group: bool = True) -> None:
        """SIGKILL, for the whole group or for the leader alone."""
        self.family()
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        self.popen.wait(30)

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, and the exit code."""
        self.family()
        self.popen.terminate()
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop within {seconds:.0f} s:\n{self.tail()}") from None

    def leftovers(self, seconds: float = 15.0) -> list[psutil.Process]:
        """Descendants that still live after a while; a JVM notices within moments that its driver is gone."""
        end = time.monotonic() + seconds
        while True:
            living = [p for p in self._family if _lives(p)]
            if not living or time.monotonic() > end:
                return living
            time.sleep(0.05)

    def tail(self, count: int = 30) -> str:
        """The last lines of output, and how it ended if it did."""
        code = self.popen.poll()
        if code is not None:
            self._reader.join(10)
        return "\n".join([*self.lines[-count:], f"(exit code {code})" if code is not None else "(still running)"])

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))
            self._fresh.put(self.lines[-1])
        self._fresh.put(None)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def engine_process(dsn: str, master: str = "local[2]", *, env: Mapping[str, str] | None = None) -> Process:
    """The small engine program of these tests."""
    command = [sys.executable, "-m", "tests.robustness.engine_process", dsn, master]
    return Process(command, env={**QUICK_JVM, **(env or {})})


def runnel_up(*arguments: str, env: Mapping[str, str] | None = None) -> Process:
    """`runnel up`, as a user starts it."""
    command = [str(Path(sys.executable).with_name("runnel")), "up", *arguments]
    return Process(command, env={**QUICK_JVM, **(env or {})})


@contextlib.contextmanager
def none_left(processes: list[Process]) -> Iterator[list[Process]]:
    """Take down whatever a test started, however it ended."""
    try:
        yield processes
    finally:
        for process in processes:
            if process.alive:
                process.kill()
        for process in processes:
            for left in process.leftovers(5):
                with contextlib.suppress(psutil.Error):
                    left.kill()
