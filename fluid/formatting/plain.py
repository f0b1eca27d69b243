"""Text for a terminal."""


def printable(text: str, keep: str = "") -> str:
    """Return text with escapes instead of control characters, which a terminal would execute.

    Args:
      text: any text, such as a name that was read from a file.
      keep: control characters that are not escaped.

    Example:
      >>> print(printable("fc_0\\x1b[2J\\n", keep="\\n").rstrip())
      fc_0\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
