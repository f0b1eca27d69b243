"""The table of ops: a row for each op of PaddlePaddle computes it with fluid's layers; one module for each family."""
