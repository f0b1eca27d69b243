"""The complete table of ops: the rows of all modules by the type of the op."""

from fluid.compat.paddle_files.op import Rule
from fluid.compat.paddle_files.ops import (
    arithmetic,
    image,
    loss,
    sequence,
    shape,
)

ROWS: dict[str, Rule] = {
    **arithmetic.ROWS,
    **image.ROWS,
    **loss.ROWS,
    **sequence.ROWS,
    **shape.ROWS,
}
