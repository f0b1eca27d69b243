"""The lines of the user's that are being run, told apart by what they say and not by where they stand."""

import hashlib
import linecache
import sys

from fluid.core.frame import is_library

_MOST = 6  # functions inside of each other


def user_lines() -> tuple[str, ...]:
    """The call stack without libraries, innermost first, as `function:checksum of the text of the line`.

    It stays the same when lines are added above, or when the file is renamed. Where the text is not known, as in
    `python -c`, nothing is returned.
    """
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _MOST:
        code = frame.f_code
        if not is_library(code.co_filename):
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            if not text:
                break
            found.append(f"{code.co_name}:{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
