"""Shared by tests: in_child."""

from __future__ import annotations

import logging
import os
import sys
import traceback

from tests.support.machine import fork


def in_child(work):
    """What `work` returns, an exit status, in a process of its own."""
    child = fork()
    if not child:
        status = 99
        try:
            logging.basicConfig(force=True)  # to standard error, not to pytest in the parent
            status = work()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
