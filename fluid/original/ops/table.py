"""All rows of the table of ops, by the type of the op."""

from fluid.original.op import Rule
from fluid.original.ops import (
    activation,
    arithmetic,
    create,
    embedding,
    image,
    index,
    loss,
    norm,
    recurrent,
    sequence,
    shape,
    structured,
)

ROWS: dict[str, Rule] = {
    **activation.ROWS,
    **arithmetic.ROWS,
    **create.ROWS,
    **embedding.ROWS,
    **image.ROWS,
    **index.ROWS,
    **loss.ROWS,
    **norm.ROWS,
    **recurrent.ROWS,
    **sequence.ROWS,
    **shape.ROWS,
    **structured.ROWS,
}
