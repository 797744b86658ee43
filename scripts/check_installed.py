"""Exits 0 when each named package (NAME or NAME==VERSION) is installed whole: every file of its record is there.

Programs beside the package (bin/) may have been replaced.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, distribution


def is_whole(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return False
    if version and package.version.split("+")[0] != version:
        return False
    files = package.files
    if not files:
        return False
    for file in files:
        if ".." in file.parts:
            continue
        path = file.locate()
        if not os.path.exists(path) or (file.size is not None and os.path.getsize(path) != file.size):
            return False
    return True


sys.exit(0 if all(is_whole(requirement) for requirement in sys.argv[1:]) else 1)
