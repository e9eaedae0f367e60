"""Real brokers for tests: Redis and NATS as Debian packages them, and Kafka from the jars of Maven Central.

`make test-relay` fetches the jars into .kafka; RUNNEL_KAFKA_JARS may name another folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Broker:
    """A server that can be killed and started again; what it has been told is on disk."""

    command: list[str]
    port: int
    url: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 180
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.command[0]} does not listen")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def find(name: str) -> str | None:
    """Where a broker's program is."""
    named = os.environ.get(f"RUNNEL_{name.replace('-', '_').upper()}")
    return named or shutil.which(name) or shutil.which(name, path="/usr/sbin")


def kafka_jars() -> Path:
    return Path(os.environ.get("RUNNEL_KAFKA_JARS") or Path(__file__).parents[2] / ".kafka")


def program(name: str) -> str:
    found = find(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(folder: Path) -> Iterator[Broker]:
    port = free_port()
    command = [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
               "--appendonly", "yes", "--appendfsync", "always"]  # fmt: skip
    yield from _running(Broker(command, port, f"redis://127.0.0.1:{port}/0"))


@contextmanager
def nats_server(folder: Path) -> Iterator[Broker]:
    port = free_port()
    command = [program("nats-server"), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    yield from _running(Broker(command, port, f"nats://127.0.0.1:{port}"))


@contextmanager
def kafka_server(folder: Path) -> Iterator[Broker]:
    jars = kafka_jars()
    if not jars.is_dir():
        pytest.skip("there are no jars of Kafka: make test-relay")
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={folder}/data\nnum.partitions=1\noffsets.topic.replication.factor=1\n"
        "offsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\nlog.flush.interval.messages=1\n"
    )
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
    subprocess.run(format_, check=True, capture_output=True)
    yield from _running(Broker([*java, "kafka.Kafka", str(settings)], port, f"127.0.0.1:{port}"))


def _running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
