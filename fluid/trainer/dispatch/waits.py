"""Waits: for how long the loop has waited for data, and for how long for the device."""


class Waits:
    """Seconds for which a training has waited since it began.

    Reading costs time only where the device has nothing left to do meanwhile. The loop looks after each reading that
    takes long, and now and then after others, whether that is so; if it is, what was read since the last look counts.

    Attributes:
      data: for minibatches.
      device: for the results of steps.

    Example:
      >>> waits = Waits()
      >>> waits.look(read=3.0, idle=True)
      >>> waits.look(read=3.5, idle=False)
      >>> waits.data
      3.0
    """

    def __init__(self) -> None:
        self.data = 0.0
        self.device = 0.0
        self._read = 0.0

    def begin_pass(self, read: float) -> None:
        """Begin with a pass for whose minibatches so many seconds were read before."""
        self._read = read

    def look(self, read: float, idle: bool) -> None:
        """Count what was read since the last look, or since the beginning of the pass.

        Args:
          read: seconds for which minibatches of this pass were read and converted.
          idle: whether the device had nothing left to do when the last of them was there.
        """
        if idle:
            self.data += read - self._read
        self._read = read
