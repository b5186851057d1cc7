"""Two network namespaces, and a wire between them that loses, delays and cuts, on request.

Each has a TUN device; a thread passes the packets on. So TCP meets what it meets in a bad network, on any kernel that
has TUN, be there a netem or not.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True)


class Tunnel:
    """`namespaces` are the names; `loss` is from 0 to 1, `delay_s` of each direction, `up` False cuts the wire."""

    def __init__(self, seed=0):
        self.namespaces = [f"colmet-test-{os.getpid()}-{n}" for n in range(2)]
        self.loss = self.delay_s = 0.0
        self.up = True
        self.passed = self.lost = 0
        self._rng = random.Random(seed)
        self._made = []
        self._devices = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            for name, address in zip(self.namespaces, ADDRESSES):
                run("ip", "netns", "add", name)
                self._made.append(name)
                opener = threading.Thread(target=self._open, args=(name,))  # a namespace is of a thread
                opener.start()
                opener.join()
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "wire")
                run("ip", "-n", name, "link", "set", "wire", "up")
            if len(self._devices) != 2:
                raise OSError("no TUN device")
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise
        self._thread.start()

    def _open(self, namespace):
        with open(f"/run/netns/{namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                return
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        self._devices.append(device)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TUN | IFF_NO_PI))

    def _run(self):
        one, other = self._devices
        across = {one: other, other: one}
        waiting, count = [], 0
        while not self._stop.is_set():
            timeout_s = 0.1 if not waiting else min(0.1, max(0.0, waiting[0][0] - time.monotonic()))
            for device in select.select([one, other], [], [], timeout_s)[0]:
                packet = os.read(device, 65536)
                if not self.up or self._rng.random() < self.loss:
                    self.lost += 1
                    continue
                count += 1  # those of one moment stay in order
                heapq.heappush(waiting, (time.monotonic() + self.delay_s, count, across[device], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(waiting)
                self.passed += 1
                try:
                    os.write(device, packet)
                except OSError:
                    self.lost += 1

    def inside(self, side, *command):
        """A command line that runs on this side of the wire: 0 or 1."""
        return ["ip", "netns", "exec", self.namespaces[side], *command]

    def close(self):
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for device in self._devices:
            os.close(device)
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
