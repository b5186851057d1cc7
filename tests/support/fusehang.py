"""Processes of an ordinary user that have whoever reads their files in /proc wait; it runs until it is killed.

execve(2) closes files that are to be closed then while it holds the lock exec_update_lock, and to close a file of FUSE
waits for the program behind the mount: this one, which never answers. Run as root, it becomes nobody, unless the
machine gives ordinary users no namespaces.

python fusehang.py DEVICE DIRECTORY EVERY_S

DEVICE is /dev/fuse, or a node like it; in DIRECTORY it mounts; each EVERY_S seconds there is one more such process, of
0 only one. It writes a line "hangs" once the first one does.
"""

import ctypes
import itertools
import os
import struct
import sys
import threading
import time

NOBODY = 65534
CLONE_NEWNS, CLONE_NEWUSER, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 2, 4, 0x4000, 1 << 18
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, INTERRUPT = 1, 2, 3, 14, 18, 25, 26, 36
libc = ctypes.CDLL(None, use_errno=True)


def check(failed, what):
    if failed:
        raise OSError(ctypes.get_errno(), what)


def become_somebody():
    """In namespaces of its own, as nobody."""
    pid = os.fork()  # whether it may is tried in a child: rights that are given up do not come back
    if not pid:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os._exit(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        check(libc.unshare(CLONE_NEWNS), "unshare")
        check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(4, 1)  # PR_SET_DUMPABLE: its /proc is its own again
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {NOBODY} 1"), ("gid_map", f"0 {NOBODY} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def attributes(node, mode):
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device, hangs):
    """Answer all requests but that to flush."""
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        answer, error = b"", 0
        if operation == INIT:
            answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 8, 8, 4096, 1, 1, 0, 0, *[0] * 7)
        elif operation == LOOKUP:
            answer = struct.pack("<4Q2I", 2, 1, 60, 60, 0, 0) + attributes(2, 0o100666)
        elif operation == GETATTR:
            answer = struct.pack("<QII", 60, 0, 0) + attributes(node, 0o40777 if node == 1 else 0o100666)
        elif operation == OPEN:
            answer = struct.pack("<QII", 1, 0, 0)
        elif operation == FLUSH:
            hangs.set()
            continue
        elif operation in (FORGET, INTERRUPT):
            continue
        elif operation != RELEASE:
            error = -38
        os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)


def hang(path):
    """In a child: some children of its own that burn CPU time and are waited for, then an exec that does not end."""
    for _ in range(5):
        if not os.fork():
            until = time.monotonic() + 0.03
            while time.monotonic() < until:
                pass
            os._exit(0)
        os.wait()
    os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.execv("/bin/sleep", ["sleep", "600"])


def main():
    become_somebody()
    device = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)  # here: who opens it and who mounts share a namespace
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    check(libc.mount(b"x", sys.argv[2].encode(), b"fuse", MS_NOSUID | MS_NODEV, options.encode()), "mount")
    hangs = threading.Event()
    threading.Thread(target=serve, args=(device, hangs), daemon=True).start()
    for number in itertools.count():
        if not os.fork():
            hang(f"{sys.argv[2]}/{number}")
        if hangs.wait(20) and not number:
            print("hangs", flush=True)
        time.sleep(float(sys.argv[3]) or 600)


if __name__ == "__main__":
    main()
