"""Entries of zip archives whose bytes depend only on their name and content."""

import zipfile

_EPOCH, _UNIX, _MODE = (1980, 1, 1, 0, 0, 0), 3, 0o644 << 16


def zip_entry(name: str) -> zipfile.ZipInfo:
    """Return an entry for `writestr` and `open` of an archive, without the date and the operating system.

    Args:
      name: the name of the entry.

    Example:
      >>> zip_entry("manifest.json").date_time
      (1980, 1, 1, 0, 0, 0)
    """
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = _UNIX, _MODE
    return info
